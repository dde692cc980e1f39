"""Bytes on their way to columns: whole batches, however they came, and what a walk over their headers tells; pure."""

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from anabranch.errors import CorruptDataError
from anabranch.record.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
)

CHUNK_BYTES = 8 * 2**20

_START = Struct(">qi4xb4xhi")  # Base offset, length, magic, attributes, last offset delta.


class Chunk(NamedTuple):
    """Whole batches, of which the records in [start, end) are meant; `aborted` as a Fetch answers it.

    The bytes are good until the next chunk is asked for.
    """

    data: memoryview
    start: int
    end: int
    aborted: Sequence[tuple[int, int]] = ()


class Survey(NamedTuple):
    """How far a walk over batches came."""

    whole_bytes: int
    next_offset: int
    """-1: there is no whole batch."""
    bytes_missing: int
    """Of the batch that is torn at the end; 0 if it is not known how long it is, or if none is torn."""
    is_transactional: bool
    """The walk stopped before a batch of a transaction."""


def survey(view: memoryview, *, stop_at_transactions: bool = False) -> Survey:
    """Walk over the whole batches of `view`; a torn one at the end is left out."""
    position, next_offset, size = 0, -1, len(view)
    while size - position >= HEADER_BYTES:
        base_offset, length, magic, attributes, last_delta = _START.unpack_from(view, position)
        end = position + LOG_OVERHEAD + length
        if magic != MAGIC or end - position < HEADER_BYTES or last_delta < 0:
            raise CorruptDataError(f"What follows offset {next_offset - 1} is not a record batch.")
        if stop_at_transactions and attributes & TRANSACTIONAL:
            return Survey(position, next_offset, 0, True)
        if end > size:
            return Survey(position, next_offset, end - size, False)
        position, next_offset = end, base_offset + last_delta + 1
    return Survey(position, next_offset, 0, False)


def headers_of(chunks: Iterable[Chunk]) -> Iterator[BatchHeader]:
    for chunk in chunks:
        position = 0
        while position < len(chunk.data):
            header = read_header(chunk.data, position)
            yield header
            position += header.size_bytes


def offset_after(headers: Iterable[BatchHeader], start: int, end: int, records_max: int) -> int:
    """An offset up to which there are at most `records_max` records from `start` on, as far as that is `end` at most.

    Where a batch has gaps nobody knows without unpacking it which offsets are missing; the last one is then cut as if
    it had none, which gives fewer records, never more, and always at least one offset.
    """
    left, reached = records_max, start
    for header in headers:
        if header.base_offset >= end or left <= 0:
            break
        first = max(header.base_offset, start)
        count = 0 if header.is_control else min(header.record_count, max(0, header.next_offset - first))
        if count > left:
            return min(end, first + left)
        left -= count
        reached = header.next_offset
    else:
        return end  # The headers ended before the records did.
    return min(end, reached) if left <= 0 else end
