"""How much a trigger may take, and how it is cut into tasks; pure.

Admission shares a limit of records between partitions in proportion to what each has, never more in all than the
limit, and never nothing for good: where the limit is below the number of partitions, they take turns. Offsets count
as records where there are no gaps; a compacted partition's share is counted out by whoever can see its batches. Of a
topic in mode branch the broker says which offsets there are (`Lines`), for most numbers between two lanes are none.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from anabranch.pipeline.source.offsets import Offsets
from anabranch.values import TopicPartition


class SegmentFile(NamedTuple):
    """A sealed segment's `.log`, and what it looked like when it was planned with.

    Its batches lie in [base_offset, end_offset); `end_offset` is where the next file begins.
    """

    path: str
    base_offset: int
    end_offset: int
    inode: int
    size_bytes: int
    modified_ns: int


class StoredRows(NamedTuple):
    """Where records lie in an object store: its URL, and rows of coordinates, packed (`objects.layout.names`)."""

    store_url: str
    rows: bytes


class Stretch(NamedTuple):
    """Offsets that come one way: out of a file, out of objects, or by the protocol."""

    start: int
    end: int
    file: SegmentFile | None = None
    objects: StoredRows | None = None


class Span(NamedTuple):
    """Offsets [start, end) that records have, of one branch."""

    branch: int
    start: int
    end: int


Line = tuple[Span, ...]
Lines = Mapping[TopicPartition, Line]
"""Of partitions in mode branch: in the order of offsets."""


class Range(NamedTuple):
    """What one task reads of one partition. `line`: of one in mode branch, where it has records."""

    place: TopicPartition
    topic_id: UUID
    start: int
    end: int
    stretches: tuple[Stretch, ...] = ()
    line: Line | None = None

    @property
    def size(self) -> int:
        """How many records it has at most."""
        return count(self.line, self.start, self.end)


# --- counting -----------------------------------------------------------------------------------------------------


def count(line: Line | None, start: int, end: int) -> int:
    """Records in [start, end). Without a line every offset is one."""
    if line is None:
        return max(0, end - start)
    return sum(max(0, min(span.end, end) - max(span.start, start)) for span in line)


def offset_behind(line: Line | None, start: int, records: int) -> int:
    """The offset up to which there are so many records from `start` on."""
    if line is None or records <= 0:
        return start + records
    for span in line:
        begins = max(span.start, start)
        if begins < span.end:
            if records <= span.end - begins:
                return begins + records
            records -= span.end - begins
            start = span.end
    return start


# --- admission ----------------------------------------------------------------------------------------------------


def admitted(start: Offsets, end: Offsets, records_max: int, lines: Lines | None = None) -> Offsets:
    """Ends that leave at most `records_max` offsets in all between start and end."""
    known = lines or {}
    turn = sum(start.values()) % max(1, len(end))  # It moves on with every trigger that reads something.
    order = sorted(end)
    available = {
        place: count(known.get(place), start[place], end[place]) for place in order[turn:] + order[:turn]
    }
    granted = shares(available, records_max)
    return {
        place: end[place]
        if granted.get(place, 0) == available[place]
        else offset_behind(known.get(place), start[place], granted.get(place, 0))
        for place in end
    }


def shares(available: Mapping[TopicPartition, int], records_max: int) -> dict[TopicPartition, int]:
    """How many records each partition may give, at most `records_max` in all; `available` says how many it has.

    If they are too few to go round, those that come first in `available` get one each.
    """
    wanting = {place: count for place, count in available.items() if count > 0}
    total = sum(wanting.values())
    if total <= records_max:
        return wanting
    if records_max <= len(wanting):
        return dict.fromkeys(list(wanting)[:records_max], 1)
    spare, rest = records_max - len(wanting), total - len(wanting)
    granted = {place: 1 + (count - 1) * spare // rest for place, count in wanting.items()}
    left = records_max - sum(granted.values())
    most_first = sorted(wanting, key=lambda place: wanting[place] - granted[place], reverse=True)
    for place in most_first[:left]:  # What rounding left over is less than one for each of these.
        granted[place] += 1
    return granted


# --- tasks --------------------------------------------------------------------------------------------------------


def split(ranges: Sequence[Range], partitions_min: int | None, records_max: int | None) -> list[Range]:
    """At least `partitions_min` ranges, cut where there is most; none above `records_max` offsets."""
    ranges = [each for each in ranges if each.size > 0]
    total = sum(each.size for each in ranges)
    pieces = []
    for each in ranges:
        number = 1
        if partitions_min is not None and partitions_min > len(ranges):
            number = max(1, -(-each.size * partitions_min // total))
        if records_max is not None:
            number = max(number, -(-each.size // records_max))
        pieces += _cut(each, min(number, each.size))
    return pieces


def _cut(whole: Range, pieces: int) -> list[Range]:
    inner = [
        offset_behind(whole.line, whole.start, whole.size * number // pieces) for number in range(1, pieces)
    ]
    edges = [whole.start, *inner, whole.end]
    return [whole._replace(start=start, end=end) for start, end in pairwise(edges) if start < end]


def stretches(start: int, end: int, files: Iterable[SegmentFile]) -> tuple[Stretch, ...]:
    """[start, end) in order: out of the files where there is one, by the protocol elsewhere."""
    found: list[Stretch] = []
    position = start
    for file in sorted(files, key=lambda file: file.base_offset):
        begins, ends = max(file.base_offset, position), min(file.end_offset, end)
        if begins >= ends:
            continue
        if begins > position:
            found.append(Stretch(position, begins))
        found.append(Stretch(begins, ends, file))
        position = ends
    if position < end:
        found.append(Stretch(position, end))
    return tuple(found)
