"""Three brokers with one object store, and a topic that goes into it and out of it while it is written to and read."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from anabranch.cluster.metadata.rows import Placement
from anabranch.cluster.objects.table import Head
from anabranch.errors import StoreUnavailableError
from anabranch.objects.layout.names import Key, object_id_of
from anabranch.objects.memory_store import MemoryStore
from anabranch.objects.store import Buffer
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import records_of
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.broker_cluster import BrokerCluster

Body = dict[str, Any]
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
RETRIABLE = {
    E.NOT_LEADER_OR_FOLLOWER,
    E.NOT_ENOUGH_REPLICAS,
    E.UNKNOWN_TOPIC_OR_PARTITION,
    E.LEADER_NOT_AVAILABLE,
    E.REQUEST_TIMED_OUT,
    E.KAFKA_STORAGE_ERROR,
    E.OFFSET_NOT_AVAILABLE,
    E.NOT_CONTROLLER,
}


class FormCluster(BrokerCluster):
    """Three brokers with one store; records of one idempotent producer, numbered from 0 on."""

    def __init__(
        self, mode: str, partitions: int = 1, seed: int = 1, *, flush: str = "always", **configs: str
    ) -> None:
        super().__init__(seed, object_store="memory:", flush=flush)
        self.store = AwayStore(self.clock.wall_ms)
        self.written: dict[int, list[bytes]] = {index: [] for index in range(partitions)}
        self.errors: set[int] = set()
        self.deleted: dict[int, int] = {}
        """Where each partition begins, since somebody wanted it so."""
        self.joining: dict[int, asyncio.Task[None]] = {}
        self.start(1, 2, 3)
        self.settle()
        wanted = {"anabranch.mode": mode, **configs}
        row = {
            "name": "t",
            "num_partitions": partitions,
            "replication_factor": -1,
            "assignments": [],
            "configs": [{"name": name, "value": value} for name, value in wanted.items()],
        }
        body = {"topics": [row], "timeout_ms": 10_000, "validate_only": False}
        (answer,) = self.ask(1, ApiKey.CREATE_TOPICS, 7, body)["topics"]
        assert answer["error_code"] == 0, answer
        self.run(500)

    async def _start(self, broker_id: int, disk: FakeDisk, settings: dict[str, str]) -> None:
        await super()._start(broker_id, disk, settings)
        peering = self.lives[broker_id].broker.peering
        assert peering is not None
        self.joining[broker_id] = self.loop.create_task(peering.join())

    def kill(self, broker_id: int, *, lose_disk: bool = False) -> None:
        self.joining.pop(broker_id).cancel()
        super().kill(broker_id, lose_disk=lose_disk)

    # --- asking

    def alter(self, mode: str | None, name: str = "t") -> Body:
        config = {"name": "anabranch.mode", "config_operation": 0 if mode else 1, "value": mode}
        resource = {"resource_type": 2, "resource_name": name, "configs": [config]}
        body = {"resources": [resource], "validate_only": False}
        answer = self.ask(self.follower_id, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body)
        return dict(answer["responses"][0])

    def leader_of(self, index: int) -> int | None:
        for life in self.lives.values():
            topic = life.broker.metadata.table.topics.get(
                "t"
            )  # One that has just come back knows of nothing yet.
            leader = None if topic is None else life.broker.leaders.of(topic.topic_id, index).broker_id
            if leader in self.lives:
                return leader
        return None

    def _retried(self, index: int, work: Callable[[int], int]) -> None:
        for _ in range(600):
            leader = self.leader_of(index)
            code = work(leader) if leader is not None else E.LEADER_NOT_AVAILABLE
            if code == 0:
                return
            assert code in RETRIABLE, E(code).name
            self.errors.add(code)
            self.run(50)
        raise AssertionError("nobody took it")

    def produce(self, index: int = 0, *, repeat: bool = False) -> None:
        """The next record of the producer; `repeat`: the last one again, which must change nothing."""
        written = self.written[index]
        number = len(written) - repeat
        batch = batch_of(number, self.clock.wall_ms())
        offsets: list[int] = []

        def work(leader: int) -> int:
            rows = [{"index": index, "records": batch}]
            body = {
                "transactional_id": None,
                "acks": -1,
                "timeout_ms": 5000,
                "topic_data": [{"name": "t", "partition_data": rows}],
            }
            answer = self.ask(leader, ApiKey.PRODUCE, 9, body)
            row = answer["responses"][0]["partition_responses"][0]
            offsets.append(row["base_offset"])
            return int(row["error_code"])

        self._retried(index, work)
        assert offsets[-1] == number
        if not repeat:
            written.append(b"%d" % number)

    def offset(self, special: int, index: int = 0) -> int:
        found: list[int] = []

        def work(leader: int) -> int:
            asked = {"partition_index": index, "current_leader_epoch": -1, "timestamp": special}
            body = {
                "replica_id": -1,
                "isolation_level": 0,
                "topics": [{"name": "t", "partitions": [asked]}],
                "timeout_ms": 1000,
            }
            row = self.ask(leader, ApiKey.LIST_OFFSETS, 7, body)["topics"][0]["partitions"][0]
            found.append(row["offset"] if not row["error_code"] else -1)
            return int(row["error_code"])

        self._retried(index, work)
        return found[-1]

    def fetch(self, at: int, index: int = 0, last_fetched_epoch: int = -1) -> Body:
        """One answer of whoever leads."""
        rows: list[Body] = []

        def work(leader: int) -> int:
            partition = {
                "partition": index,
                "fetch_offset": at,
                "current_leader_epoch": -1,
                "last_fetched_epoch": last_fetched_epoch,
                "log_start_offset": -1,
                "partition_max_bytes": 2**20,
            }
            body = {
                "max_wait_ms": 100,
                "min_bytes": 1,
                "max_bytes": 2**20,
                "session_id": 0,
                "session_epoch": -1,
                "topics": [{"topic": "t", "partitions": [partition]}],
                "forgotten_topics_data": [],
            }
            rows.append(self.ask(leader, ApiKey.FETCH, 12, body)["responses"][0]["partitions"][0])
            code = rows[-1]["error_code"]
            return 0 if code == E.OFFSET_OUT_OF_RANGE else int(code)

        self._retried(index, work)
        return rows[-1]

    def fetch_code(self, at: int) -> int:
        return int(self.fetch(at)["error_code"])

    def values(self, index: int = 0, start: int = 0) -> list[bytes]:
        """All that a reader finds from there on."""
        found: list[bytes] = []
        end = self.offset(LATEST, index)
        while start + len(found) < end:
            row = self.fetch(start + len(found), index)
            assert row["error_code"] == 0
            found += _values(row["records"], start + len(found))
        return found

    def delete_below(self, offset: int, index: int = 0) -> int:
        """What the answer says where the partition begins."""
        starts: list[int] = []

        def work(leader: int) -> int:
            asked = {"partition_index": index, "offset": offset}
            body = {"topics": [{"name": "t", "partitions": [asked]}], "timeout_ms": 5000}
            row = self.ask(leader, ApiKey.DELETE_RECORDS, 2, body)["topics"][0]["partitions"][0]
            starts.append(row["low_watermark"])
            # A new leader does not know yet how far its records are safe.
            is_early = row["error_code"] == E.OFFSET_OUT_OF_RANGE
            return int(E.OFFSET_NOT_AVAILABLE if is_early else row["error_code"])

        self._retried(index, work)
        self.deleted[index] = max(self.deleted.get(index, 0), offset)
        return starts[-1]

    def end_of(self, generation: int) -> tuple[int, int]:
        """What OffsetForLeaderEpoch says of it."""
        found: list[tuple[int, int]] = []

        def work(leader: int) -> int:
            asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": generation}
            body = {"replica_id": -1, "topics": [{"topic": "t", "partitions": [asked]}]}
            answer = self.ask(leader, ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, body)
            row = answer["topics"][0]["partitions"][0]
            found.append((row["leader_epoch"], row["end_offset"]))
            return int(row["error_code"])

        self._retried(0, work)
        return found[-1]

    # --- looking

    def key(self, index: int = 0) -> Key:
        return self.leader.metadata.table.topics["t"].topic_id, index

    def head(self) -> Head:
        return self.leader.metadata.table.objects.head(self.key())

    def placement(self) -> Placement:
        table = self.leader.metadata.table
        return table.placement(table.topics["t"], 0)

    def generation(self) -> int:
        return self.leader.leaders.of(self.key()[0], 0).generation

    def spoil(self, after_puts: int = 0) -> "AwayStore":
        """After so many records more the store takes nothing until it is told to."""
        assert isinstance(self.store, AwayStore)
        self.store.is_away, self.store.puts_left = True, after_puts
        return self.store

    def forms(self, at: int | None = None) -> set[str]:
        broker = self.leader if at is None else self.broker(at)
        topic = broker.metadata.table.topics.get("t")
        return set(topic.all_forms) if topic is not None else set()

    def is_done(self, form: str) -> bool:
        return (
            self.leader_id is not None
            and self.forms() == {form}
            and all(
                life.broker.topics.is_settled and self.forms(each) == {form}
                for each, life in self.lives.items()
            )
        )

    def change(self, mode: str, form: str, *, within_ms: int = 60_000, partitions: int = 1) -> None:
        """Ask for it, and write all the while."""
        answer = self.alter(mode)
        assert answer["error_code"] == 0, answer
        end_ms = self.clock.monotonic_ms() + within_ms
        while not self.is_done(form):
            assert self.clock.monotonic_ms() < end_ms, "it did not come about"
            for index in range(partitions):
                self.produce(index)
            self.run(20)

    def folders(self) -> list[str]:
        return sorted(
            f"{each}:{name}"
            for each, life in self.lives.items()
            for name in life.disk.list("data")
            if name.startswith("t-")
        )

    def check(self, index: int = 0) -> None:
        start = self.deleted.get(index, 0)
        assert self.offset(EARLIEST, index) == start
        assert self.values(index, start) == self.written[index][start:]


class AwayStore(MemoryStore):
    is_away = False
    puts_left = 0

    async def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        if self.is_away and object_id_of(name) is not None:
            self.puts_left -= 1
            if self.puts_left < 0:
                raise StoreUnavailableError("The store is away.")
        await super().put(name, pieces)


def batch_of(number: int, now_ms: int) -> bytes:
    builder = BatchBuilder(producer_id=7, producer_epoch=0, base_sequence=number)
    builder.add(b"k%d" % number, b"%d" % number, timestamp_ms=now_ms)
    return bytes(builder.build())


def _values(data: bytes, at: int) -> list[bytes]:
    values, position = [], 0
    while position < len(data):
        size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        for record in records_of(data[position : position + size]):
            if record.offset >= at:
                assert record.offset == at + len(values)
                values.append(bytes(record.value or b""))
        position += size
    return values
