"""Entries of a segment's two index files as bytes, the same as Kafka's, so that its tools read ours.

    .index      relative offset i32 | position i32      8 bytes, sparse, both growing
    .timeindex  timestamp i64 | relative offset i32    12 bytes, sparse, both growing

A relative offset counts from the segment's base offset. An entry of a `.timeindex` says that no record up to
and including that offset is younger than its timestamp. This module knows one entry, `log.segment.index` the file.
"""

import sys
from array import array
from struct import Struct

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")

OFFSET_ENTRY_BYTES = OFFSET_ENTRY.size
TIME_ENTRY_BYTES = TIME_ENTRY.size
RELATIVE_OFFSET_MAX = 2**31 - 1
"""A segment must roll before a record lies further than this from its base."""


def big_endian(numbers: "array[int]") -> "array[int]":
    """Turn numbers, in place, from the machine's order of bytes into that of files, or back."""
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
