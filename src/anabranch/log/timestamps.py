"""Lookups by time: from the time index to a batch, and inside it to the record. Called by the writer's
thread."""

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.errors import CorruptDataError
from anabranch.log.segment import Segment
from anabranch.record.batch import BatchHeader, crc_holds
from anabranch.record.records import records_of
from anabranch.values import Generation, Offset


class Moment(NamedTuple):
    """A record found by its time."""

    offset: Offset
    timestamp: int
    generation: Generation


def first_at_or_after(
    segments: Sequence[Segment], start_offset: Offset, timestamp: int, bytes_max: int
) -> Moment | None:
    for segment in list(segments):
        if segment.largest_timestamp()[0] < timestamp or segment.published_offset <= start_offset:
            continue
        found = _first_in(segment, start_offset, timestamp, bytes_max)
        if found is not None:
            return found
    return None


def of_largest_timestamp(segments: Sequence[Segment], start_offset: Offset, bytes_max: int) -> Moment | None:
    present = [segment for segment in segments if segment.published_offset > start_offset]
    if not present:
        return None
    newest = max(present, key=lambda segment: segment.largest_timestamp()[0])
    timestamp = newest.largest_timestamp()[0]
    return _first_in(newest, start_offset, timestamp, bytes_max) if timestamp >= 0 else None


def _first_in(segment: Segment, start_offset: Offset, timestamp: int, bytes_max: int) -> Moment | None:
    first = segment.locate(max(start_offset, segment.offset_before(timestamp)))
    if first is None:
        return None
    position = first.position
    for header in segment.headers_at(position):
        if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
            found = _first_record(segment, position, header, start_offset, timestamp, bytes_max)
            if found is not None:
                return found
        position += header.size_bytes
    return None


def _first_record(
    segment: Segment, position: int, header: BatchHeader, start_offset: Offset, timestamp: int, bytes_max: int
) -> Moment | None:
    batch = segment.file.pread(header.size_bytes, position)
    if not crc_holds(batch, 0, len(batch)):
        raise CorruptDataError(f"{segment.file.path} is damaged at position {position}.")
    for record in records_of(batch, bytes_max):
        if record.timestamp >= timestamp and record.offset >= start_offset:
            return Moment(record.offset, record.timestamp, header.generation)
    return None
