"""Where a group's records lie, and how they come back."""

import errno
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import text

from anabranch.broker.coordination.offsets_topic import OffsetsTopic, java_hash
from anabranch.errors import CoordinatorNotAvailableError, InvalidPartitionsError
from support.broker_bench import Bench, in_loop, turn


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


@given(text(max_size=300))
def test_hash_follows_the_definition(words: str) -> None:
    value = 0
    data = words.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[position : position + 2], "big")) % 2**32
    assert java_hash(words) % 2**32 == (0 if value == 2**31 else value)


@in_loop
async def test_groups_with_a_negative_hash_lie_where_kafka_looks_for_them() -> None:
    bench = Bench(offsets_topic_num_partitions=50)
    topic = OffsetsTopic(bench.core, bench.topics)
    await topic.append("my-group", [(b"k", b"v")])
    ends = [bench.topics.partition("__consumer_offsets", index).log.end_offset for index in range(50)]
    assert ends.index(1) == 1906497762 % 50
    assert sum(ends) == 1


class Coordinator:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes | None]] = []
        self.is_loaded = False
        self._shard: Any = None

    def take_over(self, index: int, generation: int) -> object:
        self._shard = SimpleNamespace(index=index)
        return self._shard

    def shard(self, index: int) -> object:
        return self._shard

    def replay(self, shard: object, key: bytes, value: bytes | None) -> None:
        assert shard is self._shard
        assert not self.is_loaded
        self.records.append((key, value))

    def loaded(self, shard: object) -> None:
        assert shard is self._shard
        self.is_loaded = True


async def load_alone(bench: Bench) -> Any:
    coordinator: Any = Coordinator()
    topic = OffsetsTopic(bench.core, bench.topics)
    topic.attach(coordinator)
    topic.start()
    await turn()
    return coordinator


@in_loop
async def test_records_come_back_in_order_with_their_tombstones() -> None:
    bench = Bench(offsets_topic_num_partitions=1)
    topic = OffsetsTopic(bench.core, bench.topics)
    await topic.append("g", [(b"a", b"1"), (b"b", b"2")])
    await topic.append("g", [(b"a", None)])
    coordinator = await load_alone(bench.again())
    assert coordinator.records == [(b"a", b"1"), (b"b", b"2"), (b"a", None)]
    assert coordinator.is_loaded


@in_loop
async def test_without_the_topic_there_is_nothing_to_load() -> None:
    bench = Bench()
    coordinator = await load_alone(bench)
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


@in_loop
async def test_number_of_partitions_stays_for_groups_are_found_by_it() -> None:
    bench = Bench(offsets_topic_num_partitions=2)
    await OffsetsTopic(bench.core, bench.topics).append("g", [(b"a", b"1")])
    with pytest.raises(InvalidPartitionsError):
        await bench.topics.add_partitions("__consumer_offsets", 3)
    assert len(bench.topics.known("__consumer_offsets").partitions) == 2
