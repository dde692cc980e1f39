"""Heavy steps of many clients leave others their turn."""

import asyncio

import pytest

from anabranch.gateway.turns import Turns
from support.broker_bench import in_loop


async def steps_by_round(turns: Turns, clients: int, steps: int, late: int = 0) -> list[list[int]]:
    """Which clients had a turn in each round of the loop in which one had; `late` more come one in each round."""
    rounds: dict[int, list[int]] = {}
    now = 0

    async def client(number: int) -> None:
        for _ in range(steps):
            await turns.mine()
            rounds.setdefault(now, []).append(number)

    tasks = [asyncio.ensure_future(client(number)) for number in range(clients)]
    while late or not all(task.done() for task in tasks):
        if late:
            tasks.append(asyncio.ensure_future(client(len(tasks))))
            late -= 1
        await asyncio.sleep(0)
        now += 1
    return list(rounds.values())


@pytest.mark.parametrize("count", [1, 3])
@in_loop
async def test_no_more_turns_are_given_in_a_round_than_there_are(count: int) -> None:
    rounds = await steps_by_round(Turns(count), clients=20, steps=3, late=30)
    assert sum(map(len, rounds)) == 150
    assert max(map(len, rounds)) <= count


@in_loop
async def test_turns_are_given_in_order_of_arrival() -> None:
    rounds = await steps_by_round(Turns(), clients=5, steps=1)
    assert [number for each in rounds for number in each] == [0, 1, 2, 3, 4]


@in_loop
async def test_one_who_gives_up_leaves_its_turn_to_the_next() -> None:
    turns = Turns()
    await turns.mine()
    gone = asyncio.ensure_future(turns.mine())
    other = asyncio.ensure_future(turns.mine())
    await asyncio.sleep(0)
    gone.cancel()
    await other
