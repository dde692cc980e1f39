"""Where the batches of a row of coordinates lie in their object, and which offsets each of them has.

A `Walk` begins at the row's first byte and grows as far as somebody has had the bytes: from it any offset is found
without looking at a header again. `walk_on` reads headers (and checks every CRC, unless whoever has the bytes knows
them to be good), and believes nothing: what cannot be the row's batches is CorruptDataError.
"""

from array import array
from bisect import bisect_right
from struct import Struct
from typing import NamedTuple

from anabranch.errors import CorruptDataError
from anabranch.objects.layout.names import Row
from anabranch.record.batch import HEADER_BYTES, LOG_OVERHEAD, MAGIC
from anabranch.record.buffers import ByteBuffer
from anabranch.record.crc32c import crc32c
from anabranch.values import Offset

# base offset, length, generation, magic, crc, attributes, last offset delta
_HEAD = Struct(">qi4xbI2xi")
_PLACE = Struct(">qii")
_LENGTH_MIN = HEADER_BYTES - LOG_OVERHEAD
_CRC_FROM = 21
_GENERATION = 0
_ENTRY_BYTES = 16
_OVERHEAD_BYTES = 600


class Walk:
    """Batch number i is [positions[i], positions[i + 1]) of the object, and the record behind it is next_offsets[i]."""

    __slots__ = ("__weakref__", "next_offsets", "positions", "row", "wanted_end")

    def __init__(self, row: Row) -> None:
        self.row = row
        self.wanted_end = row.position + HEADER_BYTES
        """How far the bytes have to reach for one more batch, as far as is known."""
        self.positions = array("q", [row.position])
        self.next_offsets = array("q")

    @property
    def frontier(self) -> int:
        """Where the first batch begins that nobody has looked at."""
        return self.positions[-1]

    @property
    def next_offset(self) -> Offset:
        """What may come at the frontier."""
        return Offset(self.next_offsets[-1]) if self.next_offsets else self.row.base_offset

    @property
    def is_whole(self) -> bool:
        return self.positions[-1] == self.row.position + self.row.length

    @property
    def size_bytes(self) -> int:
        """What it costs to remember."""
        return _OVERHEAD_BYTES + _ENTRY_BYTES * len(self.positions)

    def batch_of(self, offset: Offset) -> int:
        """The number of the first batch that does not end before `offset`; the count of all if none does."""
        return bisect_right(self.next_offsets, offset)

    def base_of(self, number: int) -> Offset:
        """Of a batch in a row that is not stamped."""
        return Offset(self.next_offsets[number - 1]) if number else self.row.base_offset

    def last_within(self, position: int, upto: Offset) -> int:
        """The number behind the last batch that ends by `position` and does not reach `upto`."""
        return min(bisect_right(self.positions, position) - 1, bisect_right(self.next_offsets, upto))

    def grow(self, found: "Walked") -> None:
        """Take what a walk from the frontier has found; one that began elsewhere says nothing new."""
        if found.start == self.frontier:
            self.wanted_end = found.wanted_end or self.row.position + self.row.length
            self.positions.extend(found.positions)
            self.next_offsets.extend(found.next_offsets)


class Walked(NamedTuple):
    """The batches from `start` on: where each ends and what follows it. `wanted_end`: how far the bytes have to reach
    for one more; None: the row ends there."""

    start: int
    positions: "array[int]"
    next_offsets: "array[int]"
    wanted_end: int | None


def walk_on(
    row: Row, data: ByteBuffer, data_start: int, position: int, next_offset: Offset, *, check_crc: bool
) -> Walked:
    """From the batch boundary `position`, over bytes of the object that begin at `data_start`. Raises
    CorruptDataError."""
    view, start = memoryview(data), position
    positions, next_offsets = array("q"), array("q")
    row_end = row.position + row.length
    data_end, wanted_end = min(row_end, data_start + len(view)), None
    while position < row_end:
        if position + HEADER_BYTES > data_end:
            wanted_end = position + HEADER_BYTES
            break
        at = position - data_start
        base, length, magic, crc, last_delta = _HEAD.unpack_from(view, at)
        end = position + LOG_OVERHEAD + length
        if magic != MAGIC or length < _LENGTH_MIN or last_delta < 0 or end > row_end:
            raise _damaged(row, position, "that is no batch of it")
        if end > data_end:
            wanted_end = end
            break
        if check_crc and crc32c(view[at + _CRC_FROM : end - data_start]) != crc:
            raise _damaged(row, position, "a checksum does not hold")
        if row.is_stamped:
            if base < next_offset:
                raise _damaged(row, position, f"offset {base} comes after {next_offset - 1}")
            next_offset = base
        next_offset = Offset(next_offset + last_delta + 1)
        position = end
        positions.append(position)
        next_offsets.append(next_offset)
    if wanted_end is not None and wanted_end > row_end:
        raise _damaged(row, position, "the row ends within a batch")
    _check_end(row, position, next_offset)
    return Walked(start, positions, next_offsets, wanted_end)


def _check_end(row: Row, position: int, next_offset: Offset) -> None:
    is_end = position == row.position + row.length
    is_short = is_end and not row.is_stamped and next_offset != row.next_offset
    if next_offset > row.next_offset or is_short:
        raise _damaged(row, position, f"its batches end before offset {next_offset}, not {row.next_offset}")


def _damaged(row: Row, position: int, reason: str) -> CorruptDataError:
    return CorruptDataError(f"{row.object_id.name} is damaged at position {position}: {reason}.")


def place_batches(out: bytearray, shift: int, walk: Walk, first: int, last: int) -> None:
    """Stamp the batches `first` to `last - 1`, which lie in `out` as far from their positions as `shift` says."""
    positions, next_offsets, place = walk.positions, walk.next_offsets, _PLACE.pack_into
    base, start = walk.base_of(first), positions[first]
    for number in range(first, last):
        end = positions[number + 1]
        place(out, start + shift, base, end - start - LOG_OVERHEAD, _GENERATION)
        base, start = next_offsets[number], end  # type: ignore[assignment]  # An Offset costs a call.
