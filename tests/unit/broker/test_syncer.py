"""Group commit: one sync at a time, the others gather; a failure reaches everybody."""

import asyncio
from typing import Any

import pytest

from anabranch.broker.syncer import Syncer
from anabranch.errors import FencedLogError, StorageError
from anabranch.testing.fake_clock import FakeClock
from support.broker_bench import in_loop, turn
from support.workers import HeldWorkers


class FakePartition:
    """Stands for a partition and its log."""

    id = "t-0"

    def __init__(self) -> None:
        self.log = self
        self.end = 0
        self.error: Exception | None = None
        self.events: list[Any] = []

    def sync(self) -> int:
        if self.error is not None:
            raise self.error
        return self.end

    def synced(self, end: int, now_ms: int) -> None:
        self.events.append(end)

    def sync_failed(self, error: StorageError) -> None:
        self.events.append(error)


def make() -> tuple[HeldWorkers, Any, Any]:
    workers = HeldWorkers()
    return workers, Syncer(workers, FakeClock()), FakePartition()


def test_requests_during_a_sync_gather_into_one_more() -> None:
    workers, syncer, partition = make()
    for _ in range(4):
        syncer.request(partition)
    assert len(workers.syncs) == 1
    workers.run_sync()
    assert len(workers.syncs) == 1
    workers.run_sync()
    assert (len(workers.syncs), syncer.syncs_total, syncer.is_idle) == (0, 2, True)


def test_next_sync_is_under_way_before_the_answers_of_this_one_go_out() -> None:
    workers, syncer, partition = make()
    syncer.request(partition)
    syncer.request(partition)
    seen: list[int] = []
    partition.synced = lambda end, now_ms: seen.append(len(workers.syncs))
    workers.run_sync()
    assert seen == [1]


def test_partitions_sync_beside_each_other() -> None:
    workers, syncer, partition = make()
    other: Any = FakePartition()
    syncer.request(partition)
    syncer.request(other)
    assert len(workers.syncs) == 2


def test_partition_is_told_the_end_that_is_safe() -> None:
    workers, syncer, partition = make()
    syncer.request(partition)
    partition.end = 5
    workers.run_sync()
    assert partition.events == [5]


def test_failed_sync_is_told_and_those_who_gathered_are_not_tried() -> None:
    workers, syncer, partition = make()
    partition.error = FencedLogError("no")
    syncer.request(partition)
    syncer.request(partition)
    workers.run_sync()
    assert partition.events == [partition.error]
    assert (len(workers.syncs), syncer.failures_total, syncer.is_idle) == (0, 1, True)


def test_defect_in_a_sync_fails_who_waited_and_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    workers, syncer, partition = make()
    partition.error = ValueError("not in list")
    syncer.request(partition)
    workers.run_sync()
    assert isinstance(partition.events[0], StorageError)
    assert "this is a defect" in caplog.text
    assert syncer.failures_total == 1


@in_loop
async def test_idle_waits_for_this_partition_or_for_all() -> None:
    workers, syncer, partition = make()
    other: Any = FakePartition()
    await syncer.idle()
    syncer.request(partition)
    syncer.request(other)
    one = asyncio.create_task(syncer.idle(partition))
    every = asyncio.create_task(syncer.idle())
    await turn()
    workers.run_sync()
    await turn()
    assert (one.done(), every.done()) == (True, False)
    workers.run_sync()
    await every


@in_loop
async def test_idle_outlasts_a_sync_that_was_wanted_meanwhile() -> None:
    workers, syncer, partition = make()
    syncer.request(partition)
    syncer.request(partition)
    waiting = asyncio.create_task(syncer.idle(partition))
    await turn()
    workers.run_sync()
    await turn()
    assert not waiting.done()
    workers.run_sync()
    await waiting


@in_loop
async def test_who_gives_up_waiting_for_idle_does_no_harm() -> None:
    workers, syncer, partition = make()
    syncer.request(partition)
    waiting = asyncio.create_task(syncer.idle())
    await turn()
    waiting.cancel()
    await turn()
    workers.run_sync()
    assert syncer.is_idle
