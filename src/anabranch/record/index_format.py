"""Entries of a segment's two index files as bytes, the same as Kafka's, so that its tools read ours.

    .index      relative offset i32 | position i32      8 bytes, sparse, both growing
    .timeindex  timestamp i64 | relative offset i32    12 bytes, sparse, both growing

A relative offset counts from the segment's base offset. An entry of a `.timeindex` says that no record up to
and including that offset is younger than its timestamp. This module knows one entry, `log.index` the file.
"""

from struct import Struct
from typing import NamedTuple

from anabranch.record.buffers import ByteBuffer

_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")

OFFSET_ENTRY_BYTES = _OFFSET_ENTRY.size
TIME_ENTRY_BYTES = _TIME_ENTRY.size
RELATIVE_OFFSET_MAX = 2**31 - 1
"""A segment must roll before a record lies further than this from its base."""


class OffsetEntry(NamedTuple):
    relative_offset: int
    position: int


class TimeEntry(NamedTuple):
    timestamp: int
    relative_offset: int


def pack_offset_entry(relative_offset: int, position: int) -> bytes:
    assert 0 <= relative_offset <= RELATIVE_OFFSET_MAX, relative_offset
    assert 0 <= position <= RELATIVE_OFFSET_MAX, position
    return _OFFSET_ENTRY.pack(relative_offset, position)


def unpack_offset_entry(buffer: ByteBuffer, slot: int) -> OffsetEntry:
    """The entry number `slot` of a buffer of whole entries."""
    return OffsetEntry._make(_OFFSET_ENTRY.unpack_from(buffer, slot * OFFSET_ENTRY_BYTES))


def pack_time_entry(timestamp: int, relative_offset: int) -> bytes:
    assert 0 <= relative_offset <= RELATIVE_OFFSET_MAX, relative_offset
    return _TIME_ENTRY.pack(timestamp, relative_offset)


def unpack_time_entry(buffer: ByteBuffer, slot: int) -> TimeEntry:
    """The entry number `slot` of a buffer of whole entries."""
    return TimeEntry._make(_TIME_ENTRY.unpack_from(buffer, slot * TIME_ENTRY_BYTES))
