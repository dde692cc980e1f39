"""Lookups by time: from the time index to a batch, and inside it to the record.

A lookup is a generator. On the writer's thread it finds out which batch has to be searched and yields it; whoever
drives it has that batch searched, in any thread, since it is read and unpacked for that, and sends back what was found.
The lookup returns the record. `settled` drives one in the thread it is called in.
"""

from collections.abc import Generator, Sequence
from typing import NamedTuple

from anabranch.errors import CorruptDataError
from anabranch.log.disk.files import File
from anabranch.log.segment.seal import Region
from anabranch.log.segment.segment import Segment
from anabranch.log.segment.soundness import region_holds, survey
from anabranch.record.batch import BatchHeader, crc_holds, read_header
from anabranch.record.records import records_of
from anabranch.values import Generation, Offset

WALKED_BYTES_MAX = 256 * 2**10
"""So much of a segment is walked at once, which takes 2 ms where batches are small; a walk that is longer is checked on
the way.
A batch that is searched for that reason has no such record unless its head is wrong."""


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
    walked_from: int
    """Where the walk to the batch began: the heads from there on were believed, and are checked with it."""
    regions: Sequence[Region]
    start_offset: Offset
    timestamp: int
    bytes_max: int

    def run(self) -> Moment | None:
        """Any thread. Raises OSError, CorruptDataError."""
        batch = self._checked()
        generation = read_header(batch).generation
        for record in records_of(batch, self.bytes_max):
            if record.timestamp >= self.timestamp and record.offset >= self.start_offset:
                return Moment(record.offset, record.timestamp, generation)
        return None

    def _checked(self) -> bytes:
        """The batch, if it and all that were walked over hold."""
        end, holds_to, batch = self.position + self.header.size_bytes, self.walked_from, b""
        for region in self.regions:
            data = memoryview(self.file.pread(region.end - region.start, region.start))
            if region_holds(data, region) is None:
                for sound in survey(data, region):
                    if sound.position == holds_to:
                        holds_to = sound.end
            elif region.start <= holds_to:
                holds_to = region.end
            if region.start <= self.position < end <= region.end:
                batch = bytes(data[self.position - region.start : end - region.start])
        if holds_to < end or not crc_holds(batch, 0, len(batch)):
            raise CorruptDataError(
                f"{self.file.path} is damaged between positions {self.walked_from} and {end}."
            )
        return batch


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
    start = max(start_offset, segment.offset_before(timestamp))
    first = segment.locate(start)
    if first is None:
        segment.confirm_end(start)
        return None
    position, walked_from = first.position, first.walked_from
    for header in segment.headers_at(position):
        end = position + header.size_bytes
        is_candidate = header.max_timestamp >= timestamp and header.last_offset >= start_offset
        if is_candidate or end - walked_from > WALKED_BYTES_MAX or end == segment.published_bytes:
            regions = segment.regions_around(walked_from, end)
            found = yield BatchSearch(
                segment.file, position, header, walked_from, regions, start_offset, timestamp, bytes_max
            )
            if found is not None:
                return found
            walked_from = end
        position = end
    return None
