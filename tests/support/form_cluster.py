"""Three brokers with one object store, and a topic that goes into it and out of it while it is written to and read."""

from collections.abc import Callable
from typing import Any

from anabranch.objects.memory_store import MemoryStore
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import records_of
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.broker_cluster import BrokerCluster

Body = dict[str, Any]
RETRIABLE = {
    E.NOT_LEADER_OR_FOLLOWER,
    E.NOT_ENOUGH_REPLICAS,
    E.UNKNOWN_TOPIC_OR_PARTITION,
    E.LEADER_NOT_AVAILABLE,
    E.REQUEST_TIMED_OUT,
    E.KAFKA_STORAGE_ERROR,
    E.OFFSET_NOT_AVAILABLE,
}


class FormCluster(BrokerCluster):
    """Three brokers with one store; records of one idempotent producer, numbered from 0 on."""

    def __init__(self, mode: str, partitions: int = 1, seed: int = 1, **configs: str) -> None:
        super().__init__(seed, object_store="memory:")
        self.store = MemoryStore(self.clock.wall_ms)
        self.written: dict[int, list[bytes]] = {index: [] for index in range(partitions)}
        self.errors: set[int] = set()
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

    # --- asking

    def alter(self, mode: str | None, name: str = "t") -> Body:
        config = {"name": "anabranch.mode", "config_operation": 0 if mode else 1, "value": mode}
        resource = {"resource_type": 2, "resource_name": name, "configs": [config]}
        body = {"resources": [resource], "validate_only": False}
        answer = self.ask(self.follower_id, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body)
        return dict(answer["responses"][0])

    def leader_of(self, index: int) -> int | None:
        for life in self.lives.values():
            topic = life.broker.topics.known("t").topic
            leader = life.broker.leaders.of(topic.topic_id, index).broker_id
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
        batch = _batch(number, self.clock.wall_ms())
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

    def values(self, index: int = 0, start: int = 0) -> list[bytes]:
        """All that a reader finds from there on."""
        found: list[bytes] = []
        end = self.offset(-1, index)
        while start + len(found) < end:
            at = start + len(found)

            def work(leader: int, at: int = at) -> int:
                partition = {
                    "partition": index,
                    "fetch_offset": at,
                    "current_leader_epoch": -1,
                    "last_fetched_epoch": -1,
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
                row = self.ask(leader, ApiKey.FETCH, 12, body)["responses"][0]["partitions"][0]
                if not row["error_code"]:
                    found.extend(_values(row["records"], at))
                return int(row["error_code"])

            self._retried(index, work)
        return found

    # --- looking

    def forms(self, at: int | None = None) -> set[str]:
        broker = self.leader if at is None else self.broker(at)
        return set(broker.metadata.table.topics["t"].all_forms)

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
        assert self.values(index) == self.written[index]


def _batch(number: int, now_ms: int) -> bytes:
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
