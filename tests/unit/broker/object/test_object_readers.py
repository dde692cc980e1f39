"""Whole brokers over one object store: what one has written every other serves, by offset and by time."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from anabranch.errors import StoreUnavailableError
from anabranch.objects.layout.snapshots import GROUPS, METADATA
from anabranch.objects.memory_store import MemoryStore
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import records_of
from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.broker_cluster import BrokerCluster, close_all

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


class NotedStore(MemoryStore):
    """Notes every GET of records, takes its time, and is away when told."""

    gets: list[str]
    is_away = False

    async def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        if not name.startswith((METADATA, GROUPS)):  # A snapshot is read back by whoever has written it.
            self.gets.append(name)
        await asyncio.sleep(0.05)
        if self.is_away:
            raise StoreUnavailableError("no answer")
        return await super().get(name, start, end)


class Readers(BrokerCluster):
    """A topic of three partitions in the store, and brokers that serve it."""

    def __init__(self, count: int = 3, **settings: str) -> None:
        super().__init__(1, object_store="memory:", **settings)
        self.store = self.noted = NotedStore(self.clock.wall_ms)
        self.noted.gets = []
        self.start(*range(1, count + 1))
        self.settle()
        configs = [{"name": "anabranch.mode", "value": "object"}]
        row = {
            "name": "t",
            "num_partitions": 3,
            "replication_factor": -1,
            "assignments": [],
            "configs": configs,
        }
        answer = self.ask(
            1, ApiKey.CREATE_TOPICS, 7, {"topics": [row], "timeout_ms": 10_000, "validate_only": False}
        )
        assert answer["topics"][0]["error_code"] == 0, answer
        self.until(lambda: all(life.broker.topics.find_partition("t", 2) for life in self.lives.values()))

    def produce(self, broker_id: int, values: dict[int, Sequence[bytes]], time: int | None = None) -> None:
        """One request, so that it becomes one object."""
        rows = []
        for index, each in values.items():
            builder = BatchBuilder()
            for number, value in enumerate(each):
                builder.add(None, value, timestamp_ms=(time or self.clock.wall_ms()) + number)
            rows.append({"index": index, "records": bytes(builder.build())})
        data = [{"name": "t", "partition_data": rows}]
        body = {"transactional_id": None, "acks": -1, "timeout_ms": 20_000, "topic_data": data}
        answer = self.ask(broker_id, ApiKey.PRODUCE, 9, body)
        codes = {row["error_code"] for row in answer["responses"][0]["partition_responses"]}
        assert codes == {0}

    def fetch(self, broker_id: int, offsets: dict[int, int], wait_ms: int = 500) -> dict[int, dict[str, Any]]:
        partitions = [
            {"partition": index, "fetch_offset": at, "current_leader_epoch": -1, "partition_max_bytes": 2**20}
            for index, at in offsets.items()
        ]
        body = {
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "max_bytes": 50 * 2**20,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": "t", "partitions": partitions}],
            "forgotten_topics_data": [],
        }
        answer = self.ask(broker_id, ApiKey.FETCH, 12, body)
        return {row["partition_index"]: row for row in answer["responses"][0]["partitions"]}

    def read_all(self, broker_id: int) -> dict[int, list[bytes]]:
        """As a consumer of all partitions does, until there is nothing more."""
        found: dict[int, list[bytes]] = {index: [] for index in range(3)}
        at = dict.fromkeys(range(3), 0)
        while True:
            rows = self.fetch(broker_id, at)
            assert not any(row["error_code"] for row in rows.values()), rows
            if not any(row["records"] for row in rows.values()):
                return found
            for index, row in rows.items():
                data = row["records"] or b""
                for start, end in batch_spans(data):
                    assert read_header(data, start).base_offset == at[index]
                    found[index] += [record.value or b"" for record in records_of(data[start:end])]
                    at[index] = read_header(data, start).next_offset

    def offsets(self, broker_id: int, *times: int) -> list[tuple[int, int, int]]:
        """Of partition 0: error code, offset and time for each of these."""
        found = []
        for time in times:
            asked = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": time}]
            body = {
                "replica_id": -1,
                "isolation_level": 0,
                "topics": [{"name": "t", "partitions": asked}],
                "timeout_ms": 10_000,
            }
            answer = self.ask(broker_id, ApiKey.LIST_OFFSETS, 7, body)
            row = answer["topics"][0]["partitions"][0]
            found.append((row["error_code"], row["offset"], row["timestamp"]))
        return found

    @property
    def objects(self) -> int:
        return sum(1 for name in self.noted.names if name.startswith("segments/"))


def test_every_broker_serves_what_any_has_written_with_one_get_for_each_object() -> None:
    cluster = Readers()
    for number in range(9):
        cluster.produce(number % 3 + 1, {index: [b"%d-%d" % (index, number)] for index in range(3)})
    wanted = {index: [b"%d-%d" % (index, number) for number in range(9)] for index in range(3)}
    assert cluster.objects == 9
    for broker_id in (1, 2, 3):
        cluster.noted.gets.clear()
        assert cluster.read_all(broker_id) == wanted
        assert len(cluster.noted.gets) == len(set(cluster.noted.gets)) == 6, "what it wrote itself it has"
        assert cluster.read_all(broker_id) == wanted
        assert len(cluster.noted.gets) == 6


def test_a_long_poll_at_another_broker_is_woken_by_a_write() -> None:
    cluster = Readers()
    cluster.run(1000)

    async def both() -> dict[str, Any]:
        client = cluster.lives[2].client
        partitions = [
            {"partition": 0, "fetch_offset": 0, "current_leader_epoch": -1, "partition_max_bytes": 2**20}
        ]
        fetch = {
            "max_wait_ms": 30_000,
            "min_bytes": 1,
            "max_bytes": 2**20,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": "t", "partitions": partitions}],
            "forgotten_topics_data": [],
        }
        waiting = asyncio.create_task(client.ask(ApiKey.FETCH, 12, fetch))
        await asyncio.sleep(1)
        builder = BatchBuilder()
        builder.add(None, b"news", timestamp_ms=cluster.clock.wall_ms())
        data = [{"name": "t", "partition_data": [{"index": 0, "records": bytes(builder.build())}]}]
        body = {"transactional_id": None, "acks": -1, "timeout_ms": 20_000, "topic_data": data}
        await cluster.lives[1].client.ask(ApiKey.PRODUCE, 9, body)
        before = cluster.clock.monotonic_ms()
        answer = await waiting
        assert cluster.clock.monotonic_ms() - before < 1000
        return answer

    row = cluster.do(both())["responses"][0]["partitions"][0]
    assert (row["error_code"], row["high_watermark"], bool(row["records"])) == (0, 1, True)


def test_a_broker_that_is_cut_off_never_says_that_an_offset_is_out_of_range() -> None:
    cluster = Readers()
    cluster.produce(1, {0: [b"old"]})
    cluster.run(1000)
    behind = next(each for each in (2, 3) if each != cluster.leader_id)
    cluster.net.isolate(BrokerId(behind))
    assert cluster.leader_id is not None
    cluster.produce(cluster.leader_id, {0: [b"new", b"newer"]})
    row = cluster.fetch(behind, {0: 2})[0]
    assert (E(row["error_code"]), row["records"] or b"") == (E.NONE, b"")
    assert cluster.offsets(behind, LATEST)[0][0] == E.OFFSET_NOT_AVAILABLE
    cluster.net.heal()
    cluster.run(10_000)
    row = cluster.fetch(behind, {0: 2}, wait_ms=10_000)[0]
    assert (E(row["error_code"]), bool(row["records"])) == (E.NONE, True)
    assert E(cluster.fetch(behind, {0: 4}, wait_ms=10_000)[0]["error_code"]) is E.OFFSET_OUT_OF_RANGE


def test_any_broker_finds_records_by_their_time() -> None:
    cluster = Readers()
    now = cluster.clock.wall_ms()
    cluster.produce(1, {0: [b"a", b"b"]}, time=now - 5000)
    cluster.produce(2, {0: [b"c"]}, time=now - 1000)
    cluster.produce(3, {0: [b"d"]}, time=now - 3000)
    for broker_id in (1, 2, 3):
        assert cluster.offsets(broker_id, EARLIEST, LATEST) == [(0, 0, -1), (0, 4, -1)]
        assert cluster.offsets(broker_id, now - 9000, now - 4999, now - 4998, now - 999) == [
            (0, 0, now - 5000),
            (0, 1, now - 4999),
            (0, 2, now - 1000),
            (0, -1, -1),
        ]
        assert cluster.offsets(broker_id, MAX_TIMESTAMP) == [(0, 2, now - 1000)]


def test_without_the_store_times_cannot_be_looked_up_and_the_ends_can() -> None:
    cluster = Readers()
    cluster.produce(1, {0: [b"a"]})
    cluster.run(1000)
    cluster.noted.is_away = True
    assert cluster.offsets(2, EARLIEST, LATEST) == [(0, 0, -1), (0, 1, -1)]
    assert cluster.offsets(2, 0)[0][0] == E.OFFSET_NOT_AVAILABLE
    assert cluster.offsets(1, 0)[0][:2] == (0, 0), "who wrote it has it"
    cluster.noted.is_away = False
    cluster.run(5000)
    assert cluster.offsets(2, 0)[0][:2] == (0, 0)


def test_a_broker_that_lost_its_disk_serves_everything_again() -> None:
    cluster = Readers()
    for number in range(6):
        cluster.produce(number % 3 + 1, {index: [b"%d" % number] for index in range(3)})
    cluster.kill(3, lose_disk=True)
    cluster.run(5000)
    cluster.start(3)
    cluster.until(lambda: cluster.broker(3).topics.find_partition("t", 2) is not None, within_ms=60_000)
    cluster.run(5000)
    assert cluster.read_all(3) == {index: [b"%d" % number for number in range(6)] for index in range(3)}


def test_a_restart_finds_blocks_on_the_disk() -> None:
    cluster = Readers(object_cache_bytes=str(2**20))
    for number in range(40):
        cluster.produce(1, {0: [bytes([number]) * 200_000]})
    wanted = [bytes([number]) * 200_000 for number in range(40)]
    assert cluster.read_all(2)[0] == wanted
    first = len(cluster.noted.gets)
    assert first == 40
    cluster.run(1000)
    cluster.kill(2)
    cluster.run(3000)
    cluster.start(2)
    cluster.until(lambda: cluster.broker(2).topics.find_partition("t", 2) is not None, within_ms=60_000)
    cluster.run(3000)
    assert cluster.read_all(2)[0] == wanted
    assert len(cluster.noted.gets) - first <= 10, "most of them were on its disk"
