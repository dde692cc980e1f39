"""Topics in the object store among several brokers: each has them open, none keeps them, and who comes or goes changes
nothing but who is named."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from anabranch.objects.memory_store import MemoryStore
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import records_of
from anabranch.testing.in_process_client import Body
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.broker_cluster import BrokerCluster, close_all

LATEST = -1


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


class ObjectCluster(BrokerCluster):
    def __init__(self) -> None:
        super().__init__(object_store="memory:")
        self.store = MemoryStore(self.clock.wall_ms)

    def topic(self, name: str = "t", partitions: int = 4, at: int = 1, **configs: str) -> Body:
        wanted = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        row = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": -1,
            "assignments": [],
            "configs": [{"name": "anabranch.mode", "value": "object"}, *wanted],
        }
        body = {"topics": [row], "timeout_ms": 10_000, "validate_only": False}
        (answer,) = self.ask(at, ApiKey.CREATE_TOPICS, 7, body)["topics"]
        assert isinstance(answer, dict)
        return answer

    def produce(self, at: int, *values: bytes, name: str = "t", index: int = 0) -> Body:
        builder = BatchBuilder()
        for value in values:
            builder.add(None, value, timestamp_ms=self.clock.wall_ms())
        rows = [{"index": index, "records": bytes(builder.build())}]
        body = {
            "transactional_id": None,
            "acks": -1,
            "timeout_ms": 5000,
            "topic_data": [{"name": name, "partition_data": rows}],
        }
        row: Body = self.ask(at, ApiKey.PRODUCE, 12, body)["responses"][0]["partition_responses"][0]
        return row

    def values(self, at: int, count: int, index: int = 0, name: str = "t") -> list[bytes]:
        found: list[Any] = []
        while len(found) < count:
            partition = {
                "partition": index,
                "fetch_offset": len(found),
                "current_leader_epoch": 0,
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
                "topics": [{"topic": name, "partitions": [partition]}],
                "forgotten_topics_data": [],
            }
            row = self.ask(at, ApiKey.FETCH, 12, body)["responses"][0]["partitions"][0]
            assert row["error_code"] == 0, row
            found += _values(row["records"])
        return found

    def named(self, at: int, name: str = "t") -> list[int]:
        """Whom this broker sends clients to, for each partition."""
        topic = self.broker(at).topics.known(name).topic
        leaders = [
            self.broker(at).leaders.of(topic.topic_id, index) for index in range(topic.partition_count)
        ]
        assert all(each.in_sync == (each.broker_id,) for each in leaders)
        return [each.broker_id if each.broker_id is not None else -1 for each in leaders]


def _values(data: bytes) -> list[bytes]:
    values, position = [], 0
    while position < len(data):
        size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        values += [bytes(record.value or b"") for record in records_of(data[position : position + size])]
        position += size
    return values


def three_with_topic() -> ObjectCluster:
    cluster = ObjectCluster()
    cluster.start(1, 2, 3)
    cluster.settle()
    assert cluster.topic()["error_code"] == E.NONE
    cluster.run(500)
    return cluster


def test_every_broker_opens_every_partition_and_makes_no_folder() -> None:
    cluster = three_with_topic()
    for broker_id, life in cluster.lives.items():
        partitions = cluster.broker(broker_id).topics.known("t").partitions
        assert all(each is not None and not each.has_files for each in partitions)
        assert len(partitions) == 4
        assert not [name for name in life.disk.list("data") if name.startswith("t-")]


def test_any_broker_writes_and_all_read_the_same() -> None:
    cluster = three_with_topic()
    for number in range(9):
        assert cluster.produce(1 + number % 3, b"%d" % number)["base_offset"] == number
    wanted = [b"%d" % number for number in range(9)]
    assert [cluster.values(broker_id, 9) for broker_id in (1, 2, 3)] == [wanted] * 3


def test_brokers_agree_on_whom_clients_are_sent_to() -> None:
    cluster = three_with_topic()
    assert cluster.named(1) == cluster.named(2) == cluster.named(3)


def test_dead_broker_is_not_named_and_the_others_keep_theirs() -> None:
    cluster = three_with_topic()
    assert cluster.topic("wide", 40)["error_code"] == E.NONE
    cluster.run(500)
    before = cluster.named(1, "wide")
    assert set(before) == {1, 2, 3}
    cluster.kill(3)
    cluster.until(lambda: 3 not in cluster.named(1, "wide"))
    after = cluster.named(1, "wide")
    assert all(new == old for old, new in zip(before, after, strict=True) if old != 3)


def test_records_survive_every_disk_but_those_of_the_quorum() -> None:
    cluster = ObjectCluster()
    cluster.start(1, 2, 3)
    cluster.settle()
    cluster.start(4)
    cluster.settle()
    assert cluster.topic()["error_code"] == E.NONE
    cluster.run(500)  # Until the learner has heard of it too.
    learner = next(each for each in cluster.lives if each not in cluster.voters())
    assert cluster.produce(learner, b"a", b"b")["base_offset"] == 0
    cluster.kill(learner, lose_disk=True)
    cluster.run(5000)
    cluster.start(learner)
    cluster.until(lambda: cluster.broker(learner).topics.find("t") is not None)
    cluster.run(2000)
    assert cluster.values(learner, 2) == [b"a", b"b"]
    assert cluster.produce(learner, b"c")["base_offset"] == 2


def test_broker_that_joins_serves_what_was_written_before() -> None:
    cluster = ObjectCluster()
    cluster.start(1)
    cluster.settle()
    assert cluster.topic()["error_code"] == E.NONE
    cluster.produce(1, b"a")
    cluster.start(2)
    cluster.settle()
    assert cluster.values(2, 1) == [b"a"]
    assert cluster.produce(2, b"b")["base_offset"] == 1
    assert cluster.values(1, 2) == [b"a", b"b"]


def test_brokers_that_come_and_go_move_nothing_of_it() -> None:
    cluster = three_with_topic()
    cluster.kill(3)
    cluster.run(40_000)
    cluster.start(3)
    cluster.settle()
    cluster.run(10_000)
    topic = cluster.leader.metadata.table.topics["t"]
    assert topic.placements == ()


def test_broker_that_keeps_nothing_else_may_leave() -> None:
    cluster = three_with_topic()
    cluster.kill(3)
    cluster.run(5000)
    leader = cluster.leader_id
    assert leader is not None
    answer = cluster.ask(leader, ApiKey.UNREGISTER_BROKER, 0, {"broker_id": 3})
    assert answer["error_code"] == E.NONE, answer
    assert 3 not in cluster.named(leader)


def test_deleted_topic_is_closed_everywhere() -> None:
    cluster = three_with_topic()
    cluster.produce(2, b"a")
    partitions = [cluster.broker(each).topics.partition("t", 0) for each in (1, 2, 3)]
    body = {"topics": [{"name": "t", "topic_id": UUID(int=0)}], "timeout_ms": 10_000}
    assert cluster.ask(2, ApiKey.DELETE_TOPICS, 6, body)["responses"][0]["error_code"] == E.NONE
    cluster.run(500)
    assert all(each.is_gone for each in partitions)
    assert cluster.produce(3, b"b")["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.topic(at=3)["error_code"] == E.NONE
    cluster.run(500)
    assert cluster.produce(1, b"new")["base_offset"] == 0


def test_end_is_not_told_by_a_broker_that_cannot_ask_the_quorum() -> None:
    cluster = three_with_topic()
    cluster.produce(1, b"a")
    cut_off = cluster.follower_id
    for other in (1, 2, 3):
        if other != cut_off:
            cluster.net.cut(cut_off, other)  # type: ignore[arg-type]
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": LATEST}
    body = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": "t", "partitions": [asked]}],
        "timeout_ms": 1000,
    }
    answer = cluster.ask(cut_off, ApiKey.LIST_OFFSETS, 10, body)["topics"][0]["partitions"][0]
    assert answer["error_code"] == E.OFFSET_NOT_AVAILABLE
    asked["timestamp"] = -2
    answer = cluster.ask(cut_off, ApiKey.LIST_OFFSETS, 10, body)["topics"][0]["partitions"][0]
    assert (answer["error_code"], answer["offset"]) == (E.NONE, 0)
