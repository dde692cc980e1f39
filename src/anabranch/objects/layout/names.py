"""What the objects in a store are called, what is said of each batch in one, and a row of coordinates: which bytes of
which object hold which records.

    segments/<incarnation>-<epoch>-<number>   what a broker has gathered for any partitions, in the order it gathered
    merged/<incarnation>-<epoch>-<number>     the same records again, in fewer and larger objects, or compacted
    metadata/<incarnation>-<index>            a snapshot of what the cluster has agreed on
    groups/<incarnation>-<partition>-<index>  offsets that consumer groups have committed

`incarnation` is a random number of 64 bits: one life of a cluster in a bucket. `epoch` is the registration of the
broker that wrote it, so a name never comes twice.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from anabranch.errors import CorruptDataError
from anabranch.record.batch import CONTROL
from anabranch.record.buffers import ByteBuffer
from anabranch.values import Offset


class ObjectKind(IntEnum):
    WRITTEN = 0
    MERGED = 1


FOLDERS = {ObjectKind.WRITTEN: "segments", ObjectKind.MERGED: "merged"}
_KINDS = {folder: kind for kind, folder in FOLDERS.items()}
_NAME = re.compile(r"(segments|merged)/([0-9a-f]{16})-([0-9]{1,18})-([0-9]{1,18})")


class ObjectId(NamedTuple):
    incarnation: int
    epoch: int
    number: int
    kind: ObjectKind = ObjectKind.WRITTEN

    @property
    def name(self) -> str:
        return f"{FOLDERS[self.kind]}/{self.incarnation:016x}-{self.epoch}-{self.number}"


def object_id_of(name: str) -> ObjectId | None:
    """None: an object of another kind, or not ours."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    folder, incarnation, epoch, number = found.groups()
    return ObjectId(int(incarnation, 16), int(epoch), int(number), _KINDS[folder])


Key = tuple[UUID, int]
"""One partition: its topic's id and its number."""


class Item(NamedTuple):
    """One batch in a stored object, with all that is needed to give it its offsets."""

    key: Key
    position: int
    length: int
    record_count: int
    """The offsets it takes: its last offset delta + 1."""
    producer_id: int
    producer_epoch: int
    base_sequence: int
    attributes: int
    max_timestamp: int
    crc: int

    @property
    def last_sequence(self) -> int:
        """As a batch's header has it."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.record_count - 1) & 0x7FFFFFFF

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)


class Row(NamedTuple):
    """Records `base_offset` to `next_offset - 1` of a partition are whole batches in these bytes of an object.

    In what a broker has gathered the batches know no offsets: each begins where the one before it ends. In what was
    merged or compacted (`is_stamped`) they carry their own, and there may be gaps. The rows at a partition's start that
    are compacted (`is_compacted`) hold no key twice: the first other row is where its next compaction begins.
    """

    base_offset: Offset
    next_offset: Offset
    object_id: ObjectId
    position: int
    length: int
    max_timestamp: int
    batch_count: int
    is_stamped: bool = False
    is_compacted: bool = False


_KIND_OF = {int(kind): kind for kind in ObjectKind}
_STAMPED, _COMPACTED = 1, 2
_ID_START, _ID_END = 16, 41
_ID = Struct(">QQQB")
_NEXT_OFFSET = Struct(">8xq50x")
_LENGTH = Struct(">49xI13x")
_MAX_TIMESTAMP = Struct(">53xq5x")
_ROW = Struct(">qqQQQBQIqIB")
ROW_BYTES = _ROW.size


def pack_rows(rows: Sequence[Row]) -> bytes:
    return b"".join(
        _ROW.pack(
            row.base_offset,
            row.next_offset,
            row.object_id.incarnation,
            row.object_id.epoch,
            row.object_id.number,
            row.object_id.kind,
            row.position,
            row.length,
            row.max_timestamp,
            row.batch_count,
            row.is_stamped * _STAMPED | row.is_compacted * _COMPACTED,
        )
        for row in rows
    )


def unpack_rows(data: ByteBuffer) -> Iterator[Row]:
    """Raises CorruptDataError for what are no rows."""
    if len(data) % ROW_BYTES:
        raise CorruptDataError(f"{len(data)} bytes are not a whole number of coordinate rows.")
    for (
        base,
        next_,
        incarnation,
        epoch,
        number,
        kind,
        position,
        length,
        time,
        count,
        flags,
    ) in _ROW.iter_unpack(data):
        object_id = ObjectId(incarnation, epoch, number, _kind(kind))
        stamped, compacted = bool(flags & _STAMPED), bool(flags & _COMPACTED)
        yield Row(Offset(base), Offset(next_), object_id, position, length, time, count, stamped, compacted)


def object_counts(data: bytes) -> Iterator[tuple[ObjectId, int]]:
    """How many of these packed rows name each object."""
    counts = Counter(
        data[start + _ID_START : start + _ID_END] for start in range(0, len(data) - ROW_BYTES + 1, ROW_BYTES)
    )
    for packed, count in counts.items():
        incarnation, epoch, number, kind = _ID.unpack(packed)
        yield ObjectId(incarnation, epoch, number, _kind(kind)), count


def _kind(number: int) -> ObjectKind:
    kind = _KIND_OF.get(number)
    if kind is None:
        raise CorruptDataError(f"A coordinate row names an object of the unknown kind {number}.")
    return kind


def next_offsets(data: ByteBuffer) -> list[int]:
    """Of each of these packed rows, which is much cheaper than the rows."""
    return [next_offset for (next_offset,) in _NEXT_OFFSET.iter_unpack(data)]


def lengths(data: ByteBuffer) -> list[int]:
    return [length for (length,) in _LENGTH.iter_unpack(data)]


def max_timestamps(data: ByteBuffer) -> list[int]:
    return [max_timestamp for (max_timestamp,) in _MAX_TIMESTAMP.iter_unpack(data)]
