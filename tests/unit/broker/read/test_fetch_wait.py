"""Fetches that wait: woken, timed out, gone, turned away."""

import asyncio
import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest

from anabranch.broker.read.fetch_wait import (
    FREE_PARTITIONS,
    GATHER_PARTITIONS_MIN,
    ROWS_PER_TRY,
    ROWS_PER_TURN,
    FetchWaits,
)
from support.broker_bench import in_loop, turn


class FakePartition:
    def __init__(self) -> None:
        self.waiting_fetches: dict[Any, None] = {}


def made(partitions_max: int = 1000) -> FetchWaits:
    return FetchWaits(lambda: None, partitions_max)


def woken(waits: FetchWaits, partitions: list[Any]) -> None:
    waits.wake(partitions)
    waits.serve()


class Retry:
    def __init__(self, *outcomes: bool) -> None:
        self._outcomes = list(outcomes)
        self.finals: list[bool] = []

    def __call__(self, final: bool) -> bool:
        self.finals.append(final)
        return self._outcomes.pop(0)


@in_loop
async def test_woken_fetch_that_is_answered_leaves_all_its_partitions() -> None:
    waits, one, other = made(), FakePartition(), FakePartition()
    retry = Retry(True)
    waits.wait(retry, [one, other], 60_000)
    woken(waits, [one])
    assert retry.finals == [False]
    assert (one.waiting_fetches, other.waiting_fetches, waits.waiting) == ({}, {}, {})


@in_loop
async def test_woken_fetch_that_is_still_short_goes_on_waiting() -> None:
    waits, one = made(), FakePartition()
    retry = Retry(False, True)
    waits.wait(retry, [one], 60_000)
    woken(waits, [one])
    assert len(one.waiting_fetches) == 1
    woken(waits, [one])
    assert one.waiting_fetches == {}


@in_loop
async def test_fetch_of_two_woken_partitions_is_tried_once() -> None:
    waits, one, other = made(), FakePartition(), FakePartition()
    retry = Retry(True, True)
    waits.wait(retry, [one, other], 60_000)
    woken(waits, [one, other])
    assert retry.finals == [False]


@in_loop
async def test_deadline_is_the_last_try() -> None:
    waits, one = made(), FakePartition()
    retry = Retry(True)
    fetch = waits.wait(retry, [one], 60_000)
    fetch.end()
    assert (retry.finals, one.waiting_fetches) == ([True], {})


@in_loop
async def test_fetch_whose_client_is_gone_is_never_tried() -> None:
    waits, one = made(), FakePartition()
    retry = Retry()
    fetch = waits.wait(retry, [one], 0)
    fetch.leave()
    fetch.leave()
    woken(waits, [one])
    assert (retry.finals, fetch._timer.cancelled()) == ([], True)


@in_loop
async def test_stop_ends_everybodys_waiting() -> None:
    waits, one = made(), FakePartition()
    retries = [Retry(True), Retry(True)]
    for retry in retries:
        waits.wait(retry, [one], 60_000)
    waits.end_all()
    assert [retry.finals for retry in retries] == [[True], [True]]
    assert waits.waiting == {}


@in_loop
async def test_fetch_is_told_which_of_its_partitions_have_news() -> None:
    waits, one, other = made(), FakePartition(), FakePartition()
    told: list[set[Any]] = []

    def retry(final: bool) -> bool:
        told.append(set(fetch.woken_by))
        return False

    fetch = waits.wait(retry, [one, other], 60_000)
    woken(waits, [one])
    woken(waits, [other])
    woken(waits, [one, other])
    assert told == [{one}, {other}, {one, other}]
    fetch.leave()


@in_loop
async def test_fetch_of_many_partitions_lets_news_gather() -> None:
    waits, partitions = made(), [FakePartition() for _ in range(GATHER_PARTITIONS_MIN)]
    retry = Retry(True)
    fetch = waits.wait(retry, partitions, 60_000)
    woken(waits, partitions[:1])
    woken(waits, partitions[1:2])
    assert (retry.finals, fetch.woken_by) == ([], set(partitions[:2]))
    assert fetch._due is not None
    await asyncio.sleep(fetch._due.when() - asyncio.get_running_loop().time())
    await turn()
    waits.serve()
    assert (retry.finals, partitions[2].waiting_fetches) == ([False], {})


@in_loop
async def test_fetch_whose_client_goes_while_news_gather_is_never_tried() -> None:
    waits, partitions = made(), [FakePartition() for _ in range(GATHER_PARTITIONS_MIN)]
    fetch = waits.wait(Retry(), partitions, 60_000)
    woken(waits, partitions[:1])
    assert fetch._due is not None
    fetch.leave()
    assert fetch._due.cancelled()


# --- in turns --------------------------------------------------------------------------------------------------------


class Noted:
    """Fetches that are answered when they are tried, and the order in which that was."""

    def __init__(self) -> None:
        self.tried: list[int] = []

    def retry(self, number: int) -> Callable[[bool], bool]:
        def retry(final: bool) -> bool:
            self.tried.append(number)
            return True

        return retry


SHORTS_PER_TURN = ROWS_PER_TURN // (ROWS_PER_TRY + 2)
"""Each with one partition that has news."""


@in_loop
async def test_thousands_that_one_publish_wakes_are_tried_in_turns_first_come_first_served() -> None:
    waits, one, noted = made(), FakePartition(), Noted()
    for number in range(3 * SHORTS_PER_TURN):
        waits.wait(noted.retry(number), [one], 60_000)
    woken(waits, [one])
    assert len(noted.tried) <= SHORTS_PER_TURN + 1
    assert waits.is_behind
    while waits.is_behind:
        waits.serve()
    assert noted.tried == list(range(3 * SHORTS_PER_TURN))
    assert waits.rows_max <= ROWS_PER_TURN + ROWS_PER_TRY + 2


@in_loop
async def test_deadlines_that_come_together_are_seen_to_in_turns() -> None:
    waits, one, noted = made(), FakePartition(), Noted()
    for number in range(2 * SHORTS_PER_TURN):
        waits.wait(noted.retry(number), [one], 0)
    await asyncio.sleep(0.01)
    assert noted.tried == []
    waits.serve()
    assert 0 < len(noted.tried) < 2 * SHORTS_PER_TURN


@in_loop
async def test_fetch_of_few_partitions_does_not_stand_behind_those_of_many() -> None:
    waits, noted = made(10**6), Noted()
    partitions = [FakePartition() for _ in range(ROWS_PER_TURN)]
    for number in range(3):
        waits.wait(noted.retry(number), partitions, 0)
    waits.wait(noted.retry(9), partitions[:1], 0)
    await asyncio.sleep(0.01)
    waits.serve()
    assert noted.tried == [9, 0]


@in_loop
async def test_fetches_whose_clients_hang_up_together_leave_their_partitions_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("anabranch.broker.read.fetch_wait.LEAVES_PER_TURN", 150)
    waits, noted = made(), Noted()
    partitions = [FakePartition() for _ in range(100)]
    fetches = [waits.wait(noted.retry(number), partitions, 60_000) for number in range(3)]
    for fetch in fetches:
        fetch.leave()
    assert not waits.waiting
    entered = []
    while waits.is_behind:
        waits.serve()
        entered.append(sum(len(each.waiting_fetches) for each in partitions))
    assert entered == [150, 0]


@in_loop
async def test_fetch_that_has_left_and_is_still_entered_is_not_tried() -> None:
    waits, noted = made(), Noted()
    partitions = [FakePartition() for _ in range(100)]
    waits.wait(noted.retry(0), partitions, 60_000).leave()
    woken(waits, partitions)
    assert noted.tried == []


@in_loop
async def test_partition_that_thousands_have_left_keeps_no_memory_for_them() -> None:
    waits, one = made(), FakePartition()
    for fetch in [waits.wait(Retry(), [one], 60_000) for _ in range(1000)]:
        fetch.leave()
    assert sys.getsizeof(one.waiting_fetches) == sys.getsizeof({})


# --- room ------------------------------------------------------------------------------------------------------------


class Crowd:
    """Fetches of 32 free partitions and 100 more, in a room for 1,000."""

    def __init__(self) -> None:
        self.waits = made(1000)
        self.turned_away: list[str] = []
        self._partitions = [FakePartition() for _ in range(FREE_PARTITIONS + 100)]

    def come(self, address: str, name: str) -> bool:
        if not self.waits.make_room(len(self._partitions), address):
            return False
        leave = functools.partial(self.turned_away.append, name)
        self.waits.wait(Retry(), self._partitions, 60_000, address, leave)
        return True


@in_loop
async def test_address_that_waits_for_most_finds_no_room() -> None:
    crowd = Crowd()
    assert [crowd.come("flood", str(number)) for number in range(12)] == [True] * 10 + [False] * 2
    assert (crowd.waits.partitions, crowd.turned_away) == (1000, [])


@in_loop
async def test_others_take_the_room_of_the_address_that_waits_for_most_up_to_an_even_share() -> None:
    crowd = Crowd()
    for number in range(10):
        crowd.come("flood", str(number))
    assert [crowd.come("other", "-") for _ in range(7)] == [True] * 5 + [False] * 2
    assert crowd.turned_away == ["9", "8", "7", "6", "5"]
    assert crowd.waits.partitions == 1000


@in_loop
async def test_fetch_of_few_partitions_may_always_wait() -> None:
    crowd = Crowd()
    for number in range(10):
        crowd.come("flood", str(number))
    assert crowd.waits.make_room(FREE_PARTITIONS, "flood")
    assert not crowd.waits.make_room(FREE_PARTITIONS + 1, "flood")


@in_loop
async def test_who_leaves_makes_room() -> None:
    crowd = Crowd()
    for number in range(10):
        crowd.come("flood", str(number))
    for fetch in list(crowd.waits.waiting):
        fetch.leave()
    assert crowd.waits.partitions == 0
    assert crowd.come("flood", "-")
