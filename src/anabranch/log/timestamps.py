"""Lookups by time: from the time index to a batch, and inside it to the record.

A lookup is a generator. On the writer's thread it finds out which batch has to be searched and yields it; whoever
drives it has that batch searched, in any thread, since it is read and unpacked for that, and sends back what was found.
The lookup returns the record. `settled` drives one in the thread it is called in.
"""

from collections.abc import Generator, Sequence
from typing import NamedTuple

from anabranch.errors import CorruptDataError
from anabranch.log.files import File
from anabranch.log.segment import Segment
from anabranch.record.batch import BatchHeader, crc_holds
from anabranch.record.records import records_of
from anabranch.values import Generation, Offset


class Moment(NamedTuple):
    """A record found by its time."""

    offset: Offset
    timestamp: int
    generation: Generation


class BatchSearch(NamedTuple):
    """A batch that may have the record: the first at or after a time, and not before the start of the log."""

    file: File
    position: int
    header: BatchHeader
    start_offset: Offset
    timestamp: int
    bytes_max: int

    def run(self) -> Moment | None:
        """Any thread. Raises OSError, CorruptDataError."""
        batch = self.file.pread(self.header.size_bytes, self.position)
        if not crc_holds(batch, 0, len(batch)):
            raise CorruptDataError(f"{self.file.path} is damaged at position {self.position}.")
        for record in records_of(batch, self.bytes_max):
            if record.timestamp >= self.timestamp and record.offset >= self.start_offset:
                return Moment(record.offset, record.timestamp, self.header.generation)
        return None


Lookup = Generator[BatchSearch, Moment | None, Moment | None]


def settled(lookup: Lookup) -> Moment | None:
    """The record, searched for in this thread."""
    try:
        search = next(lookup)
        while True:
            search = lookup.send(search.run())
    except StopIteration as ended:
        found: Moment | None = ended.value
        return found


def first_at_or_after(
    segments: Sequence[Segment], start_offset: Offset, timestamp: int, bytes_max: int
) -> Lookup:
    for segment in list(segments):
        if segment.largest_timestamp()[0] < timestamp or segment.published_offset <= start_offset:
            continue
        found = yield from _first_in(segment, start_offset, timestamp, bytes_max)
        if found is not None:
            return found
    return None


def of_largest_timestamp(segments: Sequence[Segment], start_offset: Offset, bytes_max: int) -> Lookup:
    present = [segment for segment in segments if segment.published_offset > start_offset]
    if not present:
        return None
    newest = max(present, key=lambda segment: segment.largest_timestamp()[0])
    timestamp = newest.largest_timestamp()[0]
    if timestamp < 0:
        return None
    return (yield from _first_in(newest, start_offset, timestamp, bytes_max))


def _first_in(segment: Segment, start_offset: Offset, timestamp: int, bytes_max: int) -> Lookup:
    first = segment.locate(max(start_offset, segment.offset_before(timestamp)))
    if first is None:
        return None
    position = first.position
    for header in segment.headers_at(position):
        if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
            found = yield BatchSearch(segment.file, position, header, start_offset, timestamp, bytes_max)
            if found is not None:
                return found
        position += header.size_bytes
    return None
