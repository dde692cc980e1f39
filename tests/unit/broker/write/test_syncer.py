"""Group commit: one sync at a time, the others gather; a failure reaches everybody, wherever the sync ran."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from anabranch.broker.write.sync_place import FAST_US_MAX, PROOF_MIN
from anabranch.broker.write.syncer import Syncer
from anabranch.errors import FencedLogError, StorageError
from anabranch.testing.fakes.clock import FakeClock
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
        self.is_awaited = True
        self.is_small = True
        self.during_sync: Callable[[], None] = lambda: None

    def is_sync_small(self, bytes_max: int) -> bool:
        return self.is_small

    def sync(self) -> int:
        self.during_sync()
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


# --- on the loop's own thread -------------------------------------------------------------------------------------


SLOW_MS = FAST_US_MAX // 1000 + 1


def make_proven() -> tuple[HeldWorkers, Any, Any, FakeClock]:
    """A syncer that has seen its disk be fast."""
    workers, clock, partition = HeldWorkers(), FakeClock(), FakePartition()
    syncer: Any = Syncer(workers, clock)
    for _ in range(PROOF_MIN):
        syncer.request(partition)
        workers.run_sync()
    partition.events.clear()
    return workers, syncer, partition, clock


def write(syncer: Any, *partitions: Any) -> None:
    """One turn of the core that wrote one more record to each of these."""
    syncer.place.turns += 1
    for partition in partitions:
        partition.end += 1
        syncer.request_in_turn(partition)
    syncer.begin_gathered()
    if syncer.kept is not None:
        syncer.sync_kept()


def test_lone_sync_of_a_fast_disk_is_done_when_the_turn_ends() -> None:
    workers, syncer, partition, _ = make_proven()
    write(syncer, partition)
    assert (partition.events, len(workers.syncs)) == ([1], 0)
    assert (syncer.syncs_total, syncer.syncs_here_total, syncer.is_idle) == (PROOF_MIN + 1, 1, True)


def test_what_is_kept_is_reported_when_it_is_synced_and_once() -> None:
    _, syncer, partition, _ = make_proven()
    partition.end = 1
    syncer.request_in_turn(partition)
    syncer.begin_gathered()
    assert (syncer.kept, partition.events) == (partition, [])
    syncer.sync_kept()
    syncer.begin_gathered()
    assert (syncer.kept, partition.events) == (None, [1])


def test_disk_that_is_not_proven_syncs_in_a_worker() -> None:
    workers, syncer, partition = make()
    write(syncer, partition)
    assert (partition.events, len(workers.syncs)) == ([], 1)


def test_partitions_of_one_turn_sync_beside_each_other_in_workers() -> None:
    workers, syncer, partition, _ = make_proven()
    write(syncer, partition, FakePartition())
    assert (partition.events, len(workers.syncs)) == ([], 2)


def test_sync_that_nobody_waits_for_runs_in_a_worker() -> None:
    workers, syncer, partition, _ = make_proven()
    partition.is_awaited = False
    write(syncer, partition)
    assert len(workers.syncs) == 1


def test_sync_runs_in_a_worker_while_others_keep_the_loop_busy() -> None:
    workers, syncer, partition, _ = make_proven()
    write(syncer, partition)
    syncer.place.turns += 1
    write(syncer, partition)
    assert (len(workers.syncs), syncer.syncs_here_total) == (1, 1)
    workers.run_sync()
    write(syncer, partition)
    assert syncer.syncs_here_total == 2


def test_large_sync_runs_in_a_worker() -> None:
    workers, syncer, partition, _ = make_proven()
    partition.is_small = False
    write(syncer, partition)
    assert len(workers.syncs) == 1


@pytest.mark.parametrize("is_same", [True, False], ids=["of-the-same-partition", "of-another"])
def test_sync_beside_one_that_runs_goes_to_a_worker(is_same: bool) -> None:
    workers, syncer, partition, _ = make_proven()
    other: Any = partition if is_same else FakePartition()
    syncer.request(other)
    write(syncer, partition)
    assert partition.events == []
    workers.run_sync()
    workers.run_sync()
    assert (partition.events[-1], syncer.is_idle, syncer.syncs_here_total) == (1, True, 0)


def test_disk_that_turns_slow_holds_the_loop_up_once() -> None:
    workers, syncer, partition, clock = make_proven()
    partition.during_sync = lambda: clock.advance(SLOW_MS)
    write(syncer, partition)
    write(syncer, partition)
    assert (partition.events, len(workers.syncs)) == ([1], 1)


def test_slow_sync_in_a_worker_keeps_the_next_ones_from_the_loop() -> None:
    workers, syncer, partition, clock = make_proven()
    syncer.request(partition)
    partition.during_sync = lambda: clock.advance(SLOW_MS)
    workers.run_sync()
    write(syncer, partition)
    assert len(workers.syncs) == 1


def test_large_sync_says_nothing_about_how_fast_the_disk_is() -> None:
    workers, syncer, partition, clock = make_proven()
    partition.is_small = False
    partition.during_sync = lambda: clock.advance(SLOW_MS)
    syncer.request(partition)
    workers.run_sync()
    partition.is_small = True
    write(syncer, partition)
    assert syncer.syncs_here_total == 1


def test_failed_sync_here_is_told_as_one_in_a_worker_is() -> None:
    workers, syncer, partition, _ = make_proven()
    partition.error = FencedLogError("no")
    write(syncer, partition)
    assert partition.events == [partition.error]
    assert (len(workers.syncs), syncer.failures_total, syncer.is_idle) == (0, 1, True)


def test_defect_in_a_sync_here_fails_who_waited_and_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    _, syncer, partition, _ = make_proven()
    partition.error = ValueError("not in list")
    write(syncer, partition)
    assert isinstance(partition.events[0], StorageError)
    assert "this is a defect" in caplog.text
