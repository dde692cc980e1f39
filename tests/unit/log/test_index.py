"""Indexes are found, kept in the format of Kafka, and refused when they cannot be true."""

import struct

import pytest
from log_helpers import FOLDER, NOW_MS, Open, fill, make_batch

from anabranch.errors import CorruptDataError
from anabranch.log.segment.index import IndexCache, OffsetIndex, TimeIndex
from anabranch.log.segment.ranges import Ranges
from anabranch.record.batch import batch_spans, read_header
from anabranch.testing.fakes.disk import FakeDisk


def test_entries_are_searched_and_kept_in_kafkas_format() -> None:
    index = OffsetIndex()
    for offset, position in [(3, 0), (7, 100), (9, 250)]:
        index.append(offset, position)
    assert index.dump() == struct.pack(">6i", 3, 0, 7, 100, 9, 250)
    loaded = OffsetIndex.load(index.dump(), 300)
    found = [loaded.entry_at_or_before(offset) for offset in (2, 3, 8, 99)]
    assert found == [None, (3, 0), (7, 100), (9, 250)]
    assert loaded.last_entry_within(0, 249) == (7, 100)
    assert loaded.last_entry_within(100, 249) is None


def test_a_time_entry_is_kept_only_where_the_largest_timestamp_grew() -> None:
    index = TimeIndex()
    for timestamp, offset in [(100, 1), (100, 2), (90, 3), (150, 4)]:
        index.append_if_later(timestamp, offset)
    assert index.dump() == struct.pack(">qiqi", 100, 1, 150, 4)
    assert [index.offset_before(timestamp) for timestamp in (100, 101, 150, 151)] == [0, 2, 2, 5]


@pytest.mark.parametrize(
    "entries", [(1,), (5, 0, 5, 10), (5, 10, 6, 10), (-1, 0), (1, -5), (1, 0, 2, 400), (1, 0, 0, 0)]
)
def test_an_index_that_cannot_be_true_is_refused(entries: tuple[int, ...]) -> None:
    with pytest.raises(CorruptDataError):
        OffsetIndex.load(struct.pack(f">{len(entries)}i", *entries), 300)


def test_the_files_of_a_segment_satisfy_kafkas_own_checks(open_log: Open, disk: FakeDisk) -> None:
    """The rules of DumpLogSegments: an index entry names the last offset of the batch at its position; a time
    entry names the last offset of a batch and its largest timestamp; both only grow."""
    log = open_log(segment_bytes=20_000, index_interval_bytes=500)
    for number in range(200):
        timestamp = NOW_MS + number * 7 % 100 * 10
        log.append([make_batch(log.end_offset, 3, timestamp=timestamp)], NOW_MS)
    log.close()
    for segment in log.segments:
        data = disk.read(segment.file.path)
        headers = {start: read_header(data, start) for start, _ in batch_spans(data)}
        by_last = {header.last_offset - segment.base_offset: header for header in headers.values()}
        index = list(struct.iter_unpack(">ii", disk.read(segment.paths()[1])))
        times = list(struct.iter_unpack(">qi", disk.read(segment.paths()[2])))
        assert index == sorted(set(index))
        assert times == sorted(set(times))
        assert len(index) >= len(data) // 1000
        for offset, position in index:
            assert headers[position].last_offset - segment.base_offset == offset
        for timestamp, offset in times:
            assert by_last[offset].max_timestamp == timestamp
        assert times[-1][0] == max(header.max_timestamp for header in headers.values())


def test_the_cache_forgets_the_least_used_beyond_its_limit() -> None:
    cache = IndexCache(bytes_max=200)
    loads: list[str] = []

    def load(name: str) -> tuple[OffsetIndex, TimeIndex]:
        loads.append(name)
        index = OffsetIndex()
        for number in range(10):
            index.append(number, number)
        return index, TimeIndex()

    for name in ["a", "b", "a", "c", "a", "b"]:
        cache.get(name, lambda name=name: load(name))
    assert loads == ["a", "b", "c", "b"]
    assert cache.size_bytes <= 200
    cache.discard("a")
    cache.discard("a")
    assert cache.size_bytes == 80


def test_an_active_log_writes_no_index_before_it_is_told(open_log: Open, disk: FakeDisk) -> None:
    log = open_log(index_interval_bytes=50)
    fill(log, 20)
    assert disk.list(FOLDER) == [f"{0:020d}.log"]
    log.flush_indexes()
    assert disk.list(FOLDER) == [f"{0:020d}{suffix}" for suffix in (".index", ".log", ".timeindex")]


def test_known_good_ranges_merge_and_are_cut() -> None:
    ranges = Ranges()
    for start, end in [(10, 20), (30, 40), (20, 25), (50, 50), (5, 8)]:
        ranges.add(start, end)
    assert list(ranges) == [(5, 8), (10, 25), (30, 40)]
    assert ranges.covers(11, 25)
    assert not ranges.covers(24, 31)
    assert not ranges.covers(0, 6)
    ranges.add(7, 31)
    assert list(ranges) == [(5, 40)]
    ranges.cut(17)
    assert list(ranges) == [(5, 17)]
    ranges.cut(5)
    assert list(ranges) == []
    assert ranges.covers(3, 3)
