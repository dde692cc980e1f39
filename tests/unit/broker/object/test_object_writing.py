"""From a batch to its acknowledgement: gathered, stored, committed, applied; and what goes wrong on the way."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from anabranch.cluster.metadata.entries import topic_removed_entry
from anabranch.errors import (
    EarlierBatchRefusedError,
    NotOwnerError,
    RequestTimedOutError,
    StoreUnavailableError,
    UnknownTopicOrPartitionError,
)
from anabranch.modes.object.writer import GIVE_UP_MS
from anabranch.objects.layout.format import index_in, items_of, read_footer, read_index
from anabranch.objects.store import Buffer
from anabranch.record.batch import batch_spans
from anabranch.record.builder import BatchBuilder
from anabranch.values import SegmentState
from support.writing_world import TOPIC_ID, WritingBroker, WritingWorld, in_writing_world

Test = Callable[[WritingWorld, WritingBroker], Coroutine[Any, Any, None]]


def with_one_broker(test: Test) -> Callable[[], None]:
    """One broker that is registered, a store and a quorum that do what they are asked."""

    def run() -> None:
        async def begin(world: WritingWorld) -> None:
            world.grow(1)
            await asyncio.sleep(1)
            await test(world, world.brokers[1])  # type: ignore[index]

        in_writing_world(1, begin)

    return run


def batch(value: bytes = b"v", sequence: int = -1, producer: int = 5, records: int = 1) -> bytearray:
    fields: dict[str, Any] = {}
    if sequence >= 0:
        fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
    builder = BatchBuilder(**fields)
    for _ in range(records):
        builder.add(None, value, timestamp_ms=1)
    return builder.build()


# --- the usual way ---------------------------------------------------------------------------------------------------


@with_one_broker
async def test_a_batch_is_acknowledged_with_its_offset(world: WritingWorld, broker: WritingBroker) -> None:
    first, second = broker.submit(0, batch(b"a", records=3)), broker.submit(0, batch(b"b"))
    other = broker.submit(1, batch(b"c"))
    assert [await each for each in (first, second, other)] == [0, 3, 0]
    assert world.kept(0) == [b"a", b"a", b"a", b"b"]
    assert world.kept(1) == [b"c"]


@with_one_broker
async def test_what_is_gathered_for_all_partitions_is_one_object(
    world: WritingWorld, broker: WritingBroker
) -> None:
    await asyncio.gather(*(broker.submit(number % 2, batch(b"%d" % number)) for number in range(10)))
    (name,) = world.store.names
    data = await world.store.get(name)
    footer = read_footer(data)
    index = index_in(data, footer)
    assert index is not None
    ranges = read_index(index, footer)
    assert [(each.key, each.batch_count) for each in ranges] == [((TOPIC_ID, 0), 5), ((TOPIC_ID, 1), 5)]
    for each in ranges:
        assert len(list(items_of(data[each.position : each.end], each))) == 5
        assert len(list(batch_spans(data, each.position, each.end))) == 5


@with_one_broker
async def test_nobody_is_told_before_this_broker_has_applied_the_commit(
    world: WritingWorld, broker: WritingBroker
) -> None:
    broker.is_applying = False
    answer = broker.submit(0, batch())
    await asyncio.sleep(5)
    assert world.kept(0) == [b"v"]
    assert not answer.done()
    broker.is_applying = True
    assert await answer == 0


@with_one_broker
async def test_acks_0_is_gathered_and_its_bytes_count_until_it_is_kept(
    world: WritingWorld, broker: WritingBroker
) -> None:
    answer = broker.submit(0, batch(), acks=0)
    await asyncio.sleep(0.05)
    assert broker.writing.held_bytes == len(batch())
    await answer
    assert broker.writing.held_bytes == 0
    assert broker.core.bytes_in_total == len(batch())
    assert world.kept(0) == [b"v"]


@with_one_broker
async def test_readers_get_the_object_before_producers_are_told(
    world: WritingWorld, broker: WritingBroker
) -> None:
    seen: list[tuple[str, bool]] = []
    answer = broker.submit(0, batch())

    def flushed(object_id: Any, pieces: list[Buffer]) -> None:
        assert b"".join(pieces) == world.store.content(object_id.name)
        seen.append((object_id.name, answer.done()))

    broker.writing.on_flushed = flushed  # type: ignore[assignment]
    await answer
    assert seen == [(world.store.names[0], False)]


@with_one_broker
async def test_one_huge_batch_is_an_object_of_its_own(world: WritingWorld, broker: WritingBroker) -> None:
    huge, small = broker.submit(0, batch(bytes(30_000))), broker.submit(0, batch(b"s"))
    assert [await huge, await small] == [0, 1]
    assert len(world.store.names) == 2


@with_one_broker
async def test_a_state_is_shown_for_every_segment(world: WritingWorld, broker: WritingBroker) -> None:
    world.store.slow_ms_max = 60_000
    for _ in range(4):
        broker.submit(0, batch(bytes(world.limits.gather_bytes)))
    answer = broker.submit(0, batch())
    await asyncio.sleep(0.5)
    states = {line.state: line for line in broker.writing.summary()}
    assert [states[state].segments for state in (SegmentState.FLUSHING, SegmentState.SEALED)] == [3, 1]
    active = states[SegmentState.ACTIVE]
    assert (active.segments, active.batches) == (1, 1)
    assert active.age_ms_max >= 500
    assert active.size > 60
    assert states[SegmentState.FLUSHED].segments == 0
    world.store.slow_ms_max = 5
    await answer
    flushed = broker.writing.summary()[-1]
    assert (flushed.state, flushed.segments, flushed.batches) == (SegmentState.FLUSHED, 5, 5)
    assert broker.writing.segments() == []


# --- the store fails -------------------------------------------------------------------------------------------------


@with_one_broker
async def test_a_put_that_succeeded_unheard_is_found_and_no_second_object_made(
    world: WritingWorld, broker: WritingBroker
) -> None:
    world.store.hides = 1.0
    assert await broker.submit(0, batch()) == 0
    assert len(world.store.names) == 1
    assert world.store.puts[world.store.names[0]] == 2
    assert world.kept(0) == [b"v"]


@with_one_broker
async def test_a_name_with_other_contents_is_never_taken_for_ours(
    world: WritingWorld, broker: WritingBroker
) -> None:
    assert world.truth().objects.incarnation is not None
    name = f"segments/{world.truth().objects.incarnation:016x}-{broker.epoch}-0"
    world.store.put_now(name, [b"of an earlier life, from which the metadata was restored"])
    assert isinstance(await broker.submit(0, batch(b"lost")), StoreUnavailableError)
    assert await broker.submit(0, batch(b"kept")) == 0
    assert world.kept(0) == [b"kept"]


@with_one_broker
async def test_a_producer_that_was_timed_out_finds_its_original(
    world: WritingWorld, broker: WritingBroker
) -> None:
    world.store.is_away = True
    late = broker.submit(0, batch(b"once", sequence=0), timeout_ms=2000)
    assert isinstance(await late, RequestTimedOutError)
    again = broker.submit(0, batch(b"once", sequence=0), timeout_ms=20_000)
    world.store.is_away = False
    assert await again == 0
    assert world.kept(0) == [b"once"]


@with_one_broker
async def test_a_repeat_that_comes_while_its_original_is_open_is_answered_with_its_offset(
    world: WritingWorld, broker: WritingBroker
) -> None:
    await broker.submit(0, batch(b"before"))
    answers = [broker.submit(0, batch(b"once", sequence=0)) for _ in range(2)]
    assert [await each for each in answers] == [1, 1]
    assert world.kept(0) == [b"before", b"once"]


@with_one_broker
async def test_a_store_that_stays_away_is_given_up_and_later_records_go_on(
    world: WritingWorld, broker: WritingBroker
) -> None:
    world.store.is_away = True
    answers = [broker.submit(0, batch(b"lost", sequence=each)) for each in range(3)]
    await asyncio.sleep(1)
    answers.append(broker.submit(0, batch(b"lost too", sequence=3)))
    assert all([isinstance(await each, StoreUnavailableError) for each in answers])
    assert GIVE_UP_MS <= world.clock.monotonic_ms() <= GIVE_UP_MS + 10_000
    assert broker.writing.held_bytes == broker.core.queue.bytes_held == 0
    # What was sent before the producer heard of it is refused like them, and sent again in order it is kept.
    world.store.is_away = False
    assert isinstance(await broker.submit(0, batch(b"4", sequence=4)), EarlierBatchRefusedError)
    for sequence in range(5):
        assert await broker.submit(0, batch(b"%d" % sequence, sequence=sequence)) == sequence
    assert world.kept(0) == [b"0", b"1", b"2", b"3", b"4"]


@with_one_broker
async def test_a_producer_with_many_under_way_keeps_its_order_when_one_object_fails(
    world: WritingWorld, broker: WritingBroker
) -> None:
    """The first object cannot be stored, the ones behind it can."""
    full = world.limits.gather_bytes
    world.store.refused_names = lambda name: name.endswith("-0")
    answers = [broker.submit(0, batch(bytes(full), sequence=each)) for each in range(3)]
    results = [await each for each in answers]
    assert all(isinstance(each, StoreUnavailableError) for each in results)
    again = [broker.submit(0, batch(b"%d" % each, sequence=each)) for each in range(3)]
    assert [await each for each in again] == [0, 1, 2]
    assert world.kept(0) == [b"0", b"1", b"2"]
    assert broker.writing.void_total == 3
    assert broker.table.objects.last_number(broker.id, broker.epoch or 0) == 3  # Three are void.


@with_one_broker
async def test_what_is_held_is_bounded_and_more_is_refused(
    world: WritingWorld, broker: WritingBroker
) -> None:
    world.store.is_away = True
    size = world.limits.gather_bytes
    count = world.limits.held_bytes_max // size
    late = [broker.submit(0, batch(bytes(size)), timeout_ms=1000) for _ in range(count)]
    assert all([isinstance(await each, RequestTimedOutError) for each in late])
    assert broker.writing.is_crowded
    refused = [broker.submit(0, batch(bytes(size)), timeout_ms=1000) for _ in range(20)]
    assert all([isinstance(await each, StoreUnavailableError) for each in refused])
    assert broker.writing.held_bytes <= world.limits.held_bytes_max + 2 * size
    world.store.is_away = False
    await asyncio.sleep(10)
    assert broker.writing.held_bytes == 0
    assert len(world.kept(0)) == count
    assert not broker.writing.is_crowded
    assert await broker.submit(0, batch()) == count


@with_one_broker
async def test_while_the_store_is_away_nobody_else_waits_for_room_in_the_queue(
    world: WritingWorld, broker: WritingBroker
) -> None:
    world.store.is_away = True
    broker.submit(0, batch(bytes(world.limits.gather_bytes)))
    await asyncio.sleep(1)
    assert broker.writing.held_bytes > 0
    assert broker.core.queue.bytes_held == 0


@with_one_broker
async def test_a_put_that_hangs_is_tried_again(world: WritingWorld, broker: WritingBroker) -> None:
    world.store.hangs = 1.0
    answer = broker.submit(0, batch())
    await asyncio.sleep(5)
    world.store.hangs = 0.0
    assert await answer == 0


def test_that_the_store_is_away_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    @with_one_broker
    async def away(world: WritingWorld, broker: WritingBroker) -> None:
        world.store.is_away = True
        answer = broker.submit(0, batch())
        await asyncio.sleep(20)
        assert broker.writing.is_store_away
        world.store.is_away = False
        await answer
        assert not broker.writing.is_store_away

    with caplog.at_level(logging.INFO):
        away()
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "nothing can be written to memory:, and it is tried again: 503",
        "memory: takes records again",
    ]


# --- the broker dies -------------------------------------------------------------------------------------------------


@with_one_broker
async def test_killed_between_put_and_commit_it_leaves_an_orphan_and_the_retry_is_kept_once(
    world: WritingWorld, broker: WritingBroker
) -> None:
    world.loses = 1.0
    lost = broker.submit(0, batch(b"once", sequence=0))
    await asyncio.sleep(2)
    assert len(world.store.names) == 1
    broker.crash()
    world.loses = 0.0
    broker.boot()
    assert await broker.submit(0, batch(b"once", sequence=0)) == 0
    assert not lost.done()
    assert world.kept(0) == [b"once"]
    assert len(world.store.names) == 2  # The orphan, under a name that is not used again.


@with_one_broker
async def test_killed_between_commit_and_answer_the_retry_finds_its_original(
    world: WritingWorld, broker: WritingBroker
) -> None:
    broker.is_applying = False
    lost = broker.submit(0, batch(b"once", sequence=0))
    await asyncio.sleep(2)
    assert world.kept(0) == [b"once"]
    broker.crash()
    broker.boot()
    assert await broker.submit(0, batch(b"once", sequence=0)) == 0
    assert not lost.done()
    assert world.kept(0) == [b"once"]


@with_one_broker
async def test_a_proposal_of_a_dead_broker_that_comes_late_does_not_count(
    world: WritingWorld, broker: WritingBroker
) -> None:
    broker.submit(0, batch(b"once", sequence=0))
    await asyncio.sleep(1)
    commit = world.log[-1]
    broker.crash()
    broker.boot()
    assert await broker.submit(0, batch(b"twice")) == 1
    world.log.append(commit)
    assert await broker.submit(0, batch(b"thrice")) == 2
    assert world.kept(0) == [b"once", b"twice", b"thrice"]


# --- the cluster -----------------------------------------------------------------------------------------------------


@with_one_broker
async def test_a_fenced_broker_sends_producers_away_at_once(
    world: WritingWorld, broker: WritingBroker
) -> None:
    world.store.is_away = True
    waiting = broker.submit(0, batch())
    await asyncio.sleep(1)
    world.fence(broker, is_fenced=True)
    assert isinstance(await waiting, NotOwnerError)
    assert isinstance(await broker.submit(0, batch()), NotOwnerError)
    world.fence(broker, is_fenced=False)
    world.store.is_away = False
    await asyncio.sleep(1)
    assert await broker.submit(0, batch(b"later")) == 0


@with_one_broker
async def test_a_broker_that_the_quorum_does_not_hear_fences_itself(
    world: WritingWorld, broker: WritingBroker
) -> None:
    world.loses = 1.0
    waiting = broker.submit(0, batch(b"once", sequence=0))
    await asyncio.sleep(1)
    broker.is_cut_off = True
    began_ms = world.clock.monotonic_ms()
    assert isinstance(await waiting, NotOwnerError)
    assert isinstance(await broker.submit(0, batch()), NotOwnerError)
    assert world.clock.monotonic_ms() - began_ms <= 2000
    world.loses, broker.is_cut_off = 0.0, False
    await asyncio.sleep(2)
    assert broker.table.objects.last_number(broker.id, broker.epoch or 0) == 0  # The open number is void.
    assert await broker.submit(0, batch(b"once", sequence=0)) == 0
    assert world.kept(0) == [b"once"]


@with_one_broker
async def test_a_broker_that_is_registered_anew_begins_at_0_again(
    world: WritingWorld, broker: WritingBroker
) -> None:
    await broker.submit(0, batch())
    before = broker.epoch
    await broker.register_anew()
    await asyncio.sleep(1)
    assert await broker.submit(0, batch()) == 1
    assert broker.epoch != before
    incarnation = f"{broker.table.objects.incarnation:016x}"
    assert world.store.names == [f"segments/{incarnation}-{epoch}-0" for epoch in (before, broker.epoch)]


@with_one_broker
async def test_while_another_registration_is_under_way_producers_are_sent_elsewhere(
    world: WritingWorld, broker: WritingBroker
) -> None:
    await broker.submit(0, batch(b"before"))
    known, broker.epoch = broker.epoch, None
    assert isinstance(await broker.submit(0, batch(b"meanwhile")), NotOwnerError)
    broker.epoch = known  # The beat that said so was of the past.
    assert await broker.submit(0, batch(b"after")) == 1
    assert world.kept(0) == [b"before", b"after"]


@with_one_broker
async def test_records_for_a_topic_that_goes_meanwhile_are_told_so(
    world: WritingWorld, broker: WritingBroker
) -> None:
    answer = broker.submit(0, batch())
    world.agree(topic_removed_entry("t"))
    assert isinstance(await answer, UnknownTopicOrPartitionError)


@with_one_broker
async def test_over_what_a_snapshot_jumps_producers_are_told_to_ask_again(
    world: WritingWorld, broker: WritingBroker
) -> None:
    broker.is_applying = False
    answer = broker.submit(0, batch(b"once", sequence=0))
    await asyncio.sleep(1)
    broker.jump()
    assert isinstance(await answer, RequestTimedOutError)
    broker.is_applying = True
    assert await broker.submit(0, batch(b"once", sequence=0)) == 0
    assert world.kept(0) == [b"once"]


def test_what_comes_before_the_broker_is_registered_waits_for_it() -> None:
    async def early(world: WritingWorld) -> None:
        world.slow_ms_max = 2000
        world.grow(1)
        broker = world.brokers[1]  # type: ignore[index]
        assert await broker.submit(0, batch()) == 0

    in_writing_world(3, early)


# --- the end ---------------------------------------------------------------------------------------------------------


@with_one_broker
async def test_a_broker_that_stops_stores_what_it_has(world: WritingWorld, broker: WritingBroker) -> None:
    answer = broker.submit(0, batch())
    await asyncio.sleep(0)
    await broker.writing.stop()
    assert await answer == 0
    assert isinstance(await broker.submit(0, batch()), NotOwnerError)


@with_one_broker
async def test_a_broker_that_stops_does_not_wait_for_a_store_that_is_away(
    world: WritingWorld, broker: WritingBroker
) -> None:
    world.store.is_away = True
    answer = broker.submit(0, batch())
    await asyncio.sleep(1)
    began_ms = world.clock.monotonic_ms()
    await broker.writing.stop(wait_ms_max=3000)
    assert world.clock.monotonic_ms() - began_ms <= 3100
    assert isinstance(await answer, NotOwnerError)
    await asyncio.sleep(100)  # Nothing of it is left behind.
    assert broker.core.queue.bytes_held == 0
