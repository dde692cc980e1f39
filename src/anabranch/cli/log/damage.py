"""The damaged stretches of one segment, and how many records are intact around them.

A segment is surveyed from its beginning, as a node that serves it does (`log/segment/soundness.py`): only the batches
on both sides of a batch with a wrong offset tell which one is wrong.
"""

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.log.disk.files import File
from anabranch.log.segment.scan import Scan
from anabranch.log.segment.seal import Region
from anabranch.log.segment.soundness import survey, survey_regions
from anabranch.record.batch import HEADER_BYTES, LOG_OVERHEAD, MAGIC, BatchHeader, read_header


class Stretch(NamedTuple):
    """Bytes between two intact batches."""

    start: int
    end: int
    records: int
    """How many cannot be read any more: none, if these bytes never were records. Where the heads of its batches are
    damaged too and the log may have gaps, at least so many."""
    is_in_heads: bool
    """Every CRC holds: only the sum over batch heads, or the order of offsets, does not."""


@dataclass(slots=True)
class Survey:
    """What a segment holds. `next_offset` follows its last intact record."""

    batches: int
    next_offset: int
    missing_offsets: int
    intact: list[tuple[int, int]] | None = None
    """The position and the record count of each intact batch. None if nothing is damaged: nobody looked."""
    stretches: list[Stretch] = field(default_factory=list)


def survey_segment(
    file: File,
    size_bytes: int,
    regions: list[Region],
    offsets: range,
    scan: Scan,
    end: int | None,
    *,
    gaps_allowed: bool,
) -> Survey:
    """Survey a segment in which `scan` met damage, or whose heads disagree with their sums. `end` is the offset that
    must follow the segment; None if that is unknown."""
    with _mapped(file, size_bytes) as data:
        sound = survey_regions(
            regions,
            lambda region: data[region.start : region.end],
            offsets,
            next_offset=offsets.start,
            end_offset=end,
        )
        intact = [(batch.position, read_header(data, batch.position).record_count) for batch in sound]
        seen = Survey(len(sound), offsets.start, 0, intact)
        reached = 0
        for batch in sound:
            if batch.position == reached:
                seen.missing_offsets += batch.base_offset - seen.next_offset
            else:
                stretch = data, reached, batch.position, seen.next_offset, batch.base_offset
                _add(seen, _stretches(*stretch, scan, gaps_allowed), batch.base_offset)
            reached, seen.next_offset = batch.end, batch.last_offset + 1
        if reached < len(data):
            _add(seen, _stretches(data, reached, len(data), seen.next_offset, end, scan, gaps_allowed), end)
        return seen


@contextmanager
def _mapped(file: File, size_bytes: int) -> Iterator[memoryview]:
    file.pin()
    try:
        descriptor = file.fileno()
        assert descriptor is not None, "segments lie in files"
        with (
            mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ) as whole,
            memoryview(whole) as data,
        ):
            yield data
    finally:
        file.unpin()


def _add(seen: Survey, found: Iterator[Stretch], following: int | None) -> None:
    """Add these stretches, and count the offsets that none of their records had as missing."""
    stretches = list(found)
    seen.stretches.extend(stretches)
    if following is not None:
        damaged = sum(stretch.records for stretch in stretches)
        seen.missing_offsets += max(0, following - seen.next_offset - damaged)


def _stretches(
    data: memoryview,
    start: int,
    end: int,
    offset: int,
    following: int | None,
    scan: Scan,
    gaps_allowed: bool,
) -> Iterator[Stretch]:
    """The stretch of these bytes, which should have the records from `offset` up to `following`; two stretches if the
    walk ended within."""
    span = None if following is None else following - offset
    records = _count(data, start, end, offset, span, gaps_allowed)
    if start < scan.position < end:
        walked = scan.next_offset - offset if span is None else min(scan.next_offset - offset, span)
        first = min(records, _count(data, start, scan.position, offset, walked, gaps_allowed))
        yield Stretch(start, scan.position, first, _holds(data, start, scan.position))
        start, records = scan.position, records - first
    yield Stretch(start, end, records, _holds(data, start, end))


def _count(data: memoryview, start: int, end: int, offset: int, span: int | None, gaps_allowed: bool) -> int:
    """How many records the damaged batches of these bytes had: what their heads say, but no more than the `span` of
    offsets from `offset` up to the batch behind them. Where a head is damaged, a log without gaps had one record per
    offset. Bytes at the end of a log, where nothing is known of what should follow, need to begin like a batch."""
    if span is None and not _begins_like_batch(data, start, end, offset):
        return 0
    claimed, is_believable = _claimed(data, start, end, gaps_allowed)
    if span is None:
        return claimed
    return min(max(0, span), claimed) if is_believable or gaps_allowed else max(0, span)


def _begins_like_batch(data: memoryview, start: int, end: int, offset: int) -> bool:
    """Whether these bytes have the magic of a batch, or the base offset that is due and a length."""
    if end - start < LOG_OVERHEAD:
        return False
    if end - start >= HEADER_BYTES and read_header(data, start).magic == MAGIC:
        return True
    base, length = int.from_bytes(data[start : start + 8]), data[start + 8 : start + LOG_OVERHEAD]
    return base == offset and any(length)


def _holds(data: memoryview, start: int, end: int) -> bool:
    with data[start:end] as part:
        return (
            sum(batch.end - batch.position for batch in survey(part, Region(0, end - start, None)))
            == end - start
        )


def _claimed(data: memoryview, start: int, end: int, gaps_allowed: bool) -> tuple[int, bool]:
    """How many records the heads of these batches say they have, at least one each, and whether all can be believed."""
    records, is_believable = 0, True
    while start < end:
        if end - start < HEADER_BYTES:
            return records + 1, False
        header = read_header(data, start)
        is_likely = header.magic == MAGIC and _fits(header, end - start, gaps_allowed)
        records += max(1, header.record_count) if is_likely else 1
        is_believable = is_believable and is_likely
        if header.magic != MAGIC or not HEADER_BYTES <= header.size_bytes <= end - start:
            return records, False
        start += header.size_bytes
    return records, is_believable


def _fits(header: BatchHeader, size_bytes: int, gaps_allowed: bool) -> bool:
    """Whether a batch may have so many records, by its offsets and, with the cleaner's gaps among those, its bytes."""
    count, offsets = header.record_count, header.last_offset_delta + 1
    return 0 <= count <= min(offsets, size_bytes) if gaps_allowed else 0 < count == offsets
