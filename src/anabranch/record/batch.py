"""One record batch (format v2) as bytes: read its header, check it, change what a broker may change.

    base_offset i64 | batch_length i32 | generation i32 | magic i8 | crc u32 | attributes i16 |
    last_offset_delta i32 | base_timestamp i64 | max_timestamp i64 | producer_id i64 | producer_epoch i16 |
    base_sequence i32 | record_count i32 | records, compressed as a whole

`batch_length` counts what follows it. The CRC covers everything from the attributes on, so that a broker
stamps base offset and generation without touching it. Functions that check never copy the records;
those that rewrite return new bytes. The base timestamp is the first record's, unless the delete-horizon
attribute is set: then it is the time from which the tombstones inside may be dropped.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from anabranch.errors import (
    CorruptDataError,
    InvalidRecordError,
    UnsupportedCompressionError,
    UnsupportedRecordFormatError,
)
from anabranch.record.backend import COMPILED
from anabranch.record.buffers import ByteBuffer
from anabranch.record.compression import Codec, compress, decompress
from anabranch.record.crc32c import crc32c
from anabranch.values import Generation, Offset

HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LOG_OVERHEAD = 12
"""Bytes before those that `batch_length` counts."""

MAGIC = 2
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

_MAGIC_POSITION = 16
_CRC = Struct(">I")
_CRC_POSITION = 17
_CHECKED_POSITION = 21
_ATTRIBUTES = Struct(">h")
_MAX_TIMESTAMP = Struct(">q")
_MAX_TIMESTAMP_POSITION = 35
_BASE_OFFSET = Struct(">q")
_LENGTH = Struct(">i")
_GENERATION = Struct(">i")
_GENERATION_POSITION = 12


class BatchHeader(NamedTuple):
    """The 61 bytes before the records, as numbers."""

    base_offset: Offset
    batch_length: int
    generation: Generation
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & DELETE_HORIZON)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, which follows 2^31-1 with 0; -1 without an idempotent producer."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def read_header_pure(buffer: ByteBuffer, position: int = 0) -> BatchHeader:
    """Reads and believes: nothing but the room for 61 bytes is checked."""
    if position < 0 or len(buffer) - position < HEADER_BYTES:
        raise CorruptDataError(f"A record batch needs {HEADER_BYTES} bytes of header; the data ends before.")
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def check_batch_pure(buffer: ByteBuffer, start: int, end: int, *, fresh: bool = True) -> BatchHeader:
    """The header of the one whole batch that fills [start, end), once format, length, CRC and counts hold.

    A `fresh` batch comes from a producer and has no gaps. With `fresh=False` (recovery, peers) the cleaner
    may have taken records out of it, all of them even.
    """
    _check_magic(buffer, start, end)
    header = read_header_pure(buffer, start)
    if header.batch_length + LOG_OVERHEAD != end - start:
        raise CorruptDataError(f"A record batch says it has {header.size_bytes} bytes and has {end - start}.")
    if crc32c(memoryview(buffer)[start + _CHECKED_POSITION : end]) != header.crc:
        raise CorruptDataError("The checksum of a record batch does not match its bytes.")
    count, last_offset_delta = header.record_count, header.last_offset_delta
    if fresh:
        if count <= 0 or last_offset_delta != count - 1:
            raise InvalidRecordError(f"A batch of {count} records cannot end at delta {last_offset_delta}.")
    elif not 0 <= count <= last_offset_delta + 1:
        raise InvalidRecordError(f"A batch of {count} records does not fit below delta {last_offset_delta}.")
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise UnsupportedCompressionError(f"Compression codec {header.codec} is unknown.")
    return header


def _check_magic(buffer: ByteBuffer, start: int, end: int) -> None:
    if start < 0 or end > len(buffer) or end - start <= _MAGIC_POSITION:
        raise CorruptDataError("A record batch ends before its magic byte.")
    magic = buffer[start + _MAGIC_POSITION]
    if magic == MAGIC and end - start >= HEADER_BYTES:
        return
    if magic in (0, 1):
        raise UnsupportedRecordFormatError(
            f"Message format v{magic} is not kept; use a client of Kafka 0.11 or later, which writes v2."
        )
    raise CorruptDataError(f"Not a record batch: magic {magic}, {end - start} bytes.")


if COMPILED:
    from anabranch.record._fast import check_batch as check_batch
    from anabranch.record._fast import read_header as read_header
else:
    check_batch, read_header = check_batch_pure, read_header_pure


def crc_holds(buffer: ByteBuffer, start: int, end: int) -> bool:
    """Whether the bytes of the batch in [start, end) are those its writer summed up."""
    if end - start < HEADER_BYTES:
        return False
    (expected,) = _CRC.unpack_from(buffer, start + _CRC_POSITION)
    return bool(crc32c(memoryview(buffer)[start + _CHECKED_POSITION : end]) == expected)


def checked_spans(buffer: ByteBuffer) -> Iterator[tuple[int, int]]:
    """`batch_spans` for whoever shows what is in them: CorruptDataError at a batch whose CRC does not hold."""
    for start, end in batch_spans(buffer):
        if not crc_holds(buffer, start, end):
            base = read_header(buffer, start).base_offset
            raise CorruptDataError(f"The batch at offset {base} is damaged: its checksum does not hold.")
        yield start, end


def batch_spans(buffer: ByteBuffer, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
    """(start, end) of each batch that follows the other in [start, end); all of them are whole.

    Only lengths are looked at. One that is impossible, or that reaches beyond the end, is an error when its
    turn comes: the spans before it were good.
    """
    end = len(buffer) if end is None else end
    while start < end:
        if end - start <= _MAGIC_POSITION:
            raise CorruptDataError(f"{end - start} bytes after the last batch are too few for another.")
        (length,) = _LENGTH.unpack_from(buffer, start + 8)
        batch_end = start + LOG_OVERHEAD + length
        if batch_end - start < HEADER_BYTES:
            _check_magic(buffer, start, max(batch_end, start))
        if batch_end > end:
            raise CorruptDataError(
                f"A record batch announces {batch_end - start} bytes; {end - start} are there."
            )
        yield start, batch_end
        start = batch_end


def payload_of(
    batch: ByteBuffer, bytes_max: int, header: BatchHeader | None = None, *, fresh: bool = False
) -> bytes | memoryview:
    """The records section of one whole batch, unpacked; `BatchTooLargeError` if that exceeds `bytes_max`.

    Uncompressed records are a view of the batch: they take no memory and are not limited. Who has read the header
    hands it in. A `fresh` batch comes from a producer, and must be compressed in a way that every client reads.
    """
    if header is None:
        header = read_header(batch)
    if header.magic != MAGIC or header.size_bytes != len(batch):
        raise CorruptDataError(f"{len(batch)} bytes are not one whole batch of {header.size_bytes}.")
    packed = memoryview(batch)[HEADER_BYTES:]
    if header.codec == Codec.NONE or (header.record_count == 0 and not packed):
        return packed  # An emptied batch keeps no records, and no compressed nothing either.
    return decompress(header.codec, packed, bytes_max, fresh=fresh)


def stamp(buffer: bytearray | memoryview, position: int, base_offset: Offset, generation: Generation) -> None:
    """Gives the batch at `position` its place in the log, in place; the CRC does not cover these fields."""
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _GENERATION.pack_into(buffer, position + _GENERATION_POSITION, generation)


def with_max_timestamp(batch: ByteBuffer, timestamp_ms: int) -> bytes:
    """The batch with a header that knows its newest record, where the producer's did not."""
    changed = bytearray(batch)
    _MAX_TIMESTAMP.pack_into(changed, _MAX_TIMESTAMP_POSITION, timestamp_ms)
    seal(changed)
    return bytes(changed)


def with_log_append_time(batch: ByteBuffer, timestamp_ms: int) -> bytes:
    """The batch with every record at `timestamp_ms`: readers take it from the header, no record changes."""
    changed = bytearray(batch)
    attributes = read_header(batch).attributes | LOG_APPEND_TIME
    _ATTRIBUTES.pack_into(changed, _CHECKED_POSITION, attributes)
    _MAX_TIMESTAMP.pack_into(changed, _MAX_TIMESTAMP_POSITION, timestamp_ms)
    seal(changed)
    return bytes(changed)


def recompressed(batch: ByteBuffer, codec: int, level: int | None, bytes_max: int) -> bytes:
    """The same records under another codec; `bytes_max` bounds what the old one may unpack to."""
    header = read_header(batch)
    changed = bytearray(memoryview(batch)[:HEADER_BYTES])
    changed += compress(codec, payload_of(batch, bytes_max), level)
    _ATTRIBUTES.pack_into(changed, _CHECKED_POSITION, header.attributes & ~CODEC_MASK | codec)
    seal(changed)
    return bytes(changed)


def seal(batch: bytearray) -> None:
    """Writes length and CRC of the one batch that fills the buffer, as the last step of making it."""
    _LENGTH.pack_into(batch, 8, len(batch) - LOG_OVERHEAD)
    _CRC.pack_into(batch, _CRC_POSITION, crc32c(memoryview(batch)[_CHECKED_POSITION:]))
