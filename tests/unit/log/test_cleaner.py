"""Compaction keeps the last value of every key, wherever it is stopped."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from compacted_logs import (
    CONFIG,
    due_plan,
    fill_table,
    killed_at_every_step,
    open_compacted,
    opened_as_before,
    put,
    small_segments,
    table,
)
from log_helpers import FOLDER, NOW_MS, offsets_of, read_all

from anabranch.errors import CorruptDataError, StorageError
from anabranch.log.cleaner import CleanPlan, clean_now, map_keys, most_urgent, plan, rewrite
from anabranch.log.disk.real_files import RealFiles
from anabranch.log.log import Log
from anabranch.log.settings import LogConfig
from anabranch.record.batch import read_header
from anabranch.record.builder import control_batch
from anabranch.record.records import records_of
from anabranch.testing.fakes.disk import FakeDisk, Operation, PowerLoss
from anabranch.values import Offset


def test_cleaning_keeps_the_last_value_of_every_key_and_every_offset() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(1), 100)
    before, size, end = table(log), log.size_bytes, log.end_offset
    clean = clean_now(disk, log, due_plan(log))
    assert clean == log.segments[-1].base_offset
    assert table(log) == before
    assert log.size_bytes < size / 3
    assert log.end_offset == end
    offsets = [r.offset for batch in read_all(log) for r in records_of(batch)]
    assert offsets == sorted(set(offsets))
    log.close()
    assert table(open_compacted(disk, clean=True)) == before
    disk.kill()
    again = open_compacted(disk)
    assert (table(again), again.quarantined) == (before, [])


def test_cleaning_works_on_the_machines_own_disk_with_few_descriptors(tmp_path: Path) -> None:
    files = RealFiles(open_files_max=2)
    log = Log.open(files, f"{tmp_path}/t-0", CONFIG, clean=False)
    fill_table(log, Random(1), 100)
    before = table(log)
    clean_now(files, log, due_plan(log))
    assert table(log) == before
    log.close()
    again = Log.open(files, f"{tmp_path}/t-0", CONFIG, clean=True)
    assert table(again) == before
    again.close()
    assert not [name for name in files.list(log.folder) if name.endswith((".clean", ".swap", ".deleted"))]


def test_a_read_from_every_offset_works_across_what_was_taken_out() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(2), 60)
    clean_now(disk, log, due_plan(log))
    bases = [read_header(batch).base_offset for batch in read_all(log)]
    ends = [read_header(batch).next_offset for batch in read_all(log)]
    for offset in range(log.end_offset):
        found = read_all(log, offset)
        expected = next(base for base, end in zip(bases, ends, strict=True) if end > offset)
        assert read_header(found[0]).base_offset == expected


@pytest.mark.parametrize("seed", range(4))
def test_compaction_killed_at_every_step_keeps_the_last_value_of_every_key(seed: int) -> None:
    for killed in killed_at_every_step(seed, lambda disk, log: clean_now(disk, log, due_plan(log))):
        for after in killed.disks(12):
            again = opened_as_before(killed, after)
            assert not [name for name in after.list(FOLDER) if name.endswith((".clean", ".swap", ".deleted"))]
        clean_now(after, again, due_plan(again))
        assert table(again) == killed.table, f"step {killed.step}, cleaned again"
    assert killed.step > 20


def test_recovery_killed_at_every_step_of_completing_a_swap_completes_it_later() -> None:
    for step in range(1, 200):
        disk = FakeDisk()
        log = small_segments(disk, Random(5))
        log.sync()
        before = table(log)
        mapped = map_keys(due_plan(log))
        rewrite(disk, mapped, mapped.groups[0])
        disk.crash(Random(step))
        disk.crash_at = disk.operations + step
        try:
            open_compacted(disk)
            finished = True
        except PowerLoss:
            finished = False
        disk.crash(Random(step))
        again = open_compacted(disk)
        assert (table(again), again.quarantined) == (before, [])
        if finished:
            break
    assert 8 < step < 100


def test_a_full_map_cleans_as_far_as_it_reached_and_goes_on_from_there() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(3), 80, keys=40)
    before = table(log)
    dirty, runs = Offset(0), 0
    while (found := plan(log, dirty, NOW_MS)) is not None:
        reached = clean_now(disk, log, found, keys_max=6)
        assert reached > dirty
        assert table(log) == before
        dirty, runs = reached, runs + 1
    assert runs > 3


def test_the_map_of_one_run_never_exceeds_its_limit() -> None:
    log = open_compacted(FakeDisk())
    fill_table(log, Random(3), 80, keys=40)
    mapped = map_keys(due_plan(log), keys_max=10)
    assert 0 < len(mapped.latest) <= 10


def test_tombstones_stay_for_their_retention_and_go_afterwards() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    put(log, [(b"a", b"1"), (b"b", b"1")])
    put(log, [(b"a", None)])
    log.roll()
    put(log, [(b"c", b"1")])
    log.roll()
    clean_now(disk, log, due_plan(log))
    assert table(log) == {b"b": b"1", b"a": None, b"c": b"1"}
    clean_now(disk, log, due_plan(log, now_ms=NOW_MS + CONFIG.delete_retention_ms - 1))
    assert b"a" in table(log)
    clean_now(disk, log, due_plan(log, now_ms=NOW_MS + CONFIG.delete_retention_ms))
    assert table(log) == {b"b": b"1", b"c": b"1"}


def test_the_last_batch_of_a_producer_stays_though_it_is_empty() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    put(log, [(b"a", b"1")], producer_id=7, producer_epoch=0, base_sequence=0)
    put(log, [(b"a", b"2")], producer_id=7, producer_epoch=0, base_sequence=1)
    put(log, [(b"a", b"3")])
    log.roll()
    clean_now(disk, log, due_plan(log))
    headers = [read_header(batch) for batch in read_all(log)]
    assert [(h.producer_id, h.base_sequence, h.record_count) for h in headers] == [(7, 1, 0), (-1, -1, 1)]
    log.close()
    assert table(open_compacted(disk, clean=True)) == {b"a": b"3"}


def test_transactional_and_control_batches_stay_and_replace_nothing() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    put(log, [(b"a", b"committed")])
    put(log, [(b"a", b"aborted")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    base = log.end_offset
    marker = control_batch(
        committed=False,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=NOW_MS,
        base_offset=base,
    )
    log.append([(marker, base, base, NOW_MS)], NOW_MS)
    log.roll()
    clean_now(disk, log, due_plan(log))
    assert offsets_of(read_all(log)) == [0, 1, 2]
    put(log, [(b"a", b"later")])
    log.roll()
    clean_now(disk, log, due_plan(log))
    assert offsets_of(read_all(log)) == [1, 2, 3]


def test_small_neighbours_are_merged_and_the_active_segment_is_left_alone() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(4), 120, keys=2)
    active = log.segments[-1]
    count = len(log.segments)
    dirty = clean_now(disk, log, due_plan(log))
    assert log.segments[-1] is active
    fill_table(log, Random(5), 40, keys=2)
    clean_now(disk, log, due_plan(log, dirty))
    assert len(log.segments) < count / 2
    assert all(segment.published_bytes <= CONFIG.segment_bytes for segment in log.segments)


def test_a_segment_emptied_by_the_cleaner_is_no_damage() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    put(log, [(b"a", b"0")])
    log.roll()
    for value in range(30):
        put(log, [(b"a", b"%d" % value * 20)])
    log.roll()
    put(log, [(b"b", b"0")])
    clean_now(disk, log, due_plan(log))
    assert not log.segments[0].published_bytes
    log.sync()
    before = table(log)
    disk.crash(Random(1))
    again = open_compacted(disk)
    assert (again.quarantined, table(again)) == ([], before)


def test_a_swap_is_given_up_if_retention_was_faster() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(6), 40)
    mapped = map_keys(due_plan(log))
    rewritten = rewrite(disk, mapped, mapped.groups[0])
    gone = log.drop([log.segments[0]])
    log.delete_files(gone)
    after = read_all(log)
    assert not log.swap_in(rewritten)
    log.finish_swap(rewritten)
    assert read_all(log) == after
    assert not [name for name in disk.list(FOLDER) if name.endswith(".swap")]


def test_retention_may_take_a_segment_between_swap_and_finish() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(6), 40)
    mapped = map_keys(due_plan(log))
    rewritten = rewrite(disk, mapped, mapped.groups[0])
    assert log.swap_in(rewritten)
    log.delete_files(log.drop([log.segments[0]]))
    log.finish_swap(rewritten)
    after = read_all(log)
    disk.kill()
    again = Log.open(disk, FOLDER, CONFIG, clean=False, start_offset=log.start_offset)
    assert (read_all(again), again.quarantined) == (after, [])


def test_a_reader_of_a_replaced_segment_never_gets_bytes_of_the_new_one() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(7), 60)
    pinned, unpinned = (log.slice(Offset(0), 10_000, log.end_offset) for _ in range(2))
    pinned.pin()
    expected = pinned.read()
    clean_now(disk, log, due_plan(log))
    assert pinned.read() == expected
    pinned.unpin()
    with pytest.raises(StorageError):
        unpinned.read()


def test_a_damaged_segment_is_not_rewritten() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(8), 60)
    disk.flip_bit(log.segments[1].file.path, 80)
    before = {name: disk.read(f"{FOLDER}/{name}") for name in disk.list(FOLDER) if name.endswith(".log")}
    with pytest.raises(CorruptDataError):
        clean_now(disk, log, due_plan(log))
    after = {name: disk.read(f"{FOLDER}/{name}") for name in disk.list(FOLDER) if name.endswith(".log")}
    assert before == after


def test_a_full_disk_stops_the_cleaner_and_loses_nothing() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(9), 60)
    before = table(log)
    disk.capacity_bytes = disk._used_bytes()
    with pytest.raises(StorageError):
        clean_now(disk, log, due_plan(log))
    assert table(log) == before
    disk.capacity_bytes = None
    clean_now(disk, log, due_plan(log))
    assert table(log) == before


def test_what_is_younger_than_the_minimal_lag_is_left_and_what_is_overdue_goes_first() -> None:
    young = LogConfig(segment_bytes=600, compacted=True, compaction_lag_ms_min=1000)
    log = open_compacted(FakeDisk(), config=young)
    fill_table(log, Random(1), 30)
    assert plan(log, Offset(0), NOW_MS + 999) is None
    assert due_plan(log, now_ms=NOW_MS + 1000).dirty_bytes > 0

    lazy = LogConfig(segment_bytes=600, compacted=True, dirty_ratio_min=1.0, compaction_lag_ms_max=1000)
    log = open_compacted(FakeDisk(), config=lazy)
    fill_table(log, Random(1), 30)
    dirty = log.segments[1].base_offset
    assert not due_plan(log, dirty, NOW_MS + 1000).is_due
    overdue, fresh = due_plan(log, dirty, NOW_MS + 1001), due_plan(log, 0, NOW_MS)
    assert overdue.is_due
    assert most_urgent([fresh, overdue]) is overdue
    assert most_urgent([]) is None


@pytest.mark.parametrize("clean", [False, True])
def test_segments_of_which_nothing_stayed_need_no_seal(clean: bool) -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    for number in range(60):
        put(log, [(b"k%d" % (number % 3), b"x" * 30)])
    before = table(log)
    clean_now(disk, log, planned(log))
    assert any(not segment.published_bytes for segment in log.segments)
    log.close()
    disk.kill()
    for name in disk.list(FOLDER):
        if name.endswith(".seal"):
            disk.unlink(f"{FOLDER}/{name}")
    again = open_compacted(disk, clean=clean)
    assert (again.end_offset, again.quarantined) == (60, [])
    assert table(again) == before


@pytest.mark.parametrize("operation", ["rename", "sync_folder", "unlink"])
@pytest.mark.parametrize("count", range(12))
def test_a_swap_the_disk_refuses_half_way_is_ended_before_the_next(operation: Operation, count: int) -> None:
    disk = FakeDisk()
    log = small_segments(disk, Random(3))
    before, end = table(log), log.end_offset
    fail_after(disk, operation, count)
    try:
        clean_now(disk, log, planned(log))
    except StorageError:
        log.config = replace(CONFIG, segment_bytes=100_000)  # Other neighbours are merged than before.
    disk.forget_faults()
    clean_now(disk, log, planned(log))
    assert table(log) == before
    log.close(clean=False)
    disk.kill()
    again = open_compacted(disk)
    assert (again.end_offset, again.quarantined) == (end, [])
    assert table(again) == before


def planned(log: Log) -> CleanPlan:
    found = plan(log, Offset(0), NOW_MS)
    assert found is not None
    return found


def fail_after(disk: FakeDisk, operation: Operation, count: int) -> None:
    """Let the operation of this kind fail that follows `count` others."""
    if count:
        disk.wait_before(operation, lambda: fail_after(disk, operation, count - 1))
    else:
        disk.fail_next(operation)
