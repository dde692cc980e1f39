"""Bytes that may be held at once."""

import asyncio

from anabranch.gateway.http.budget import Budget
from support.broker_bench import in_loop, turn


@in_loop
async def test_who_finds_no_room_waits_in_order() -> None:
    budget = Budget(10)
    await budget.take(8)
    order: list[int] = []

    async def wait(count: int) -> None:
        await budget.take(count)
        order.append(count)

    tasks = [asyncio.ensure_future(wait(count)) for count in (5, 1, 2)]
    await turn()
    assert order == [], "one that would fit does not overtake"
    budget.give(8)
    await asyncio.gather(*tasks)
    assert (order, budget.bytes_taken) == ([5, 1, 2], 8)


@in_loop
async def test_what_is_larger_than_the_whole_passes_alone() -> None:
    budget = Budget(10)
    await budget.take(50)
    assert not budget.take_at_once(1)
    budget.give(50)
    assert budget.take_at_once(1)


@in_loop
async def test_who_stops_waiting_leaves_the_line_to_others() -> None:
    budget = Budget(10)
    await budget.take(10)
    first, second = (asyncio.ensure_future(budget.take(count)) for count in (10, 1))
    await turn()
    first.cancel()
    await turn()
    budget.give(10)
    await second
    assert (budget.bytes_taken, budget.waiting_count) == (1, 0)


@in_loop
async def test_who_stops_in_the_moment_of_being_granted_gives_it_back() -> None:
    budget = Budget(10)
    await budget.take(10)
    waiting = asyncio.ensure_future(budget.take(4))
    await turn()
    budget.give(10)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert budget.bytes_taken == 0


@in_loop
async def test_who_was_passed_over_because_it_no_longer_waits_just_leaves() -> None:
    budget = Budget(10)
    await budget.take(10)
    waiting = asyncio.ensure_future(budget.take(4))
    await turn()
    waiting.cancel()
    budget.give(10)
    [outcome] = await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError)
    assert (budget.bytes_taken, budget.waiting_count) == (0, 0)
