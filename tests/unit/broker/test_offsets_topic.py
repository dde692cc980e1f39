"""Where a group's records lie, and how they come back."""

import errno
from typing import Any

import pytest

from anabranch.broker.offsets_topic import OffsetsTopic, java_hash
from anabranch.errors import CoordinatorNotAvailableError
from support.broker_bench import Bench, in_loop


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("group", 98629247),
        ("hello", 99162322),
        ("my-group", -1906497762),
        ("polygenelubricants", 0),  # Its hash is -2**31, which has no absolute value in Java; Kafka takes 0.
        ("\U0001f600", 1772899),
    ],
)
def test_hash_is_javas(text: str, value: int) -> None:
    assert java_hash(text) == value


@in_loop
async def test_groups_with_a_negative_hash_lie_where_kafka_looks_for_them() -> None:
    bench = Bench(offsets_topic_num_partitions=50)
    topic = OffsetsTopic(bench.core, bench.topics)
    await topic.append("my-group", [(b"k", b"v")])
    ends = [bench.topics.partition("__consumer_offsets", index).log.end_offset for index in range(50)]
    assert ends.index(1) == 1906497762 % 50
    assert sum(ends) == 1


class Coordinator:
    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes | None]] = []
        self.is_loaded = False

    def replay(self, key: bytes, value: bytes | None) -> None:
        assert not self.is_loaded
        self.records.append((key, value))

    def loaded(self) -> None:
        self.is_loaded = True


@in_loop
async def test_records_come_back_in_order_with_their_tombstones() -> None:
    bench = Bench(offsets_topic_num_partitions=1)
    topic = OffsetsTopic(bench.core, bench.topics)
    await topic.append("g", [(b"a", b"1"), (b"b", b"2")])
    await topic.append("g", [(b"a", None)])
    again = bench.again()
    coordinator: Any = Coordinator()
    await OffsetsTopic(again.core, again.topics).replay(coordinator)
    assert coordinator.records == [(b"a", b"1"), (b"b", b"2"), (b"a", None)]
    assert coordinator.is_loaded


@in_loop
async def test_without_the_topic_there_is_nothing_to_load() -> None:
    bench = Bench()
    coordinator: Any = Coordinator()
    await OffsetsTopic(bench.core, bench.topics).replay(coordinator)
    assert coordinator.is_loaded
    assert bench.topics.find("__consumer_offsets") is None


@in_loop
async def test_disk_that_refuses_makes_the_coordinator_unavailable() -> None:
    bench = Bench(offsets_topic_num_partitions=1)
    topic = OffsetsTopic(bench.core, bench.topics)
    bench.disk.fail_next("create", errno.ENOSPC, path_contains="__consumer_offsets")
    with pytest.raises(CoordinatorNotAvailableError):
        await topic.append("g", [(b"a", b"1")])
    await topic.append("g", [(b"a", b"1")])
