"""A broker that comes back with an empty disk opens hundreds of partitions: side by side, and each by itself."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.broker.topics.kept_partitions import KeptPartitions
from anabranch.broker.topics.partition import Partition
from anabranch.cluster.metadata.rows import Topic
from anabranch.errors import StorageError
from anabranch.values import TopicPartition
from anabranch.wire.api_keys import ApiKey
from support.broker_cluster import BrokerCluster, close_all, cluster_of
from support.form_cluster import FormCluster

TOPICS = 100


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


def make_topics(cluster: BrokerCluster) -> list[str]:
    names = [f"topic-{number:03d}" for number in range(TOPICS)]
    rows = [
        {"name": name, "num_partitions": 1, "replication_factor": 3, "assignments": [], "configs": []}
        for name in names
    ]
    answer = cluster.ask(1, ApiKey.CREATE_TOPICS, 7, {"topics": rows, "timeout_ms": 30_000})
    assert {row["error_code"] for row in answer["topics"]} == {0}
    return names


def open_at(cluster: BrokerCluster, broker_id: int, names: list[str]) -> int:
    found = [cluster.broker(broker_id).topics.find(name) for name in names]
    return sum(state is not None and state.partitions[0] is not None for state in found)


def test_partitions_of_many_topics_are_opened_in_few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(3)
    names = make_topics(cluster)
    cluster.kill(3, lose_disk=True)
    cluster.run(4000)
    batches: list[int] = []
    open_many = KeptPartitions.open_new_of_many

    async def counted(self: KeptPartitions, wanted: Any) -> list[list[Partition] | Exception]:
        batches.append(len(wanted))
        return await open_many(self, wanted)

    monkeypatch.setattr(KeptPartitions, "open_new_of_many", counted)
    cluster.start(3)
    cluster.until(lambda: open_at(cluster, 3, names) == TOPICS)
    assert sum(batches) >= TOPICS
    assert len(batches) <= 10


def test_one_that_cannot_be_opened_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(3)
    names = make_topics(cluster)
    cluster.kill(3, lose_disk=True)
    cluster.run(4000)
    is_full = True
    make = KeptPartitions.make_folders

    def refusing(self: KeptPartitions, topic: Topic, ids: list[TopicPartition]) -> set[TopicPartition]:
        if is_full and topic.name == names[7]:
            raise StorageError("there is no room")
        return make(self, topic, ids)

    monkeypatch.setattr(KeptPartitions, "make_folders", refusing)
    cluster.start(3)
    cluster.until(lambda: open_at(cluster, 3, names) == TOPICS - 1)
    assert open_at(cluster, 3, names[7:8]) == 0
    is_full = False
    cluster.until(lambda: open_at(cluster, 3, names) == TOPICS)


def test_no_log_is_opened_that_is_still_open_in_another_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic goes over to branches while others of the same turn are closed."""
    cluster = FormCluster("ring", 2)
    others = ("first", "second")
    rows = [
        {"name": name, "num_partitions": 1, "replication_factor": 3, "assignments": [], "configs": []}
        for name in others
    ]
    cluster.ask(1, ApiKey.CREATE_TOPICS, 7, {"topics": rows, "timeout_ms": 10_000, "validate_only": False})
    cluster.run(1000)
    topics = cluster.broker(3).topics
    closing: list[str] = []
    may_close = {name: asyncio.Event() for name in others}
    opened: list[tuple[list[str], int]] = []
    discard, open_many = KeptPartitions.discard, KeptPartitions.open_new_of_many

    async def held(self: KeptPartitions, partitions: list[Partition], *what: str) -> None:
        if self is topics.kept and partitions and (name := partitions[0].id.topic) in may_close:
            closing.append(name)
            await may_close[name].wait()
        await discard(self, partitions, *what)

    async def noted(self: KeptPartitions, wanted: Any) -> list[list[Partition] | Exception]:
        if self is topics.kept:
            opened.append(([each.topic.name for each in wanted if each.indexes], len(topics._closing)))
        return await open_many(self, wanted)

    monkeypatch.setattr(KeptPartitions, "discard", held)
    monkeypatch.setattr(KeptPartitions, "open_new_of_many", noted)
    move_off(cluster, "first", 0)
    cluster.until(lambda: closing == ["first"])
    move_off(cluster, "second", 0)
    cluster.until(lambda: len(topics._unopened) == 1)
    move_off(cluster, "t", 1)
    cluster.until(lambda: len(topics._unopened) == 2)
    may_close["first"].set()
    cluster.until(lambda: closing == ["first", "second"])
    cluster.alter("branch")
    cluster.until(lambda: bool(topics._closing))
    may_close["second"].set()
    cluster.until(lambda: sum(names == ["t"] for names, _ in opened) >= 1 and topics.is_settled)
    assert [count for names, count in opened if names] == [0] * sum(bool(names) for names, _ in opened)
    state = topics.find("t")
    assert state is not None
    assert all(partition is not None for partition in state.partitions)


def move_off(cluster: BrokerCluster, name: str, index: int) -> None:
    row = {"partition_index": index, "replicas": [1, 2]}
    body = {"timeout_ms": 10_000, "topics": [{"name": name, "partitions": [row]}]}
    assert cluster.leader_id is not None
    answer = cluster.ask(cluster.leader_id, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, body)
    assert answer["responses"][0]["partitions"][0]["error_code"] == 0, answer
