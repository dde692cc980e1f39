"""BlockCache and its loads: one GET for many, within a limit of bytes, and a store that is slow, away or wrong."""

import asyncio
import logging
from typing import Any

import pytest

from anabranch.broker.object.cache.block_cache import (
    ANSWER_BYTES_ALWAYS,
    BAD_MS,
    GONE_MS,
    Answer,
    BlockCache,
    Loan,
)
from anabranch.broker.object.cache.block_loads import FAILURES_MIN, GET_MS_MAX, PAUSE_MS_FIRST, PAUSE_MS_MAX
from anabranch.broker.object.cache.blocks import (
    BLOCK_BYTES,
    BLOCK_BYTES_GATHERED,
    Block,
    BlockKey,
    Origin,
    keys_of,
)
from anabranch.errors import ObjectGoneError, QuorumBusyError, StoreRefusedError, StoreUnavailableError
from anabranch.objects.layout.batch_walk import Walk
from anabranch.objects.layout.names import ObjectId, ObjectKind, Row
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.loop import VirtualLoop
from anabranch.values import Offset
from support.object_world import CountingStore, on_virtual_loop

MIB = 2**20
AWAY = StoreUnavailableError("no answer")


def gathered(number: int) -> ObjectId:
    return ObjectId(7, 1, number)


def key(number: int) -> BlockKey:
    return BlockKey(gathered(number), 0)


def filled(count: int, size: int = MIB) -> CountingStore:
    store = CountingStore()
    for number in range(count):
        store.objects[gathered(number).name] = bytes([number % 256]) * size
    return store


class Waiter:
    """Counts how often it is woken."""

    def __init__(self) -> None:
        self.count = 0
        self.event = asyncio.Event()

    def woken(self) -> None:
        self.count += 1
        self.event.set()


async def loaded(cache: BlockCache, block_key: BlockKey) -> None:
    waiter = Waiter()
    cache.want(block_key, waiter.woken)
    await waiter.event.wait()


def test_what_brokers_gather_is_one_block_and_merged_objects_are_cut() -> None:
    merged = ObjectId(7, 1, 0, ObjectKind.MERGED)
    assert keys_of(gathered(0), 100, BLOCK_BYTES_GATHERED) == [key(0)]
    assert [each.number for each in keys_of(merged, BLOCK_BYTES - 1, 3 * BLOCK_BYTES)] == [0, 1, 2]


@on_virtual_loop
async def test_many_waiters_share_one_get(clock: FakeClock) -> None:
    store = filled(1)
    cache = BlockCache(store, clock, 64 * MIB)
    store.open.clear()
    waiters = [Waiter() for _ in range(100)]
    for waiter in waiters:
        cache.want(key(0), waiter.woken)
    await asyncio.sleep(1)
    assert [waiter.count for waiter in waiters] == [0] * 100
    store.open.set()
    await waiters[0].event.wait()
    assert [waiter.count for waiter in waiters] == [1] * 100
    block = cache.get(key(0))
    assert block is not None
    assert (block.data, len(store.gets)) == (store.objects[gathered(0).name], 1)


@on_virtual_loop
async def test_the_first_to_wait_may_leave(clock: FakeClock) -> None:
    store = filled(1)
    cache = BlockCache(store, clock, 64 * MIB)
    store.open.clear()
    first, second = Waiter(), Waiter()
    cache.want(key(0), first.woken)
    await asyncio.sleep(1)
    cache.want(key(0), second.woken)
    cache.leave([key(0)], first.woken)
    store.open.set()
    await second.event.wait()
    assert (first.count, second.count, len(store.gets)) == (0, 1, 1)


@on_virtual_loop
async def test_a_get_goes_on_for_the_cache_when_all_have_left(clock: FakeClock) -> None:
    store = filled(1)
    cache = BlockCache(store, clock, 64 * MIB)
    store.open.clear()
    waiter = Waiter()
    cache.want(key(0), waiter.woken)
    await asyncio.sleep(1)
    cache.leave([key(0)], waiter.woken)
    store.open.set()
    await asyncio.sleep(1)
    assert waiter.count == 0
    assert cache.get(key(0)) is not None


@on_virtual_loop
async def test_a_failure_is_everybodys_and_one_try_later_helps_all(clock: FakeClock) -> None:
    store = filled(1)
    store.failures = [AWAY]
    cache = BlockCache(store, clock, 64 * MIB)
    waiters = [Waiter() for _ in range(10)]
    for waiter in waiters:
        cache.want(key(0), waiter.woken)
    await waiters[0].event.wait()
    assert ([waiter.count for waiter in waiters], len(store.gets)) == ([1] * 10, 2)


def test_a_timer_that_comes_as_early_as_no_clock_can_tell_is_not_set_again() -> None:
    """2.281 s and 0.1 s make a little more than 2.381 s."""
    clock = FakeClock()
    loop = VirtualLoop(clock, lambda: False)

    async def fail_often() -> None:
        for _ in range(50):
            store = filled(1)
            store.failures = [AWAY]
            await loaded(BlockCache(store, clock, 64 * MIB), key(0))

    task = loop.create_task(fail_often())
    for _ in range(5000):
        if task.done():
            break
        assert loop.due_ms is not None
        clock.advance(max(0, loop.due_ms - clock.monotonic_ms()))
        loop.turn()
    is_done = task.done()
    task.cancel()
    loop.run_for(0)
    loop.close()
    assert is_done, "it kept the loop busy, and no time passed"


@on_virtual_loop
async def test_nobody_asks_again_for_what_nobody_waits_for(clock: FakeClock) -> None:
    store = filled(1)
    store.is_away = AWAY
    cache = BlockCache(store, clock, 64 * MIB)
    waiter = Waiter()
    cache.want(key(0), waiter.woken)
    await asyncio.sleep(0.05)
    cache.leave([key(0)], waiter.woken)
    await asyncio.sleep(60)
    assert len(store.gets) == 1
    assert not cache.is_loading(key(0))


@on_virtual_loop
async def test_a_store_that_never_answers_is_given_up_and_asked_again(clock: FakeClock) -> None:
    store = filled(1)
    cache = BlockCache(store, clock, 64 * MIB)
    store.open.clear()
    waiter = Waiter()
    cache.want(key(0), waiter.woken)
    await asyncio.sleep(GET_MS_MAX / 1000 + 5)
    assert len(store.gets) == 2
    store.open.set()
    await waiter.event.wait()
    assert cache.get(key(0)) is not None


@on_virtual_loop
async def test_a_store_that_is_away_is_asked_seldom_and_by_one_at_a_time(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(50)
    store.is_away = AWAY
    cache = BlockCache(store, clock, 256 * MIB)
    waiters = [Waiter() for _ in range(50)]
    with caplog.at_level(logging.INFO):
        for number, waiter in enumerate(waiters):
            cache.want(key(number), waiter.woken)
        await asyncio.sleep(30)
        assert cache.is_away
        store.running_max = 0
        gets_before = len(store.gets)
        await asyncio.sleep(30)
        assert store.running_max == 1
        assert len(store.gets) - gets_before <= 50 * (30_000 / PAUSE_MS_MAX + 1)
        store.is_away = None
        for waiter in waiters:
            await waiter.event.wait()
    assert not cache.is_away
    said = [record.getMessage() for record in caplog.records if "memory:test" in record.getMessage()]
    assert len(said) == 2, said
    assert "does not answer" in said[0]
    assert "answers again" in said[1]


@on_virtual_loop
async def test_those_who_come_and_go_do_not_ask_a_store_that_is_away_more_often(clock: FakeClock) -> None:
    store = filled(1)
    store.is_away = AWAY
    cache = BlockCache(store, clock, 64 * MIB)
    for _ in range(3000):
        waiter = Waiter()
        cache.want(key(0), waiter.woken)
        await asyncio.sleep(0.001)
        cache.leave([key(0)], waiter.woken)
        await asyncio.sleep(0.009)
    assert cache.is_away
    assert 10 <= len(store.gets) <= 30_000 // PAUSE_MS_FIRST + FAILURES_MIN
    store.is_away = None
    cache.want(key(0), Waiter().woken)
    await asyncio.sleep(PAUSE_MS_MAX / 1000)
    assert cache.get(key(0)) is not None
    assert not cache.is_away


@on_virtual_loop
async def test_one_object_that_fails_does_not_count_as_a_store_that_is_away(clock: FakeClock) -> None:
    store = filled(10)
    store.failures = [AWAY] * (FAILURES_MIN - 1)
    cache = BlockCache(store, clock, 64 * MIB)
    await loaded(cache, key(0))
    store.failures = [AWAY] * (FAILURES_MIN - 1)
    await loaded(cache, key(1))
    assert not cache.is_away


@on_virtual_loop
async def test_wrong_credentials_count_as_away_at_once_and_heal(clock: FakeClock) -> None:
    store = filled(1)
    store.failures = [StoreRefusedError("who are you?")]
    cache = BlockCache(store, clock, 64 * MIB)
    waiter = Waiter()
    cache.want(key(0), waiter.woken)
    await asyncio.sleep(0.05)
    assert cache.is_away
    await waiter.event.wait()
    assert not cache.is_away


@on_virtual_loop
async def test_only_a_few_blocks_come_at_a_time_and_memory_stays_within_its_limit(clock: FakeClock) -> None:
    store = filled(200)
    cache = BlockCache(store, clock, 64 * MIB)
    waiters = [Waiter() for _ in range(200)]
    held: list[int] = []
    for number, waiter in enumerate(waiters):
        cache.want(key(number), waiter.woken)
    for waiter in waiters:
        await waiter.event.wait()
        held.append(cache.bytes_held)
    assert max(held) <= 64 * MIB
    assert store.running_max == 64 * MIB // (4 * BLOCK_BYTES_GATHERED)
    assert len(store.gets) == 200
    assert cache.block_bytes_held > 40 * MIB  # What there is room for stays.


@on_virtual_loop
async def test_what_was_used_last_stays(clock: FakeClock) -> None:
    store = filled(40)
    cache = BlockCache(store, clock, 16 * MIB)
    await loaded(cache, key(0))
    for number in range(1, 40):
        await loaded(cache, key(number))
        assert cache.get(key(0)) is not None
    assert cache.get(key(1)) is None


@on_virtual_loop
async def test_answers_on_their_way_take_the_place_of_blocks(clock: FakeClock) -> None:
    cache = BlockCache(filled(0), clock, 16 * MIB)
    for number in range(15):
        cache.keep(gathered(number), [bytes(MIB)])
    assert cache.block_bytes_held > 14 * MIB
    answers = [Answer(MIB, cache) for _ in range(8)]
    assert cache.bytes_held <= 16 * MIB
    assert cache.block_bytes_held < 9 * MIB
    assert cache.answer_bytes_max == ANSWER_BYTES_ALWAYS
    answers[-1] += bytes(MIB)
    rest = memoryview(answers.pop())[MIB // 2 :]
    assert cache.answer_bytes == 8 * MIB, "half of it waits still"
    rest.release()
    answers.clear()
    assert cache.answer_bytes == 0
    assert cache.answer_bytes_max == 2 * MIB


@on_virtual_loop
async def test_what_this_broker_stored_is_at_hand_and_wakes_who_waits_for_it(clock: FakeClock) -> None:
    store = filled(0)
    cache = BlockCache(store, clock, 64 * MIB)
    store.open.clear()
    waiter = Waiter()
    cache.want(key(3), waiter.woken)
    await asyncio.sleep(0)
    cache.keep(gathered(3), [b"one ", bytearray(b"two "), memoryview(b"three")])
    assert waiter.count == 1
    block = cache.get(key(3))
    assert block is not None
    assert (block.data, block.origin) == (b"one two three", Origin.KEPT)
    assert block.is_good(0, 13)
    await cache.close()


@on_virtual_loop
async def test_a_single_piece_is_kept_without_a_copy(clock: FakeClock) -> None:
    cache = BlockCache(filled(0), clock, 64 * MIB)
    data = bytes(1000)
    cache.keep(gathered(0), [data])
    block = cache.get(key(0))
    assert block is not None
    assert block.data is data


@on_virtual_loop
async def test_a_large_object_that_this_broker_stored_is_cut_into_blocks(clock: FakeClock) -> None:
    cache = BlockCache(filled(0), clock, 64 * MIB)
    cache.keep(gathered(0), [bytes(BLOCK_BYTES_GATHERED), b"and more"])
    second = cache.get(BlockKey(gathered(0), 1))
    assert second is not None
    assert (second.data, second.start) == (b"and more", BLOCK_BYTES_GATHERED)


@on_virtual_loop
async def test_reading_ahead_waits_for_nobody_and_takes_a_quarter_of_memory_at_most(clock: FakeClock) -> None:
    store = filled(100)
    cache = BlockCache(store, clock, 64 * MIB)
    for number in range(100):
        cache.want_ahead(key(number))
        await asyncio.sleep(1)
    assert 16 <= len(store.gets) <= 17
    assert cache.get(key(0)) is not None
    cache.want_ahead(key(99))  # One of them was asked for, so that there is room for another.
    await asyncio.sleep(1)
    assert 17 <= len(store.gets) <= 18


@on_virtual_loop
async def test_what_is_read_ahead_is_tried_once(clock: FakeClock) -> None:
    store = filled(1)
    store.is_away = AWAY
    cache = BlockCache(store, clock, 64 * MIB)
    cache.want_ahead(key(0))
    await asyncio.sleep(60)
    assert len(store.gets) == 1


@on_virtual_loop
async def test_who_waits_for_what_is_read_ahead_is_served_by_the_same_get(clock: FakeClock) -> None:
    store = filled(1)
    cache = BlockCache(store, clock, 64 * MIB)
    cache.want_ahead(key(0))
    await loaded(cache, key(0))
    assert len(store.gets) == 1


@on_virtual_loop
async def test_an_object_that_is_gone_is_looked_for_again_after_a_while(clock: FakeClock) -> None:
    store = filled(0)
    asked: list[int] = []

    async def caught_up() -> None:
        asked.append(len(store.gets))

    cache = BlockCache(store, clock, 64 * MIB, caught_up=caught_up)
    await loaded(cache, key(0))
    assert asked == [1], "it learned first what the others have agreed on"
    with pytest.raises(ObjectGoneError, match="segments/0000000000000007-1-0"):
        cache.check_gone(gathered(0))
    clock.advance(GONE_MS)
    cache.check_gone(gathered(0))


@on_virtual_loop
async def test_an_object_is_not_said_to_be_gone_before_the_agreed_table_is_known(clock: FakeClock) -> None:
    store = filled(0)
    failures: list[Any] = [QuorumBusyError("no leader"), QuorumBusyError("no leader")]

    async def caught_up() -> None:
        if failures:
            raise failures.pop()

    cache = BlockCache(store, clock, 64 * MIB, caught_up=caught_up)
    waiter = Waiter()
    cache.want(key(0), waiter.woken)
    await asyncio.sleep(0.05)
    assert waiter.count == 0
    cache.check_gone(gathered(0))
    await waiter.event.wait()
    assert len(store.gets) == 3
    with pytest.raises(ObjectGoneError):
        cache.check_gone(gathered(0))


@on_virtual_loop
async def test_damaged_bytes_come_anew_once_and_then_count_as_the_stores_own(clock: FakeClock) -> None:
    store = filled(1)
    cache = BlockCache(store, clock, 64 * MIB)
    await loaded(cache, key(0))
    first = cache.get(key(0))
    assert first is not None
    assert cache.distrust([first])
    assert cache.get(key(0)) is None
    await loaded(cache, key(0))
    second = cache.get(key(0))
    assert second is not None
    assert second.is_fresh
    assert not cache.distrust([second])
    assert cache.get(key(0)) is second, "nobody asks for it all the time"
    clock.advance(BAD_MS + 1)
    assert cache.get(key(0)) is None
    assert len(store.gets) == 2


@on_virtual_loop
async def test_who_waits_is_woken_when_the_cache_is_closed(clock: FakeClock) -> None:
    store = filled(1)
    store.open.clear()
    cache = BlockCache(store, clock, 64 * MIB)
    running, in_line = Waiter(), [Waiter() for _ in range(5)]
    cache.want(key(0), running.woken)
    for number, waiter in enumerate(in_line):
        cache.want(key(number + 1), waiter.woken)
    await asyncio.sleep(0)
    await cache.close()
    assert running.count == 1
    assert [waiter.count for waiter in in_line] == [1] * 5


@on_virtual_loop
async def test_who_borrowed_first_gets_all_it_needs_and_others_wait_for_their_turn(clock: FakeClock) -> None:
    cache = BlockCache(filled(0), clock, 16 * MIB)
    first, second = Loan(cache), Loan(cache)
    walk = Walk(Row(Offset(0), Offset(1), gathered(0), 0, 100, 0, 1))
    held = [Block(key(number), bytes(3 * MIB), Origin.STORE) for number in range(4)]
    woken = Waiter()
    assert first.borrow(walk, held[:1])
    assert not second.borrow(walk, held[3:])
    cache.call_when_returned(woken.woken)
    assert first.borrow(walk, held[:3]), "beyond what may be lent, for nobody was earlier"
    assert cache.get(key(2)) is held[2]
    assert cache.bytes_held > 9 * MIB
    first.begin()
    assert first.borrow(walk, held[2:3])
    first.settle()
    assert (woken.count, cache.get(key(0))) == (1, None), "what it needs no more is given back"
    first.end()
    assert second.borrow(walk, held[3:])
    second.end()
    assert cache.bytes_held == 0


@on_virtual_loop
async def test_damaged_blocks_are_not_lent_any_longer(clock: FakeClock) -> None:
    cache = BlockCache(filled(0), clock, 16 * MIB)
    loan = Loan(cache)
    walk = Walk(Row(Offset(0), Offset(1), gathered(0), 0, 100, 0, 1))
    block = Block(key(0), bytes(MIB), Origin.STORE)
    assert loan.borrow(walk, [block])
    assert cache.distrust([block])
    assert cache.get(key(0)) is None
    loan.end()
    assert cache.bytes_held == 0
