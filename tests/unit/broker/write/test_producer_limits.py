"""How many idempotent producers are remembered, who makes room for whom, and that nothing is written twice for it."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from anabranch.broker.topics.partition import Partition
from anabranch.broker.write.append_queue import AppendJob
from anabranch.broker.write.producer_limits import ProducerLimits
from anabranch.config import NodeSettings
from anabranch.errors import EarlierBatchRefusedError, OutOfOrderSequenceError, TooManyProducersError
from anabranch.record.batch import BatchHeader, read_header
from anabranch.record.producer_table import ProducerTable
from anabranch.values import Offset, TopicPartition
from support.broker_bench import Bench, batch_of, in_loop, turn

IDLE_MS = 330_000
LIBRDKAFKA_REPEATS_MS = 300_000
"""Its message.timeout.ms, unless it is told otherwise."""


async def written(bench: Bench, partition: Partition, producer_id: int, sequence: int = 0) -> AppendJob:
    batch = batch_of(producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    answered = bench.submit(partition, batch)
    await turn()
    (job,) = answered
    return job


def header_of(producer_id: int, sequence: int) -> BatchHeader:
    return read_header(batch_of(producer_id=producer_id, producer_epoch=0, base_sequence=sequence))


def stand_in(index: int = 0) -> Any:
    """As much of a partition as the limits look at."""
    return SimpleNamespace(
        topic_id=UUID(int=1), id=TopicPartition("t", index), producers=ProducerTable(), is_leader=True
    )


def known(partition: Partition) -> list[int]:
    return list(partition.producers.producers)


@in_loop
async def test_a_partition_remembers_no_more_producers_than_it_may() -> None:
    bench = Bench(producer_ids_per_partition_max=5)
    partition = await bench.topic("t")
    for producer_id in range(20):
        job = await written(bench, partition, producer_id)
        assert isinstance(job.error, TooManyProducersError) == (producer_id >= 5)
    assert known(partition) == [0, 1, 2, 3, 4]
    assert partition.log.end_offset == 5


@in_loop
async def test_those_that_were_silent_the_longest_make_room_once_no_client_repeats_their_batches() -> None:
    bench = Bench(producer_ids_per_partition_max=3)
    partition = await bench.topic("t")
    for producer_id in range(3):
        assert (await written(bench, partition, producer_id)).error is None
    bench.clock.advance(IDLE_MS)
    assert (await written(bench, partition, 0, sequence=1)).error is None
    bench.clock.advance(1)
    assert (await written(bench, partition, 9)).error is None
    assert known(partition) == [0, 9], "both that were silent have gone"
    assert partition.snapshot_offset < 0, "the snapshot would bring them back"


@in_loop
async def test_a_forgotten_producer_goes_on_where_it_was_as_an_unknown_one_does() -> None:
    bench = Bench(producer_ids_per_partition_max=1)
    partition = await bench.topic("t")
    assert (await written(bench, partition, 1)).error is None
    bench.clock.advance(IDLE_MS + 1)
    assert (await written(bench, partition, 2)).error is None
    bench.clock.advance(IDLE_MS + 1)
    assert (await written(bench, partition, 1, sequence=1)).error is None
    assert partition.log.end_offset == 3


@in_loop
async def test_a_repeat_is_known_however_many_ids_are_invented() -> None:
    bench = Bench(producer_ids_per_partition_max=50)
    partition = await bench.topic("t")
    first = await written(bench, partition, 7)
    for producer_id in range(1000, 1200):
        await written(bench, partition, producer_id)
    end = partition.log.end_offset
    again = await written(bench, partition, 7)
    assert (again.error, again.base_offset) == (None, first.base_offset)
    assert partition.log.end_offset == end


@in_loop
async def test_a_refused_producer_may_not_begin_with_a_later_batch() -> None:
    bench = Bench(producer_ids_per_partition_max=1)
    partition = await bench.topic("t")
    assert (await written(bench, partition, 1)).error is None
    bench.clock.advance(10)
    assert isinstance((await written(bench, partition, 2, sequence=0)).error, TooManyProducersError)
    bench.clock.advance(IDLE_MS - 5)
    assert isinstance((await written(bench, partition, 2, sequence=1)).error, EarlierBatchRefusedError)
    assert (await written(bench, partition, 2, sequence=0)).error is None
    assert (await written(bench, partition, 2, sequence=1)).error is None
    assert isinstance((await written(bench, partition, 2, sequence=3)).error, OutOfOrderSequenceError)


@in_loop
async def test_all_partitions_together_remember_no_more_than_the_node_may() -> None:
    bench = Bench(producer_ids_max=10)
    first, second = await bench.topic("t"), await bench.topic("u")
    for producer_id in range(8):
        assert (await written(bench, first, producer_id)).error is None
    outcomes = [(await written(bench, second, producer_id)).error for producer_id in range(8)]
    assert [error is None for error in outcomes] == [True] * 2 + [False] * 6
    bench.clock.advance(IDLE_MS + 1)
    assert (await written(bench, second, 100)).error is None
    assert len(known(first)) + len(known(second)) <= 10


@in_loop
async def test_room_is_found_in_other_partitions_and_what_expired_counts_no_more() -> None:
    bench = Bench(producer_ids_max=4)
    first, second = await bench.topic("t"), await bench.topic("u")
    for producer_id in range(4):
        await written(bench, first, producer_id)
    assert isinstance((await written(bench, second, 9)).error, TooManyProducersError)
    bench.clock.advance(IDLE_MS + 1)
    assert (await written(bench, second, 9)).error is None
    assert (known(first), known(second)) == ([], [9])


@in_loop
async def test_a_table_that_was_larger_is_shortened_when_it_is_read_back() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    for producer_id in range(30):
        await written(bench, partition, producer_id)
    bench.disk.kill()
    again = Bench(bench.disk, producer_ids_per_partition_max=10)
    assert known(again.topics.partition("t", 0)) == list(range(20, 30))


def test_in_the_object_store_a_new_producer_waits_until_others_are_forgotten_by_all() -> None:
    limits = ProducerLimits(NodeSettings.load({"producer.ids.per.partition.max": "2"}))
    partition = stand_in()
    for producer_id in range(2):
        header = header_of(producer_id, 0)
        limits.check(partition, header, 1)
        partition.producers.note(header, Offset(0), 1)
    with pytest.raises(TooManyProducersError):
        limits.check(partition, header_of(9, 0), 1)
    limits.check(partition, header, 1)
    partition.producers.expire(2)
    limits.check(partition, header_of(9, 0), 1)


def test_in_the_object_store_a_refused_producer_may_not_begin_with_a_later_batch() -> None:
    limits = ProducerLimits(NodeSettings.load({"producer.ids.per.partition.max": "1"}))
    partition = stand_in()
    partition.producers.note(header_of(1, 0), Offset(0), 1)
    with pytest.raises(TooManyProducersError) as refusal:
        limits.check(partition, header_of(9, 5), 10)
    limits.refused.told(partition, header_of(9, 5), refusal.value, 10)
    partition.producers.expire(2)
    with pytest.raises(EarlierBatchRefusedError):
        limits.check(partition, header_of(9, 6), 20)
    limits.check(partition, header_of(9, 5), 30)
    limits.check(partition, header_of(9, 6), 30)


@in_loop
async def test_a_refused_producer_may_begin_anywhere_once_its_client_no_longer_repeats_the_batch() -> None:
    bench = Bench(producer_ids_per_partition_max=1)
    partition = await bench.topic("t")
    assert (await written(bench, partition, 1)).error is None
    assert isinstance((await written(bench, partition, 2, sequence=5)).error, TooManyProducersError)
    bench.clock.advance(IDLE_MS - 1)
    assert isinstance((await written(bench, partition, 2, sequence=101)).error, EarlierBatchRefusedError)
    bench.clock.advance(2)
    assert (await written(bench, partition, 2, sequence=101)).error is None, (
        "that it came meanwhile counts not"
    )


def test_a_producer_is_not_forgotten_while_librdkafka_repeats_its_batches() -> None:
    assert NodeSettings.load({}).producer_id_idle_ms == IDLE_MS > LIBRDKAFKA_REPEATS_MS


# --- what others decide ----------------------------------------------------------------------------------------------


@in_loop
async def test_what_is_read_back_counts_and_is_shortened_the_oldest_first() -> None:
    bench = Bench()
    first, second = await bench.topic("t"), await bench.topic("u")
    for producer_id in range(8):
        await written(bench, first if producer_id % 2 else second, producer_id)
        bench.clock.advance(1)
    await bench.broker.close()
    again = Bench(bench.disk, producer_ids_max=5)
    one, two = again.topics.partition("t", 0), again.topics.partition("u", 0)
    assert sorted(known(one) + known(two)) == [3, 4, 5, 6, 7]
    assert isinstance((await written(again, one, 100)).error, TooManyProducersError)
    assert one.log.end_offset == 4


@in_loop
async def test_what_a_crash_leaves_counts_too() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    for producer_id in range(4):
        await written(bench, partition, producer_id)
    bench.disk.kill()
    again = Bench(bench.disk, producer_ids_max=4)
    partition = again.topics.partition("t", 0)
    assert len(known(partition)) == 4
    assert isinstance((await written(again, partition, 100)).error, TooManyProducersError)


def test_what_leaders_send_is_shortened_and_what_is_led_here_is_not() -> None:
    limits = ProducerLimits(NodeSettings.load({"producer.ids.max": "6"}))
    led, followed, other = stand_in(0), stand_in(1), stand_in(2)
    followed.is_leader = other.is_leader = False
    limits.partitions = lambda: (led, followed, other)
    for producer_id in range(4):
        limits.admit(led, header_of(producer_id, 0), 1)
        led.producers.note(header_of(producer_id, 0), Offset(0), 1)
    for now_ms in range(10, 16):
        partition = followed if now_ms % 2 else other
        partition.producers.replay(header_of(now_ms, 0), now_ms * 1000)
        limits.followed(partition, 1, now_ms * 1000)
    assert (known(led), known(followed), known(other)) == ([0, 1, 2, 3], [15], [14])
    assert limits.forgotten_total == 4
    with pytest.raises(TooManyProducersError):
        limits.admit(led, header_of(100, 0), 16_000)


def test_a_table_read_back_in_a_worker_is_counted_before_the_next_producer_is_taken() -> None:
    limits = ProducerLimits(NodeSettings.load({"producer.ids.max": "3"}))
    led, late = stand_in(0), stand_in(1)
    limits.partitions = lambda: (led, late)
    limits.keep(0, is_start=True)
    for producer_id in range(3):
        late.producers.replay(header_of(producer_id, 0), 1000)
    limits.shorten(late)
    with pytest.raises(TooManyProducersError):
        limits.admit(led, header_of(9, 0), 2000)
