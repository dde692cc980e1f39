"""The branch log: a row counts once it is synced, for good, and the rows of topics that are gone go at a start."""

import asyncio
from random import Random
from uuid import UUID

import pytest

from anabranch.broker.branch.branch_log import TUBE_FOLDER, BranchTube
from anabranch.errors import CorruptDataError, StorageError
from anabranch.log.disk.checkpoint import RecoveryPoint
from anabranch.modes.branch.rows import BranchRow, Lane, Source, Tip, opened, placed, sealed, started
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.disk import FakeDisk, PowerLoss
from anabranch.values import Offset
from support.broker_bench import DATA, in_loop, turn
from support.workers import HeldWorkers, InlineWorkers

KEY = UUID(int=5), 0
OTHER = UUID(int=6), 3
FIRST = opened(KEY, Tip(Lane(-1), Offset(0)), Lane(0), time_ms=7)
SECOND = opened(
    KEY,
    Tip(Lane(0), Offset(9)),
    Lane(5),
    sources=(Source(Lane(3), Offset(1), Offset(4), Offset(5 << 32)),),
    inputs=(Tip(Lane(3), Offset(4)),),
)
ROWS = [
    FIRST,
    sealed(KEY, Tip(Lane(0), Offset(9))),
    SECOND,
    started(KEY, Lane(5), Offset(3)),
    placed(OTHER, Tip(Lane(2), Offset(1)), 17),
]


def tube_on(disk: FakeDisk, workers: InlineWorkers | HeldWorkers | None = None) -> BranchTube:
    tube = BranchTube(disk, DATA, FakeClock(), workers or InlineWorkers())
    tube.open()
    return tube


@in_loop
async def test_rows_come_back_as_they_were() -> None:
    disk = FakeDisk()
    tube = tube_on(disk)
    assert await tube.add(ROWS) == ROWS
    assert await tube.add([*ROWS, FIRST]) == []
    for end in (disk.kill, lambda: disk.crash(Random(1))):
        end()
        again = tube_on(disk)
        assert again.rows == ROWS
        assert again.rows_since(3) == ROWS[3:]
        assert list(again.branches(KEY).opened) == [0, 5]
        assert again.branches(OTHER).placed_slot == 17


@in_loop
async def test_a_row_counts_once_it_is_synced_and_many_share_a_sync() -> None:
    disk, workers = FakeDisk(), HeldWorkers()
    tube = tube_on(disk, workers)
    heard: list[list[BranchRow]] = []
    tube.subscribe(heard.append)
    adding = [asyncio.ensure_future(tube.add([FIRST]))]
    await turn()
    adding += [asyncio.ensure_future(tube.add([row])) for row in ROWS[1:]]
    await turn()
    assert (tube.rows, heard) == ([], []), "nobody has heard of a row that a crash could take"
    assert len(workers.heavies) == 1
    for _ in range(2):
        workers.run_heavy()
        await turn()
    assert [task.result() for task in adding] == [[row] for row in ROWS]
    assert not workers.heavies, "those who came while the first was synced share the second"
    assert heard == [ROWS[:1], ROWS[1:]]


@in_loop
async def test_whoever_adds_a_row_that_is_on_its_way_waits_for_it_too() -> None:
    workers = HeldWorkers()
    tube = tube_on(FakeDisk(), workers)
    first = asyncio.ensure_future(tube.add([FIRST]))
    await turn()
    second = asyncio.ensure_future(tube.add([FIRST]))
    await turn()
    assert not second.done()
    workers.run_heavy()
    await turn()
    assert (first.result(), second.result()) == ([FIRST], [])


@in_loop
async def test_rows_that_cannot_be_synced_are_nobodys() -> None:
    disk = FakeDisk()
    tube = tube_on(disk)
    await tube.add([FIRST])
    heard: list[list[BranchRow]] = []
    tube.subscribe(heard.append)
    disk.fail_next("sync", path_contains=TUBE_FOLDER)
    adding = [asyncio.ensure_future(tube.add([SECOND])) for _ in range(2)]
    for task in adding:
        with pytest.raises(StorageError):
            await task
    assert (tube.rows, heard) == ([FIRST], [])
    with pytest.raises(StorageError):
        await tube.add([SECOND])


@in_loop
async def test_rows_of_topics_that_are_gone_go_at_a_start_whatever_happens_meanwhile() -> None:
    base = FakeDisk()
    await tube_on(base).add(ROWS)
    base.kill()
    whole = base.copy()
    BranchTube(whole, DATA, FakeClock(), InlineWorkers()).open(lambda topic: topic == KEY[0])
    steps = whole.operations - base.operations
    assert steps > 5
    for step in range(1, steps + 2):
        disk = base.copy()
        disk.crash_at = disk.operations + step
        tube = BranchTube(disk, DATA, FakeClock(), InlineWorkers())
        is_dark = False
        try:
            tube.open(lambda topic: topic == KEY[0])
        except PowerLoss:
            is_dark = True
        assert is_dark == (step <= steps)
        disk.crash(Random(step))
        again = tube_on(disk)
        assert again.rows in (ROWS, ROWS[-1:]), step
        again.open(lambda topic: topic == KEY[0])
        assert disk.list(DATA) == [TUBE_FOLDER], "nothing is left aside"
        third = tube_on(disk)
        assert third.rows == ROWS[-1:]


@in_loop
async def test_rows_of_topics_that_are_gone_are_not_taken_from_others_again() -> None:
    disk = FakeDisk()
    tube = tube_on(disk)
    await tube.add(ROWS)
    await tube.forget([KEY[0]])
    disk.kill()
    again = tube_on(disk)
    assert again.rows == ROWS[-1:]
    assert await again.add(ROWS) == []
    assert again.rows == ROWS[-1:]
    await again.forget([OTHER[0]])
    assert tube_on(disk).rows == []


@in_loop
async def test_a_log_that_has_lost_rows_in_its_middle_is_not_opened() -> None:
    disk = FakeDisk()
    tube = tube_on(disk)
    for row in ROWS:
        await tube.add([row])
    path = f"{DATA}/{TUBE_FOLDER}/{0:020d}.log"
    disk.flip_bit(path, 100)
    disk.kill()
    with pytest.raises(CorruptDataError, match="restore"):
        tube_on(disk)


@in_loop
async def test_a_log_that_has_lost_its_end_is_not_opened_if_that_was_safe() -> None:
    disk = FakeDisk()
    tube = tube_on(disk)
    for row in ROWS:
        await tube.add([row])
    mark = tube.recovery_mark
    point = RecoveryPoint(mark.written, mark.synced)
    path = f"{DATA}/{TUBE_FOLDER}/{0:020d}.log"
    disk.open(path).truncate(disk.size(path) - 1)
    disk.kill()
    with pytest.raises(CorruptDataError, match="restore"):
        BranchTube(disk, DATA, FakeClock(), InlineWorkers()).open(point=point)


@in_loop
async def test_a_log_that_was_written_anew_reaches_as_far_as_before() -> None:
    disk = FakeDisk()
    tube = tube_on(disk)
    await tube.add(ROWS)
    mark = tube.recovery_mark
    point = RecoveryPoint(mark.written, mark.synced)
    for is_gone in (KEY[0], OTHER[0]):
        disk.kill()
        tube = BranchTube(disk, DATA, FakeClock(), InlineWorkers())
        tube.open(lambda topic, is_gone=is_gone: topic == is_gone, point)  # type: ignore[misc]
    assert tube.rows == []
    assert tube.recovery_mark.synced >= point.synced
