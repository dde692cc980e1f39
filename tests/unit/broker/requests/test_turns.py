"""How requests with many rows share the loop: counted, since what a row costs depends on the machine."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest

from anabranch.broker.handlers import dispatch
from anabranch.broker.requests.call import Call, Piece
from anabranch.broker.requests.turns import (
    CARRIED_OPEN_MAX,
    FREE_ROWS,
    FREE_ROWS_PER_TURN,
    LONG_OPEN_MAX,
    ROWS_PER_TURN,
    Rows,
    Turns,
)
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import decode_request, encode_request
from anabranch.wire.header import parse_request_header, request_header
from support.broker_bench import Bench, in_loop, turn


def run(work: Callable[[Turns], Awaitable[None]]) -> None:
    async def main() -> None:
        await work(Turns())

    asyncio.run(main())


def rows_of(count: int, done: list[int], number: int = 0) -> Rows:
    for _ in range(count):
        done.append(number)
        yield
    return {"rows": count}


@pytest.mark.parametrize("count", [0, 1, FREE_ROWS, ROWS_PER_TURN])
def test_few_rows_are_answered_at_once(count: int) -> None:
    async def work(turns: Turns) -> None:
        assert turns.drive(rows_of(count, [])) == {"rows": count}

    run(work)


def test_many_rows_take_several_turns_of_the_loop() -> None:
    async def work(turns: Turns) -> None:
        done: list[int] = []
        response = turns.drive(rows_of(10 * ROWS_PER_TURN, done))
        assert not isinstance(response, dict)
        portions = [len(done)]
        task = asyncio.ensure_future(response)
        while not task.done():
            await asyncio.sleep(0)
            portions.append(len(done))
        assert task.result() == {"rows": 10 * ROWS_PER_TURN}
        steps = [after - before for before, after in pairwise(portions)]
        assert max(steps) <= ROWS_PER_TURN
        assert turns.rows_max <= ROWS_PER_TURN

    run(work)


def test_long_requests_alternate_and_share_the_rows_of_a_turn() -> None:
    async def work(turns: Turns) -> None:
        done: list[int] = []
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(turns.driven(rows_of(3 * ROWS_PER_TURN, done, number)))
        firsts = [done.index(number) for number in range(3)]
        assert max(firsts) < 3 * ROWS_PER_TURN, "nobody waits until another is through"
        assert turns.rows_max <= ROWS_PER_TURN

    run(work)


def test_short_request_does_not_wait_for_long_ones() -> None:
    async def work(turns: Turns) -> None:
        long = [asyncio.ensure_future(turns.driven(rows_of(10**5, []))) for _ in range(20)]
        await asyncio.sleep(0)
        assert turns.drive(rows_of(FREE_ROWS - 1, [])) == {"rows": FREE_ROWS - 1}
        pace = turns.pace()
        for _ in range(FREE_ROWS):
            coroutine = pace.row()
            with pytest.raises(StopIteration):
                coroutine.send(None)
        for each in long:
            each.cancel()

    run(work)


def test_first_rows_of_many_requests_take_turns_in_the_order_they_came() -> None:
    async def work(turns: Turns) -> None:
        done: list[int] = []
        rows, count = 10, 4 * FREE_ROWS_PER_TURN // 10
        by_rows = [turns.drive(rows_of(rows, done, number)) for number in range(count // 2)]

        async def paced(number: int) -> None:
            pace = turns.pace()
            for _ in range(rows):
                await pace.row()
                done.append(number)

        others = [asyncio.ensure_future(paced(number)) for number in range(count // 2, count)]
        tasks = [*(asyncio.ensure_future(each) for each in by_rows if not isinstance(each, dict)), *others]
        handled = [len(done)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            handled.append(len(done))
        assert len(done) == rows * count
        assert max(after - before for before, after in pairwise(handled)) <= FREE_ROWS_PER_TURN + FREE_ROWS
        assert turns.rows_max == 0, "none of them stood in line for a portion"
        begun = [done.index(number) for number in range(count // 2)]
        assert begun == sorted(begun)

    run(work)


def test_newcomer_does_not_overtake_first_rows_that_wait() -> None:
    async def work(turns: Turns) -> None:
        done: list[int] = []
        for number in range(FREE_ROWS_PER_TURN // FREE_ROWS + 1):
            turns.drive(rows_of(FREE_ROWS - 1, done, number))
        waiting = asyncio.ensure_future(turns.driven(rows_of(2, done, -1)))
        await asyncio.sleep(0)
        newcomer = turns.drive(rows_of(1, done, -2))
        if not isinstance(newcomer, dict):
            await newcomer
        await waiting
        assert done.index(-1) < done.index(-2)

    run(work)


def test_failure_in_first_rows_that_waited_reaches_the_request() -> None:
    def failing() -> Rows:
        yield
        raise ValueError("a defect")

    async def work(turns: Turns) -> None:
        for _ in range(FREE_ROWS_PER_TURN // FREE_ROWS + 2):
            turns.drive(rows_of(FREE_ROWS - 1, []))
        later = turns.drive(failing())
        assert not isinstance(later, dict)
        with pytest.raises(ValueError, match="a defect"):
            await later

    run(work)


def test_one_expensive_step_uses_up_its_turn() -> None:
    async def work(turns: Turns) -> None:
        assert turns.take(100 * ROWS_PER_TURN)
        assert not turns.take()
        await asyncio.sleep(0)
        assert turns.take()

    run(work)


def test_whoever_is_cancelled_leaves_the_line() -> None:
    async def work(turns: Turns) -> None:
        assert turns.take(ROWS_PER_TURN)
        gone = asyncio.ensure_future(turns.wait())
        stays = asyncio.ensure_future(turns.wait())
        await asyncio.sleep(0)
        gone.cancel()
        async with asyncio.timeout(10):
            await stays

    run(work)


def test_cancelled_in_the_moment_of_its_turn_does_not_stop_the_line() -> None:
    async def work(turns: Turns) -> None:
        assert turns.take(ROWS_PER_TURN)
        gone = asyncio.ensure_future(turns.wait())
        stays = asyncio.ensure_future(turns.wait())
        await asyncio.sleep(0)
        turns._renew()
        gone.cancel()
        async with asyncio.timeout(10):
            await stays

    run(work)


async def steps_by_turn(turns: Turns, rows: int, clients: int, steps: int, late: int = 0) -> list[list[int]]:
    """Which clients had a step in each turn of the loop in which one had; `late` more come one in each turn."""
    by_turn: dict[int, list[int]] = {}
    now = 0

    async def client(number: int) -> None:
        for _ in range(steps):
            await turns.wait(rows)
            by_turn.setdefault(now, []).append(number)

    tasks = [asyncio.ensure_future(client(number)) for number in range(clients)]
    while late or not all(task.done() for task in tasks):
        if late:
            tasks.append(asyncio.ensure_future(client(len(tasks))))
            late -= 1
        await asyncio.sleep(0)
        now += 1
    return list(by_turn.values())


@pytest.mark.parametrize("count", [1, 2, 5])
def test_heavy_steps_of_many_clients_leave_others_their_turn(count: int) -> None:
    async def work(turns: Turns) -> None:
        steps = await steps_by_turn(turns, ROWS_PER_TURN // count, clients=20, steps=3, late=30)
        assert sum(map(len, steps)) == 150
        assert max(map(len, steps)) <= count

    run(work)


def test_rows_are_given_in_order_of_arrival() -> None:
    async def work(turns: Turns) -> None:
        steps = await steps_by_turn(turns, ROWS_PER_TURN, clients=5, steps=1)
        assert [number for each in steps for number in each] == [0, 1, 2, 3, 4]

    run(work)


def test_slots_of_one_api_are_not_those_of_another() -> None:
    async def work(turns: Turns) -> None:
        async with AsyncExitStack() as stack:
            for _ in range(LONG_OPEN_MAX):
                await stack.enter_async_context(turns.slots(1).held("here"))
            assert turns.slots(1).free == 0
            assert turns.slots(2).free == LONG_OPEN_MAX
        assert turns.slots(1).free == LONG_OPEN_MAX

    run(work)


def test_addresses_take_turns_for_the_slots_of_an_api() -> None:
    async def work(turns: Turns) -> None:
        slots, begun = turns.slots(1), []

        async def long(address: str, number: int) -> None:
            async with slots.held(address):
                begun.append((address, number))
                await asyncio.sleep(0)

        floods = [asyncio.ensure_future(long("flood", number)) for number in range(LONG_OPEN_MAX + 3)]
        await asyncio.sleep(0)
        other = asyncio.ensure_future(long("other", 0))
        await asyncio.gather(*floods, other)
        assert begun.index(("other", 0)) <= LONG_OPEN_MAX + 1
        assert [number for address, number in begun if address == "flood"] == list(range(len(floods)))
        assert slots.free == LONG_OPEN_MAX

    run(work)


def test_who_is_gone_from_the_line_for_a_slot_keeps_none() -> None:
    async def work(turns: Turns) -> None:
        slots = turns.slots(1)

        async def long() -> None:
            async with slots.held("here"):
                await asyncio.sleep(0)

        tasks = [asyncio.ensure_future(long()) for _ in range(3 * LONG_OPEN_MAX)]
        await asyncio.sleep(0)
        for task in tasks[1::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert slots.free == LONG_OPEN_MAX

    run(work)


# --- long requests that are carried out ----------------------------------------------------------------------------


class Waiter:
    """A client that waits for one answer."""

    host = "stranger"
    local_address = ("here", 9092)

    def __init__(self, open_calls: list[int]) -> None:
        self.is_done = False
        self._open_calls = open_calls

    def answered(self, call: Call, pieces: list[Piece] | None) -> None:
        call.is_settled = self.is_done = True
        self._open_calls[0] -= 1

    def settled(self) -> None:
        raise AssertionError("only a connection takes the plain lane")

    def dropped(self, call: Call, reason: str) -> None:
        raise AssertionError(reason)


@in_loop
async def test_few_long_requests_are_decoded_at_a_time_though_a_coroutine_answers_them() -> None:
    bench, most, is_open = Bench(), 0, [0]

    def decoded(*args: Any) -> Any:
        nonlocal most
        is_open[0] += 1
        most = max(most, is_open[0])
        return decode_request(*args)

    names = [{"name": f"t{number}"} for number in range(1000)]
    body = {"topics": names, "allow_auto_topic_creation": False}
    frame = request_header(ApiKey.METADATA, 4, 1, "") + encode_request(ApiKey.METADATA, 4, body)
    waiters = [Waiter(is_open) for _ in range(30)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anabranch.broker.handlers.decode_request", decoded)
        for waiter in waiters:
            view = memoryview(bytearray(frame))
            header, start = parse_request_header(view, 0, len(view))
            dispatch(bench.broker, Call(waiter, header, view, start, len(view)))
        while not all(waiter.is_done for waiter in waiters):
            await turn(1)
    assert 1 < most <= CARRIED_OPEN_MAX + 1, "the next one begins before the answer of one is encoded"


@in_loop
async def test_request_that_waits_for_something_else_does_not_keep_others_from_being_carried_out() -> None:
    turns, forever = Turns(), asyncio.Event()

    async def carried() -> None:
        lease = await turns.lease()
        try:
            await forever.wait()
        finally:
            lease.end()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anabranch.broker.requests.turns.CARRIED_SECONDS", 0.01)
        tasks = [asyncio.ensure_future(carried()) for _ in range(CARRIED_OPEN_MAX)]
        await asyncio.sleep(0)
        (await asyncio.wait_for(turns.lease(), 5)).end()
    forever.set()
    await asyncio.gather(*tasks)
    assert turns._carried._value == CARRIED_OPEN_MAX
