"""An object in the store, as bytes: batches of any partitions, an index of them, and a footer that is read first.

    ranges   for each partition its batches, one after the other in the order they came; no gap between ranges
    index    for each range: topic id 16 | partition u32 | position u64 | length u64 | batch count u32 |
             record count u64 | largest timestamp i64 | crc-32c u32 of the range
    spans    only if flag 1 is set, as part of the index: for each range first offset i64 | end offset i64
    footer   "ABOB" | version u16 | flags u16 | index position u64 | index length u32 | crc-32c u32 of the index |
             crc-32c u32 of the footer before it

What a broker has gathered knows no offsets: the base offset in a batch means nothing, and the record count of a range
is how many offsets it takes. What was merged or compacted has the same form, with offsets stamped in. Nobody needs the
index to read by coordinates; it is there for whoever has the bucket alone.

Flag 1 marks a *copied* object: records that a partition had on its brokers' disks when it went over to the store. They
are nowhere else in the bucket, so the object says by itself which offsets it stands for: all records that the partition
had in a range's span are in that range. A range without a byte says that there were none.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from anabranch.errors import CorruptDataError
from anabranch.objects.layout.names import Item, Key
from anabranch.record.batch import HEADER_BYTES, BatchHeader, batch_spans, check_batch, read_header
from anabranch.record.buffers import ByteBuffer
from anabranch.record.crc32c import crc32c
from anabranch.values import Offset

MAGIC = b"ABOB"
VERSION = 1
RANGES_MAX = 65_536
"""Partitions in one object: a commit counts them with 16 bits, and who reads an index knows what it may cost."""

_RANGE = Struct(">16sIQQIQqI")
_FOOTER = Struct(">4sHHQII")
_CRC = Struct(">I")
_SPAN = Struct(">qq")
_COPIED = 1
FOOTER_BYTES = _FOOTER.size + _CRC.size
RANGE_BYTES = _RANGE.size
TAIL_BYTES = 16 * 1024
"""Enough for the footer and the index of most objects: ask for this much first."""


class Range(NamedTuple):
    """The batches of one partition in an object."""

    key: Key
    position: int
    length: int
    batch_count: int
    record_count: int
    max_timestamp: int
    crc: int

    @property
    def end(self) -> int:
        return self.position + self.length


class Span(NamedTuple):
    """Offsets `start` to `end` - 1 of a partition."""

    start: Offset
    end: Offset


class Footer(NamedTuple):
    index_position: int
    index_length: int
    index_crc: int
    is_copied: bool = False

    @property
    def range_count(self) -> int:
        return self.index_length // _entry_bytes(self.is_copied)

    @property
    def object_size(self) -> int:
        return self.index_position + self.index_length + FOOTER_BYTES


# --- writing -------------------------------------------------------------------------------------------------------


class _Gathered:
    """What was added for one partition: its bytes, and (where in them, header) of each batch."""

    __slots__ = ("batches", "data")

    def __init__(self) -> None:
        self.data = bytearray()
        self.batches: list[tuple[int, BatchHeader]] = []


class ObjectBuilder:
    """Takes whole, checked batches and copies their bytes, once."""

    __slots__ = ("_gathered", "batch_count", "bytes_count", "ranges")

    def __init__(self) -> None:
        self._gathered: dict[Key, _Gathered] = {}
        self.batch_count = 0
        self.bytes_count = 0
        """Of batches alone."""
        self.ranges: list[Range] = []
        """Known once the object is built."""

    def add(self, key: Key, batch: ByteBuffer, header: BatchHeader | None = None) -> None:
        """Who has read the header hands it in."""
        gathered = self._gathered.get(key)
        if gathered is None:
            assert len(self._gathered) < RANGES_MAX, "more partitions than an object may have"
            gathered = self._gathered[key] = _Gathered()
        if header is None:
            header = read_header(batch)
        assert header.size_bytes == len(batch), "an object is made of whole batches"
        gathered.batches.append((len(gathered.data), header))
        gathered.data += batch
        self.batch_count += 1
        self.bytes_count += len(batch)

    def build(self) -> tuple[Sequence[ByteBuffer], list[Item]]:
        """The object's bytes, in pieces, and its batches: those of a partition follow each other in the order they
        came. Nothing may be added any more."""
        pieces: list[ByteBuffer] = []
        items: list[Item] = []
        position = 0
        self.ranges = []
        for key, gathered in self._gathered.items():
            placed = [_item(key, position + start, header) for start, header in gathered.batches]
            self.ranges.append(_range_of(key, placed, position, gathered.data))
            items += placed
            pieces.append(gathered.data)
            position += len(gathered.data)
        pieces.append(closing(self.ranges))
        return pieces, items


def closing(ranges: Sequence[Range], spans: Sequence[Span] = ()) -> bytes:
    """The index and the footer behind ranges that lie without a gap from the object's first byte on. `spans`: of a
    copied object, one for each range."""
    assert not spans or len(spans) == len(ranges), "every range of a copied object has a span"
    index = b"".join((*map(_packed_range, ranges), *(_SPAN.pack(*span) for span in spans)))
    flags = _COPIED if spans else 0
    footer = _FOOTER.pack(MAGIC, VERSION, flags, ranges[-1].end, len(index), crc32c(index))
    return index + footer + _CRC.pack(crc32c(footer))


def _item(key: Key, position: int, header: BatchHeader) -> Item:
    return Item(
        key,
        position,
        header.size_bytes,
        header.last_offset_delta + 1,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.attributes,
        header.max_timestamp,
        header.crc,
    )


def _range_of(key: Key, items: Sequence[Item], position: int, data: bytearray) -> Range:
    records = sum(item.record_count for item in items)
    newest = max(item.max_timestamp for item in items)
    return Range(key, position, len(data), len(items), records, newest, crc32c(data))


def _entry_bytes(is_copied: bool) -> int:
    return RANGE_BYTES + (_SPAN.size if is_copied else 0)


def _packed_range(each: Range) -> bytes:
    return _RANGE.pack(each.key[0].bytes, each.key[1], *each[1:])


# --- reading -------------------------------------------------------------------------------------------------------


def read_footer(tail: ByteBuffer) -> Footer:
    """From the last bytes of an object, `FOOTER_BYTES` or more. Raises CorruptDataError."""
    if len(tail) < FOOTER_BYTES:
        raise CorruptDataError(f"{len(tail)} bytes are too few for an object: its footer has {FOOTER_BYTES}.")
    footer = bytes(memoryview(tail)[-FOOTER_BYTES:])
    magic, version, flags, position, length, crc = _FOOTER.unpack_from(footer)
    if magic != MAGIC:
        raise CorruptDataError("An object does not end with a footer: it is not ours, or not whole.")
    if crc32c(footer[: _FOOTER.size]) != _CRC.unpack_from(footer, _FOOTER.size)[0]:
        raise CorruptDataError("The checksum of an object's footer does not hold.")
    if version != VERSION:
        raise CorruptDataError(
            f"An object has format version {version}, and this program knows {VERSION}: was it written by a newer one?"
        )
    is_copied = bool(flags & _COPIED)
    if length % _entry_bytes(is_copied) or length > RANGES_MAX * _entry_bytes(is_copied):
        raise CorruptDataError(
            f"An object's footer speaks of an index of {length} bytes, which none can have."
        )
    return Footer(position, length, crc, is_copied)


def read_index(index: ByteBuffer, footer: Footer) -> list[Range]:
    """From the bytes that the footer names. Raises CorruptDataError; what is returned fills the object without a
    gap."""
    if len(index) != footer.index_length or crc32c(index) != footer.index_crc:
        raise CorruptDataError("The checksum of an object's index does not hold.")
    ranges = []
    position = 0
    for topic_id, partition, *numbers in _RANGE.iter_unpack(index[: footer.range_count * RANGE_BYTES]):
        found = Range((UUID(bytes=topic_id), partition), *numbers)
        is_empty = footer.is_copied and found.batch_count == found.length == 0
        is_possible = is_empty or 0 < found.batch_count * HEADER_BYTES <= found.length
        if found.position != position or not is_possible:
            raise CorruptDataError(f"An object's index has a range that cannot be: {found}.")
        ranges.append(found)
        position = found.end
    if position != footer.index_position:
        raise CorruptDataError(f"An object's index accounts for {position} bytes of {footer.index_position}.")
    return ranges


def read_spans(index: ByteBuffer, footer: Footer) -> list[Span]:
    """Of a copied object, from an index that `read_index` has accepted: one for each range. Of others: none."""
    return [
        Span(Offset(start), Offset(end))
        for start, end in _SPAN.iter_unpack(index[footer.range_count * RANGE_BYTES :])
    ]


def index_in(tail: ByteBuffer, footer: Footer) -> ByteBuffer | None:
    """The index, if these last bytes of the object reach back to it; None: read it by the footer's position."""
    start = len(tail) - FOOTER_BYTES - footer.index_length
    return memoryview(tail)[start : start + footer.index_length] if start >= 0 else None


def check_range(data: ByteBuffer, expected: Range) -> None:
    """Raises CorruptDataError if these are not the bytes of that range."""
    if len(data) != expected.length or crc32c(data) != expected.crc:
        raise CorruptDataError(f"The checksum of {expected.length} bytes in an object does not hold.")


def items_of(data: ByteBuffer, found: Range) -> Iterator[Item]:
    """The batches in the bytes of a range, each checked: what is committed for them. Raises CorruptDataError,
    InvalidRecordError and their like."""
    for start, end in batch_spans(data):
        header = check_batch(data, start, end, fresh=False)
        yield _item(found.key, found.position + start, header)
