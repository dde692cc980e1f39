"""Which segments go, by age, size and DeleteRecords, and lookups by time."""

from random import Random

import pytest
from log_helpers import FOLDER, NOW_MS, Open, fill, make_batch, read_all

from anabranch.log.log import Log
from anabranch.log.retention import Age, expired_count
from anabranch.log.segment.timestamps import settled
from anabranch.log.settings import LogConfig
from anabranch.testing.fakes.disk import FakeDisk, PowerLoss
from anabranch.values import Offset

AGES = [Age(100, 1000, Offset(10)), Age(100, 3000, Offset(20)), Age(100, 2000, Offset(30))]


def count(now_ms: int = 0, start: int = 0, active: int = 50, **config: int | bool) -> int:
    return expired_count(AGES, active, Offset(start), LogConfig(**config), now_ms)


def test_segments_go_by_age_from_the_old_end_only() -> None:
    assert count(1500, retention_ms=500) == 0
    assert count(1501, retention_ms=500) == 1
    assert count(2600, retention_ms=500) == 1
    assert count(3501, retention_ms=500) == 3
    assert count(10**9, retention_ms=-1) == 0
    assert count(10**9, retention_ms=0, deleted=False) == 0


def test_a_segment_without_timestamps_does_not_age() -> None:
    ages = [Age(100, -1, Offset(10))]
    assert expired_count(ages, 0, Offset(0), LogConfig(retention_ms=0), 10**15) == 0


def test_segments_go_by_size_while_the_rest_still_holds_enough() -> None:
    assert count(retention_bytes=250) == 1
    assert count(retention_bytes=251) == 0
    assert count(retention_bytes=150) == 2
    assert count(retention_bytes=0) == 3
    assert count(retention_bytes=-1) == 0
    assert count(retention_bytes=0, deleted=False) == 0


def test_segments_below_the_start_of_the_log_go_whatever_the_policy() -> None:
    assert count(start=20, deleted=False) == 2
    assert count(start=19, deleted=False) == 1


def test_an_expired_active_segment_is_rolled_and_goes_too(open_log: Open, disk: FakeDisk) -> None:
    log = open_log(segment_bytes=300, retention_ms=1000)
    fill(log, 10)
    gone = log.expired(NOW_MS + 2000)
    assert len(gone) == len(log.segments) - 1
    dropped = log.drop(gone)
    log.delete_files(dropped)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (10, 10, 0)
    assert disk.list(FOLDER) == [f"{10:020d}.log"]
    assert len(fill(log, 1)) == len(read_all(log)) == 1


def test_deletion_killed_at_every_step_leaves_no_hole() -> None:
    for step in range(1, 100):
        disk = FakeDisk()
        config = LogConfig(segment_bytes=300, retention_ms=1000)
        log = Log.open(disk, FOLDER, config, clean=False)
        written = fill(log, 20)
        log.sync()
        gone = log.segments[:4]
        disk.crash_at = disk.operations + step
        finished = True
        try:
            log.delete_files(log.drop(gone))
        except PowerLoss:
            finished = False
        disk.crash(Random(step))
        again = Log.open(disk, FOLDER, config, clean=False)
        assert again.quarantined == []
        assert read_all(again) == written[again.start_offset :]
        assert again.start_offset <= gone[-1].published_offset
        if finished:
            break
    assert step > 8


def test_records_are_found_by_their_time(open_log: Open) -> None:
    log = open_log(segment_bytes=400, index_interval_bytes=100)
    for number in range(30):
        log.append([make_batch(log.end_offset, 3, timestamp=NOW_MS + 100 * number)], NOW_MS)
    log.close()
    log = open_log(clean=True, segment_bytes=400, index_interval_bytes=100)
    assert settled(log.offset_for_time(0)) == (0, NOW_MS, 3)
    assert settled(log.offset_for_time(NOW_MS + 1)) == (1, NOW_MS + 1, 3)
    assert settled(log.offset_for_time(NOW_MS + 3)) == (3, NOW_MS + 100, 3)
    assert settled(log.offset_for_time(NOW_MS + 2901)) == (88, NOW_MS + 2901, 3)
    assert settled(log.offset_for_time(NOW_MS + 2903)) is None
    assert settled(log.max_timestamp()) == (89, NOW_MS + 2902, 3)
    log.advance_start(Offset(50))
    assert settled(log.offset_for_time(0)) == (50, NOW_MS + 1602, 3)


def test_the_largest_timestamp_need_not_be_the_last(open_log: Open) -> None:
    log = open_log(segment_bytes=400, index_interval_bytes=100)
    for number in range(10):
        log.append([make_batch(log.end_offset, timestamp=NOW_MS + (number * 7) % 10)], NOW_MS)
    log.close()
    log = open_log(clean=True)
    assert settled(log.max_timestamp()) == (7, NOW_MS + 9, 3)
    assert settled(log.offset_for_time(NOW_MS + 8)) == (4, NOW_MS + 8, 3)
    empty = Log.open(FakeDisk(), FOLDER, LogConfig(), clean=False)
    assert (settled(empty.max_timestamp()), settled(empty.offset_for_time(0))) == (None, None)


@pytest.mark.parametrize("segment", [0, -1], ids=["sealed", "active"])
@pytest.mark.parametrize("spoiled", ["older", "shorter"])
def test_a_time_index_that_lies_costs_no_segment(
    open_log: Open, disk: FakeDisk, segment: int, spoiled: str
) -> None:
    config = {"segment_bytes": 2000, "index_interval_bytes": 100, "retention_ms": 1000}
    log = open_log(**config)
    for number in range(30):  # In both segments the youngest record is in the middle.
        age_ms = 500 if number in (10, 25) else 5000
        log.append([make_batch(log.end_offset, timestamp=NOW_MS - age_ms)], NOW_MS)
    assert len(log.segments) == 2
    path = log.segments[segment].paths()[2]
    log.close()
    data = disk.read(path)
    disk.kill()
    disk.write(
        path, data[:12] + (NOW_MS - 4000).to_bytes(8, "big") + data[-4:] if spoiled == "older" else data[:12]
    )
    log = open_log(clean=True, **config)
    assert log.expired(NOW_MS) == []
    assert len(log.segments) == 2
    assert len(log.expired(NOW_MS + 501)) == 2


def test_a_power_cut_while_all_is_dropped_leaves_the_segment_that_goes_on() -> None:
    for step in range(1, 30):
        for seed in range(12):
            disk = FakeDisk()
            log = Log.open(disk, FOLDER, LogConfig(), clean=False)
            fill(log, 5)
            log.sync()
            disk.crash_at = disk.operations + step
            try:
                log.roll()
                log.delete_files(log.drop(log.segments[:-1]))
            except PowerLoss:
                pass
            disk.crash(Random(seed))
            assert Log.open(disk, FOLDER, LogConfig(), clean=False).end_offset == 5, (step, seed)
