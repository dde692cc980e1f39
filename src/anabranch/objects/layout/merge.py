"""What becomes of rows when they are merged or compacted: bytes in, the bytes of fewer and larger rows out.

Merging puts the batches of neighbouring rows behind each other and stamps into each the offsets that were so far
known only to its row. Compacting leaves out what `record/compaction/run.py` says; a compaction whose memory did not
reach to the end leaves a second range behind the first, of batches it has not looked at. Every batch is checked on
the way: one that does not hold is a CorruptDataError, for a copy of it would carry a name that is still trusted.

`build_object` puts what was made of several partitions into one object of the usual form (`format.py`);
`build_copied_object` what was copied from the brokers of one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from anabranch.errors import CorruptDataError
from anabranch.objects.layout.format import Range, Span, closing
from anabranch.objects.layout.names import Key, ObjectId, Row
from anabranch.record.batch import BatchHeader, batch_spans, check_batch, read_header, stamp
from anabranch.record.buffers import ByteBuffer
from anabranch.record.compaction.offset_map import OffsetMap
from anabranch.record.compaction.run import CompactionRun, map_latest
from anabranch.record.crc32c import crc32c
from anabranch.record.records import RECORDS_BYTES_MAX
from anabranch.values import Generation, Offset, is_lane_gap

GENERATION = Generation(0)
"""Nobody leads a partition whose records lie in a store: all of them carry the same."""
NO_TIMESTAMP = -1


class RowBytes(NamedTuple):
    """A row, and what was read of its object."""

    row: Row
    data: ByteBuffer


class MergedRange(NamedTuple):
    """Batches of one partition that know their offsets, to lie behind each other in one object."""

    base_offset: Offset
    next_offset: Offset
    data: ByteBuffer
    max_timestamp: int
    batch_count: int
    record_count: int
    is_compacted: bool

    def row_at(self, object_id: ObjectId, position: int) -> Row:
        return Row(
            self.base_offset,
            self.next_offset,
            object_id,
            position,
            len(self.data),
            self.max_timestamp,
            self.batch_count,
            is_stamped=True,
            is_compacted=self.is_compacted,
        )


def build_object(
    parts: Mapping[Key, Sequence[MergedRange]], object_id: ObjectId
) -> tuple[list[ByteBuffer], dict[Key, list[Row]]]:
    """An object of these ranges, in pieces, and the rows that name them."""
    pieces: list[ByteBuffer] = []
    rows: dict[Key, list[Row]] = {}
    ranges = []
    position = 0
    for key, merged_ranges in parts.items():
        rows[key], start = [], position
        for each in merged_ranges:
            rows[key].append(each.row_at(object_id, position))
            pieces.append(each.data)
            position += len(each.data)
        if position > start:
            ranges.append(_range_of(key, merged_ranges, start))
    if ranges:
        pieces.append(closing(ranges))
    return pieces, rows


def build_copied_object(
    key: Key, parts: Sequence[MergedRange], span: Span, object_id: ObjectId
) -> tuple[list[ByteBuffer], list[Row]]:
    """An object of all records that a partition had on its brokers' disks within `span`, and the rows that name them.
    It says by itself which offsets it stands for, also if there were no records."""
    rows: list[Row] = []
    position = 0
    for each in parts:
        rows.append(each.row_at(object_id, position))
        position += len(each.data)
    whole = _range_of(key, parts, 0) if parts else Range(key, 0, 0, 0, 0, NO_TIMESTAMP, crc32c(b""))
    return [*(each.data for each in parts), closing([whole], [span])], rows


def _range_of(key: Key, parts: Sequence[MergedRange], position: int) -> Range:
    data = parts[0].data if len(parts) == 1 else b"".join(each.data for each in parts)
    return Range(
        key,
        position,
        len(data),
        sum(each.batch_count for each in parts),
        sum(each.record_count for each in parts),
        max(each.max_timestamp for each in parts),
        crc32c(data),
    )


def stamped_batches(row: Row, data: ByteBuffer) -> Iterator[memoryview]:
    """Every batch of a row, checked, with its own offsets; a copy of the whole row is lent out piece by piece.

    Raises CorruptDataError for bytes that are not what the row says.
    """
    if len(data) != row.length:
        raise CorruptDataError(f"{row.object_id.name} has {len(data)} bytes where its row says {row.length}.")
    copy = memoryview(bytearray(data))
    offset, count = row.base_offset, 0
    for start, end in batch_spans(copy):
        header = check_batch(copy, start, end, fresh=False)
        if not row.is_stamped:
            stamp(copy, start, offset, GENERATION)
        elif not offset <= header.base_offset:
            raise CorruptDataError(f"{row.object_id.name} has offset {header.base_offset} behind {offset}.")
        header = read_header(copy, start)
        offset, count = header.next_offset, count + 1
        yield copy[start:end]
    if count != row.batch_count or not _ends_there(row, offset):
        raise CorruptDataError(
            f"{row.object_id.name} has {count} batches up to offset {offset} where its row says {row.batch_count} up "
            f"to {row.next_offset}."
        )


def _ends_there(row: Row, offset: Offset) -> bool:
    return offset <= row.next_offset if row.is_stamped else offset == row.next_offset


class _RangeBuilder:
    """Puts batches behind each other. A gap between lanes ends a range: whoever counts records goes by the rows."""

    def __init__(self, *, is_compacted: bool) -> None:
        self._ranges: list[MergedRange] = []
        self._is_compacted = is_compacted
        self._begin()

    def _begin(self) -> None:
        self._data = bytearray()
        self._first: Offset | None = None
        self._next = Offset(0)
        self._max_timestamp = NO_TIMESTAMP
        self._batch_count = self._record_count = 0

    def add(self, batch: ByteBuffer, header: BatchHeader) -> None:
        if self._first is not None and is_lane_gap(self._next, header.base_offset):
            self._end()
        self._data += batch
        if self._first is None:
            self._first = header.base_offset
        self._next = header.next_offset
        if header.record_count:
            self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        self._batch_count += 1
        self._record_count += header.record_count

    def _end(self) -> None:
        assert self._first is not None, "there is something to end"
        self._ranges.append(
            MergedRange(
                self._first,
                self._next,
                self._data,
                self._max_timestamp,
                self._batch_count,
                self._record_count,
                self._is_compacted,
            )
        )
        self._begin()

    def build(self) -> list[MergedRange]:
        """One range, or one for each lane; none without batches."""
        if self._first is not None:
            self._end()
        return self._ranges


class Merger:
    """Makes one range of neighbouring rows of one partition, some at a time; or one for each lane."""

    def __init__(self, *, is_compacted: bool) -> None:
        self._range = _RangeBuilder(is_compacted=is_compacted)

    def add(self, parts: Iterable[RowBytes]) -> None:
        for part in parts:
            for batch in stamped_batches(*part):
                self._range.add(batch, read_header(batch))

    def build(self) -> list[MergedRange]:
        return self._range.build()


def merged(parts: Sequence[RowBytes]) -> list[MergedRange]:
    """The same at once."""
    merger = Merger(is_compacted=all(part.row.is_compacted for part in parts))
    merger.add(parts)
    return merger.build()


def kept_ranges(data: ByteBuffer) -> list[MergedRange]:
    """Batches as a log has kept them, at least one, which have their offsets. Raises CorruptDataError."""
    made, view = _RangeBuilder(is_compacted=False), memoryview(data)
    for start, end in batch_spans(view):
        made.add(view[start:end], check_batch(view, start, end, fresh=False))
    return made.build()


def map_row(
    part: RowBytes, latest: OffsetMap, first_dirty: Offset, bytes_max: int = RECORDS_BYTES_MAX
) -> Offset:
    """Remember the latest offset of every key of one dirty row, in the order of rows; where that ended: at the row's
    end, or before it if the map had no room."""
    return map_latest(stamped_batches(*part), latest, first_dirty, part.row.next_offset, bytes_max)


class Compactor:
    """Makes of neighbouring rows of one partition what stays of them, some at a time: the part whose keys were mapped,
    then the part beyond."""

    def __init__(self, run: CompactionRun) -> None:
        self._run = run
        self._below, self._beyond = _RangeBuilder(is_compacted=True), _RangeBuilder(is_compacted=False)

    def add(self, parts: Iterable[RowBytes]) -> None:
        for part in parts:
            for batch in stamped_batches(*part):
                stays = self._run.stays(batch)
                if stays is not None:
                    header = read_header(stays)
                    is_below = header.base_offset < self._run.upto
                    (self._below if is_below else self._beyond).add(stays, header)

    def build(self) -> list[MergedRange]:
        return self._below.build() + self._beyond.build()


def compacted(parts: Sequence[RowBytes], run: CompactionRun) -> list[MergedRange]:
    """The same at once."""
    compactor = Compactor(run)
    compactor.add(parts)
    return compactor.build()
