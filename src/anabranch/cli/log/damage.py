"""The damaged stretches of one segment, and how many records are intact around them.

A segment is surveyed as a node does that serves it (`log/segment/soundness.py`), from its beginning: where a batch lies
about its offset, only those on both sides of it tell which one it is.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.log.segment.scan import Scan
from anabranch.log.segment.seal import Region
from anabranch.log.segment.soundness import SoundBatch, survey
from anabranch.record.batch import HEADER_BYTES, MAGIC, read_header


class Stretch(NamedTuple):
    """Bytes between two batches that hold."""

    start: int
    end: int
    records: int
    """How many cannot be read any more; where not even a header can be, at least so many."""
    is_in_heads: bool
    """Every CRC holds: only the sum over batch heads, or the order of offsets, does not."""


@dataclass(slots=True)
class Survey:
    """`next_offset` is behind the last record that is intact."""

    batches: int
    next_offset: int
    missing_offsets: int
    intact_records: int | None = None
    """None: nobody has counted them, since nothing is damaged."""
    intact_behind: int = 0
    """Those behind the place where the walk over the segment ended."""
    stretches: list[Stretch] = field(default_factory=list)


def survey_segment(path: str, regions: list[Region], offsets: range, scan: Scan, end: int | None) -> Survey:
    """Of a segment in which `scan` met damage, or whose heads disagree with their sums. `end` is the offset that must
    follow the segment; None if nothing tells."""
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole,
        memoryview(whole) as data,
    ):
        sound = _sound(data, regions, offsets)
        counts = [read_header(data, batch.position).record_count for batch in sound]
        behind = (
            count for batch, count in zip(sound, counts, strict=True) if batch.position >= scan.position
        )
        seen = Survey(len(sound), offsets.start, 0, sum(counts), sum(behind))
        reached = 0
        for batch in sound:
            if batch.position == reached:
                seen.missing_offsets += batch.base_offset - seen.next_offset
            else:
                holes = _stretches(data, reached, batch.position, seen.next_offset, batch.base_offset, scan)
                seen.stretches.extend(holes)
            reached, seen.next_offset = batch.end, batch.last_offset + 1
        if reached < len(data):
            seen.stretches.extend(_stretches(data, reached, len(data), seen.next_offset, end, scan))
        return seen


def _sound(data: memoryview, regions: list[Region], offsets: range) -> list[SoundBatch]:
    surveyed: list[list[SoundBatch]] = []
    behind: list[SoundBatch] = []
    for region in reversed(regions):
        with data[region.start : region.end] as part:
            found = survey(part, region, offsets, behind if region.crc is None else ())
        surveyed.append(found)
        behind = found[:2] or behind
    return [batch for found in reversed(surveyed) for batch in found]


def _stretches(
    data: memoryview, start: int, end: int, offset: int, following: int | None, scan: Scan
) -> Iterator[Stretch]:
    """The stretch of these bytes, which should hold the records from `offset` up to `following`; two of them if the
    walk ended between. What it passed has records enough to be counted."""
    if start < scan.position < end:
        middle = scan.next_offset if following is None else min(scan.next_offset, following)
        yield Stretch(start, scan.position, max(1, middle - offset), _holds(data, start, scan.position))
        start, offset = scan.position, max(offset, middle)
    records = _claimed(data, start) if following is None else max(1, following - offset)
    yield Stretch(start, end, records, _holds(data, start, end))


def _holds(data: memoryview, start: int, end: int) -> bool:
    with data[start:end] as part:
        return (
            sum(batch.end - batch.position for batch in survey(part, Region(0, end - start, None)))
            == end - start
        )


def _claimed(data: memoryview, position: int) -> int:
    """How many records a damaged batch at the end says it has, if that can be believed."""
    if len(data) - position < HEADER_BYTES:
        return 1
    header = read_header(data, position)
    is_likely = header.magic == MAGIC and 0 < header.record_count == header.last_offset_delta + 1
    return header.record_count if is_likely and header.record_count <= len(data) - position else 1
