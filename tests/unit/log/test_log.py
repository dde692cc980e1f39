"""A log appends all or nothing, rolls, syncs, and is fenced by a sync that fails."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from log_helpers import FOLDER, NOW_MS, Open, fill, make_batch, offsets_of, read_all

from anabranch.errors import AnabranchError, FencedLogError, OffsetOutOfRangeError, StorageError
from anabranch.log.disk.real_files import RealFiles
from anabranch.log.log import Log
from anabranch.log.segment.timestamps import settled
from anabranch.log.settings import LogConfig
from anabranch.testing.fakes.disk import FakeDisk, FakeFile
from anabranch.values import Offset, SegmentState


def test_what_was_appended_is_read_back_byte_for_byte(both_disks: Open) -> None:
    log = both_disks(segment_bytes=1000)
    written = fill(log, 50, count=3)
    assert len(log.segments) > 5
    assert read_all(log) == written
    assert read_all(log, bytes_max=1) == written
    assert read_all(log, bytes_max=300) == written


def test_a_clean_close_and_open_keeps_everything_without_a_scan(both_disks: Open) -> None:
    log = both_disks(segment_bytes=3000, index_interval_bytes=100)
    written = fill(log, 60, count=2)
    log.close()
    again = both_disks(clean=True, segment_bytes=3000, index_interval_bytes=100)
    assert again.scanned_bytes == 0
    assert again.end_offset == again.synced_offset == 120
    assert read_all(again) == written
    written += fill(again, 5)
    assert read_all(again) == written


def test_a_read_from_every_offset_begins_with_the_batch_that_holds_it(both_disks: Open) -> None:
    log = both_disks(segment_bytes=2000, index_interval_bytes=150)
    fill(log, 40, count=5)
    log.close()
    log = both_disks(clean=True, segment_bytes=2000, index_interval_bytes=150)
    for offset in range(200):
        assert offsets_of(read_all(log, offset, bytes_max=1)[:1]) == list(
            range(offset // 5 * 5, offset // 5 * 5 + 5)
        )


def test_one_append_may_fill_several_segments(both_disks: Open) -> None:
    log = both_disks(segment_bytes=300)
    batches = [make_batch(offset) for offset in range(20)]
    log.append(batches, NOW_MS)
    assert read_all(log) == [bytes(batch[0]) for batch in batches]
    assert all(segment.published_bytes <= 300 for segment in log.segments)
    states = [segment.state for segment in log.segments]
    assert states == [SegmentState.SEALED] * (len(states) - 1) + [SegmentState.ACTIVE]


def test_a_read_stops_before_the_offset_it_may_not_reach(open_log: Open) -> None:
    log = open_log(segment_bytes=600)
    fill(log, 20)
    for upto in range(21):
        batches: list[int] = []
        start = Offset(0)
        while (found := log.slice(start, 10_000, Offset(upto))).count:
            batches += offsets_of([found.read()])[:1]
            start = Offset(batches[-1] + found.count // len(make_batch(0)[0]))
        assert start == upto


def test_a_read_at_the_limit_is_empty_and_beyond_the_log_an_error(open_log: Open) -> None:
    log = open_log()
    fill(log, 3)
    assert log.slice(Offset(3), 100, Offset(3)).count == 0
    assert log.slice(Offset(2), 100, Offset(2)).count == 0
    with pytest.raises(OffsetOutOfRangeError):
        log.slice(Offset(4), 100, Offset(3))
    log.advance_start(Offset(2))
    with pytest.raises(OffsetOutOfRangeError):
        log.slice(Offset(1), 100, Offset(3))


def test_the_first_batch_comes_whole_only_if_asked_for(open_log: Open) -> None:
    log = open_log()
    first, *_ = fill(log, 3)
    assert log.slice(Offset(0), 10, Offset(3)).count == len(first)
    assert log.slice(Offset(0), 10, Offset(3), whole_first=False).count == 0
    assert log.slice(Offset(0), len(first) + 1, Offset(3), whole_first=False).count == len(first)


def test_a_segment_rolls_before_a_relative_offset_overflows(open_log: Open) -> None:
    log = open_log()
    fill(log, 2)
    far = 2**31 + 1
    log.append([make_batch(far)], NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, far]
    assert offsets_of(read_all(log)) == [0, 1, far]


def test_a_segment_rolls_by_age_of_its_records_and_when_asked(open_log: Open) -> None:
    log = open_log(segment_ms=1000)
    log.append([make_batch(0, timestamp=5000)], NOW_MS)
    log.append([make_batch(1, timestamp=6000)], NOW_MS)
    assert len(log.segments) == 1
    log.append([make_batch(2, timestamp=6001)], NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    assert not log.roll_if_due(NOW_MS + 1000)
    assert log.roll_if_due(NOW_MS + 1001)
    assert not log.roll_if_due(NOW_MS + 9000)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 3]


def test_a_segment_rolls_when_its_index_is_full(open_log: Open) -> None:
    log = open_log(index_interval_bytes=1, index_bytes_max=60)
    fill(log, 30)
    assert len(log.segments) > 3
    assert all(disk_bytes <= 60 for disk_bytes in (s._indexes()[1].size_bytes for s in log.segments))


def test_an_active_segment_follows_a_config_that_changes(open_log: Open) -> None:
    log = open_log(index_interval_bytes=1)
    fill(log, 10)
    log.config = LogConfig(index_interval_bytes=1, index_bytes_max=60)
    fill(log, 1)
    assert [segment.base_offset for segment in log.segments] == [0, 10]


@pytest.mark.parametrize(
    "look", [lambda log: settled(log.offset_for_time(NOW_MS)), lambda log: settled(log.max_timestamp())]
)
def test_a_lookup_by_time_on_a_failing_disk_is_a_storage_error(
    disk: FakeDisk, open_log: Open, look: Callable[[Log], object]
) -> None:
    log = open_log()
    fill(log, 3)
    disk.fail_next("read")
    with pytest.raises(StorageError):
        look(log)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_keeps_nothing_and_the_next_one_works(
    disk: FakeDisk, open_log: Open, error: int
) -> None:
    log = open_log(segment_bytes=500)
    written = fill(log, 3)
    files_before = disk.list("data/t-0")
    for failing in range(1, 6):
        disk.fail_next("write", error)
        with pytest.raises(StorageError):
            log.append([make_batch(offset) for offset in range(3, 3 + failing * 3)], NOW_MS)
        assert log.end_offset == 3
        assert disk.list("data/t-0") == files_before
    written += fill(log, 10)
    assert read_all(log) == written


def test_a_failure_in_the_second_segment_takes_back_the_first(disk: FakeDisk, open_log: Open) -> None:
    log = open_log(segment_bytes=500)
    written = fill(log, 3)
    disk.fail_next("create")
    with pytest.raises(StorageError):
        log.append([make_batch(offset) for offset in range(3, 20)], NOW_MS)
    assert (log.end_offset, len(log.segments)) == (3, 1)
    assert disk.size("data/t-0/00000000000000000000.log") == sum(map(len, written))


def test_a_short_write_is_completed_or_taken_back(disk: FakeDisk, open_log: Open) -> None:
    log = open_log()
    written = fill(log, 2)
    disk.short_next(10)
    written += fill(log, 1)
    assert read_all(log) == written
    disk.short_next(10)
    disk.capacity_bytes = disk._used_bytes() + 30
    with pytest.raises(StorageError):
        log.append([make_batch(3)], NOW_MS)
    assert disk.size("data/t-0/00000000000000000000.log") == sum(map(len, written))


def test_a_full_disk_refuses_writes_serves_reads_and_goes_on_when_room_returns(
    disk: FakeDisk, open_log: Open
) -> None:
    log = open_log(segment_bytes=800)
    written = fill(log, 10)
    disk.capacity_bytes = disk._used_bytes() + 50
    for _ in range(3):
        with pytest.raises(StorageError):
            log.append([make_batch(10)], NOW_MS)
        assert read_all(log) == written
    disk.capacity_bytes = None
    written += fill(log, 10)
    log.close()
    assert read_all(open_log(clean=True)) == written


def test_a_write_that_cannot_be_taken_back_fences_the_log(disk: FakeDisk, open_log: Open) -> None:
    log = open_log()
    fill(log, 2)
    disk.fail_next("write")
    disk.fail_next("truncate")
    with pytest.raises(FencedLogError):
        log.append([make_batch(2)], NOW_MS)
    with pytest.raises(FencedLogError):
        log.append([make_batch(2)], NOW_MS)
    assert offsets_of(read_all(log)) == [0, 1]


def test_a_failed_sync_fences_the_log_for_good_and_a_restart_finds_what_the_disk_has(
    disk: FakeDisk, open_log: Open
) -> None:
    log = open_log()
    fill(log, 4)
    assert log.sync() == 4
    fill(log, 4)
    disk.fail_next("sync")
    with pytest.raises(FencedLogError):
        log.sync()
    for _ in range(2):
        with pytest.raises(FencedLogError):
            log.sync()
        with pytest.raises(FencedLogError):
            log.append([make_batch(8)], NOW_MS)
    assert log.synced_offset == 4
    assert log.recovery_mark == (4, 4)
    disk.kill()
    assert open_log(point=4).end_offset == 4


def test_sync_reaches_segments_sealed_since_the_last_one(disk: FakeDisk, open_log: Open) -> None:
    log = open_log(segment_bytes=300)
    fill(log, 20)
    assert log.sync() == 20 == log.synced_offset
    for segment in log.segments:
        inode = disk.inode(segment.file.path)
        assert inode.durable == inode.visible
    assert log.sync() == 20


def test_sync_is_small_while_it_concerns_little_of_the_active_segment_alone(open_log: Open) -> None:
    log = open_log(segment_bytes=1000)
    assert not log.is_sync_small(1000), "the new file's name is not synced"
    log.sync()
    size = len(fill(log, 1)[0])
    assert (log.is_sync_small(size), log.is_sync_small(size - 1)) == (True, False)
    log.roll()
    assert not log.is_sync_small(1000), "a sealed segment and a new name"
    log.sync()
    fill(log, 1)
    assert log.is_sync_small(size)


def test_truncation_forgets_batches_durably_and_appends_go_on(both_disks: Open) -> None:
    log = both_disks(segment_bytes=1000, index_interval_bytes=100)
    written = fill(log, 40, count=2)
    log.truncate_to(Offset(31))
    assert log.end_offset == 30
    assert read_all(log) == written[:15]
    written[15:] = fill(log, 10)
    assert read_all(log) == written
    log.close()
    assert read_all(both_disks(clean=True)) == written


@pytest.mark.parametrize("base", [0, 17, 40, 5000])
def test_log_begins_anew_wherever_it_is_told_to(both_disks: Open, base: int) -> None:
    log = both_disks(segment_bytes=1000, index_interval_bytes=100)
    fill(log, 40, count=2)
    log.restart_at(Offset(base))
    assert (log.start_offset, log.synced_offset, log.end_offset) == (base, base, base)
    assert read_all(log) == []
    written = fill(log, 30)
    log.sync()
    assert read_all(log) == written
    log.close(clean=False)
    again = both_disks()
    assert again.start_offset == base
    assert read_all(again) == written


def test_log_that_cannot_begin_anew_is_fenced(disk: FakeDisk, open_log: Open) -> None:
    log = open_log()
    fill(log, 3)
    disk.fail_next("create")
    with pytest.raises(FencedLogError, match="could not begin anew"):
        log.restart_at(Offset(9))
    with pytest.raises(FencedLogError):
        log.append([make_batch(3)], NOW_MS)


def test_what_may_still_be_cut_is_not_promised_to_a_recovery(open_log: Open) -> None:
    log = open_log()
    fill(log, 5)
    log.sync()
    assert log.recovery_mark == (5, 5)
    log.firm_offset = Offset(3)
    assert log.recovery_mark == (3, 3)
    log.truncate_to(Offset(3))
    with pytest.raises(AssertionError, match="firm"):
        log.truncate_to(Offset(2))


def test_headers_come_from_the_asked_offset_to_the_end(open_log: Open) -> None:
    log = open_log(segment_bytes=700)
    fill(log, 12, count=2)
    assert [header.base_offset for header in log.batch_headers(Offset(5))] == list(range(4, 24, 2))


def test_a_sidecar_that_retention_removes_while_it_is_synced_fences_nothing(
    disk: FakeDisk, open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(segment_bytes=300)
    written = fill(log, 20)
    open_file = disk.open

    def open_and_remove(path: str) -> FakeFile:
        file = open_file(path)
        if path.endswith(".seal") and disk.exists(path):
            disk.unlink(path)
        return file

    monkeypatch.setattr(disk, "open", open_and_remove)
    assert log.sync() == 20
    assert not log.fenced
    assert read_all(log) == written


def test_a_log_whose_files_somebody_removes_is_fenced_and_promises_nothing_more(tmp_path: Path) -> None:
    log = Log.open(RealFiles(), f"{tmp_path}/t-0", LogConfig(), clean=False)
    fill(log, 3)
    assert log.sync() == 3
    shutil.rmtree(f"{tmp_path}/t-0")
    fill(log, 1)
    with pytest.raises(FencedLogError, match="somebody has removed the file"):
        log.sync()
    assert (log.fenced, log.synced_offset) == (True, 3)


# --- copies of another log


def test_a_log_may_go_on_behind_its_end_and_is_found_so_again(both_disks: Open) -> None:
    log = both_disks(segment_bytes=1000)
    written = fill(log, 3)
    log.advance_end(Offset(100))
    assert (log.start_offset, log.end_offset) == (0, 100)
    written += fill(log, 2)
    assert read_all(log) == written
    log.close()
    again = both_disks(clean=True, segment_bytes=1000)
    assert (read_all(again), again.end_offset) == (written, 102)


def test_a_log_without_records_may_begin_later(both_disks: Open) -> None:
    log = both_disks()
    log.advance_end(Offset(100))
    assert (log.start_offset, log.end_offset, len(log.segments)) == (100, 100, 1)
    assert log.sync() == 100
    written = fill(log, 2)
    assert read_all(log, 100) == written


@pytest.mark.parametrize("end", [0, 3, 6])
def test_a_log_is_cut_back_to_where_it_never_was(both_disks: Open, end: int) -> None:
    log = both_disks()
    log.advance_end(Offset(5))
    fill(log, 3)
    log.advance_start(Offset(7))
    log.cut_back(Offset(end))
    assert (log.start_offset <= end, log.end_offset, log.synced_offset <= end) == (True, end, True)
    written = fill(log, 2)
    assert read_all(log, log.start_offset)[-2:] == written
    log.close()
    assert both_disks(clean=True).end_offset == end + 2


def test_a_cut_within_a_gap_ends_right_there(both_disks: Open) -> None:
    log = both_disks()
    fill(log, 3)
    log.advance_end(Offset(10))
    fill(log, 2)
    log.cut_back(Offset(8))
    assert log.end_offset == 8
    fill(log, 1)
    assert offsets_of(read_all(log)) == [0, 1, 2, 8]


def test_a_cut_right_behind_a_gap_leaves_the_start_before_it(both_disks: Open) -> None:
    log = both_disks()
    log.advance_end(Offset(100), keeps_start=True)
    fill(log, 2)
    log.cut_back(Offset(100))
    assert (log.start_offset, log.end_offset) == (0, 100)
    fill(log, 1)
    log.close()
    again = both_disks(clean=True)
    assert (again.start_offset, offsets_of(read_all(again))) == (0, [100])


@pytest.mark.parametrize("clean", [True, False])
def test_an_empty_segment_may_make_room_for_a_later_one(both_disks: Open, clean: bool) -> None:
    log = both_disks()
    written = fill(log, 3)
    log.roll()
    log.advance_end(Offset(100))
    written += fill(log, 1)
    log.roll()
    far = 101 + 2**31
    batch = make_batch(far)  # Too far from where the empty segment begins to be written to it.
    log.append([batch], NOW_MS)
    written.append(bytes(batch[0]))
    log.sync()
    log.close(clean=clean)
    again = both_disks(clean=clean)
    assert (read_all(again), again.end_offset, again.quarantined) == (written, far + 1, [])


def test_a_write_that_fails_takes_back_where_the_next_segment_begins() -> None:
    disk = FakeDisk()
    log = Log.open(disk, "t-0", LogConfig(), clean=True)
    written = fill(log, 3)
    log.roll()
    disk.fail_next("write", errno.ENOSPC, path_contains=".log")
    with pytest.raises(StorageError):
        log.append([make_batch(2**32)], NOW_MS)
    written += fill(log, 2)
    log.close()
    again = Log.open(disk, "t-0", LogConfig(), clean=True)
    assert (read_all(again), again.quarantined) == (written, [])


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_may_begin_with_a_gap(both_disks: Open, clean: bool) -> None:
    log = both_disks(segment_bytes=100)
    batches = [make_batch(2**32 + number) for number in range(3)]
    for batch in batches:
        log.append([batch], NOW_MS)
    log.sync()
    log.close(clean=clean)
    again = both_disks(clean=clean, segment_bytes=100)
    assert (again.start_offset, len(again.segments), again.quarantined) == (0, 4, [])
    assert read_all(again, 5) == [bytes(batch[0]) for batch in batches]


def test_a_log_that_ends_with_its_first_gap_begins_where_it_did(both_disks: Open) -> None:
    log = both_disks()
    log.advance_end(Offset(100), keeps_start=True)
    log.advance_end(Offset(200), keeps_start=True)
    log.close()
    again = both_disks(clean=True)
    assert (again.start_offset, again.end_offset, again.readable_end(Offset(200))) == (0, 200, 0)
    written = fill(again, 2)
    assert read_all(again, 0) == written
    again.roll()
    again.delete_files(again.drop(again.expired(NOW_MS * 2)))
    assert (again.start_offset, len(again.segments)) == (202, 1)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_sound_headers_leave_out_damaged_batches_and_what_cannot_be_read(
    open_log: Open, disk: FakeDisk, is_sealed: bool
) -> None:
    def offsets(start: int) -> list[int]:
        told.clear()
        return [header.base_offset for header in log.sound_headers(Offset(start), told.append)]

    log, told = open_log(segment_bytes=1000), list[AnabranchError]()
    batches = fill(log, 30)
    log.close()
    bases = [segment.base_offset for segment in log.segments]
    second = f"{FOLDER}/{bases[1]:020d}"
    if not is_sealed:
        disk.unlink(f"{second}.seal")
    for position, bit in ((7, 4), (3, 0), (11, 2), (16, 1), (70, 3)):
        damaged = bases[1] + 3
        at = len(b"".join(batches[bases[1] : damaged])) + position
        disk.flip_bit(f"{second}.log", at, bit)
        log = open_log(clean=True, segment_bytes=1000)
        assert (offsets(4), len(told)) == ([n for n in range(4, 30) if n != damaged], 1)
        assert (offsets(bases[2]), told) == ([*range(bases[2], 30)], [])
        disk.flip_bit(f"{second}.log", at, bit)
    disk.fail_next("read", errno.EIO, path_contains=f"{second}.log")
    log = open_log(clean=True, segment_bytes=1000)
    assert offsets(0) == [*range(bases[1]), *range(bases[2], 30)]
    assert "cannot be read" in str(told[0])
