"""Fetches that wait: woken, timed out, gone."""

import asyncio
from typing import Any

from anabranch.broker.read.fetch_wait import GATHER_PARTITIONS_MIN, FetchWaits
from support.broker_bench import in_loop, turn


class FakePartition:
    def __init__(self) -> None:
        self.waiting_fetches: dict[Any, None] = {}


class Retry:
    def __init__(self, *outcomes: bool) -> None:
        self._outcomes = list(outcomes)
        self.finals: list[bool] = []

    def __call__(self, final: bool) -> bool:
        self.finals.append(final)
        return self._outcomes.pop(0)


@in_loop
async def test_woken_fetch_that_is_answered_leaves_all_its_partitions() -> None:
    waits, one, other = FetchWaits(), FakePartition(), FakePartition()
    retry = Retry(True)
    waits.wait(retry, [one, other], 60_000)
    waits.wake([one])
    assert retry.finals == [False]
    assert (one.waiting_fetches, other.waiting_fetches, waits.waiting) == ({}, {}, {})


@in_loop
async def test_woken_fetch_that_is_still_short_goes_on_waiting() -> None:
    waits, one = FetchWaits(), FakePartition()
    retry = Retry(False, True)
    waits.wait(retry, [one], 60_000)
    waits.wake([one])
    assert len(one.waiting_fetches) == 1
    waits.wake([one])
    assert one.waiting_fetches == {}


@in_loop
async def test_fetch_of_two_woken_partitions_is_tried_once() -> None:
    waits, one, other = FetchWaits(), FakePartition(), FakePartition()
    retry = Retry(True, True)
    waits.wait(retry, [one, other], 60_000)
    waits.wake([one, other])
    assert retry.finals == [False]


@in_loop
async def test_deadline_is_the_last_try() -> None:
    waits, one = FetchWaits(), FakePartition()
    retry = Retry(True)
    fetch = waits.wait(retry, [one], 60_000)
    fetch.end()
    assert (retry.finals, one.waiting_fetches) == ([True], {})


@in_loop
async def test_fetch_whose_client_is_gone_is_never_tried() -> None:
    waits, one = FetchWaits(), FakePartition()
    retry = Retry()
    fetch = waits.wait(retry, [one], 0)
    fetch.leave()
    fetch.leave()
    waits.wake([one])
    assert (retry.finals, fetch._timer.cancelled()) == ([], True)


@in_loop
async def test_stop_ends_everybodys_waiting() -> None:
    waits, one = FetchWaits(), FakePartition()
    retries = [Retry(True), Retry(True)]
    for retry in retries:
        waits.wait(retry, [one], 60_000)
    waits.end_all()
    assert [retry.finals for retry in retries] == [[True], [True]]
    assert waits.waiting == {}


@in_loop
async def test_fetch_is_told_which_of_its_partitions_have_news() -> None:
    waits, one, other = FetchWaits(), FakePartition(), FakePartition()
    told: list[set[Any]] = []

    def retry(final: bool) -> bool:
        told.append(set(fetch.woken_by))
        return False

    fetch = waits.wait(retry, [one, other], 60_000)
    waits.wake([one])
    waits.wake([other])
    waits.wake([one, other])
    assert told == [{one}, {other}, {one, other}]
    fetch.leave()


@in_loop
async def test_fetch_of_many_partitions_lets_news_gather() -> None:
    waits, partitions = FetchWaits(), [FakePartition() for _ in range(GATHER_PARTITIONS_MIN)]
    retry = Retry(True)
    fetch = waits.wait(retry, partitions, 60_000)
    waits.wake(partitions[:1])
    waits.wake(partitions[1:2])
    assert (retry.finals, fetch.woken_by) == ([], set(partitions[:2]))
    assert fetch._due is not None
    await asyncio.sleep(fetch._due.when() - asyncio.get_running_loop().time())
    await turn()
    assert (retry.finals, partitions[2].waiting_fetches) == ([False], {})


@in_loop
async def test_fetch_whose_client_goes_while_news_gather_is_never_tried() -> None:
    waits, partitions = FetchWaits(), [FakePartition() for _ in range(GATHER_PARTITIONS_MIN)]
    fetch = waits.wait(Retry(), partitions, 60_000)
    waits.wake(partitions[:1])
    assert fetch._due is not None
    fetch.leave()
    assert fetch._due.cancelled()
