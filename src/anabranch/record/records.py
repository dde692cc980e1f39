"""The records inside a batch, read one by one.

    length varint | attributes i8 | timestamp delta varlong | offset delta varint | key | value |
    header count varint | for each header its key and its value

Keys and values are a varint length and that many bytes; -1 is null, which a header's key cannot be.
`records_of` is for those who need contents (cleaner, CLI, group logs) and believes nothing; the produce path,
which does not, has `record_check`. Header
keys that are not UTF-8 keep their bytes as lone surrogates, so that a rewritten batch gives back exactly what
its producer sent.
"""

from collections.abc import Iterator
from typing import NamedTuple

from anabranch.errors import InvalidRecordError
from anabranch.record.batch import BatchHeader, payload_of, read_header
from anabranch.record.buffers import ByteBuffer
from anabranch.record.varint import read_varint, read_varlong, wrapped_int64
from anabranch.values import Offset

__all__ = ["RECORDS_BYTES_MAX", "Record", "payload_of", "records_of"]

RECORDS_BYTES_MAX = 128 * 2**20
"""What a batch may unpack to unless the caller says otherwise."""

COPIED_BYTES_MAX = 64 * 1024
"""Longer records are looked at where they are: a copy would keep other threads from the interpreter for too long."""

_RECORD_BYTES_MIN = 6  # One byte each: attributes, two deltas, null key, null value, no headers.
_HEADER_BYTES_MIN = 2  # An empty key and a null value.


class Record(NamedTuple):
    offset: Offset
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def _record_end(payload: ByteBuffer, position: int) -> tuple[int, int]:
    """Where the body of the record at `position` begins and ends."""
    length, start = read_varint(payload, position)
    if length < _RECORD_BYTES_MIN or start + length > len(payload):
        raise InvalidRecordError(f"A record announces {length} bytes; {len(payload) - start} follow.")
    return start, start + length


def records_of(
    batch: ByteBuffer, bytes_max: int = RECORDS_BYTES_MAX, first: int | None = None
) -> Iterator[Record]:
    """The records of one whole batch, each checked as its turn comes; unpacking is checked at once.

    Deltas must grow and stay within the header's last: in a batch without gaps they are then 0, 1, 2 and so
    on, and one that the cleaner thinned may skip some. Who needs only those from the offset `first` on is
    spared most of the others, but not all.
    """
    header = read_header(batch)
    if header.record_count < 0:
        raise InvalidRecordError(f"A batch cannot have {header.record_count} records.")
    skipped = 0
    if first is not None and header.record_count == header.last_offset_delta + 1:  # Else there are gaps.
        skipped = min(max(0, first - header.base_offset), header.record_count)
    return _walk(header, payload_of(batch, bytes_max), skipped)


def _walk(header: BatchHeader, payload: bytes | memoryview, skipped: int) -> Iterator[Record]:
    position, delta_before = 0, skipped - 1
    for _ in range(skipped):
        _, position = _record_end(payload, position)
    for _ in range(header.record_count - skipped):
        body, end = _record_end(payload, position)
        # A reader of this slice cannot stray into the next record, whatever the lengths inside say.
        is_long = end - body > COPIED_BYTES_MAX
        record, delta = _read_record(header, (memoryview(payload) if is_long else payload)[body:end])
        if not delta_before < delta <= header.last_offset_delta:
            raise InvalidRecordError(
                f"Offset delta {delta} follows {delta_before} in a batch of deltas up to "
                f"{header.last_offset_delta}."
            )
        yield record
        position, delta_before = end, delta
    if position != len(payload):
        raise InvalidRecordError(f"{len(payload) - position} bytes follow the last record of a batch.")


def _read_record(header: BatchHeader, body: bytes | memoryview) -> tuple[Record, int]:
    timestamp_delta, position = read_varlong(body, 1)
    delta, position = read_varint(body, position)
    key, position = _read_bytes(body, position)
    value, position = _read_bytes(body, position)
    headers, position = _read_headers(body, position)
    if position != len(body):
        raise InvalidRecordError(f"{len(body) - position} bytes of a record belong to none of its fields.")
    timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp + timestamp_delta
    offset = Offset(header.base_offset + delta)
    return Record(offset, wrapped_int64(timestamp), key, value, headers), delta


def _read_bytes(body: bytes | memoryview, position: int) -> tuple[bytes | None, int]:
    length, position = read_varint(body, position)
    if length == -1:
        return None, position
    end = position + length
    if length < 0 or end > len(body):
        raise InvalidRecordError(f"A field of {length} bytes does not fit in its record.")
    return bytes(body[position:end]), end


def _read_headers(
    body: bytes | memoryview, position: int
) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = read_varint(body, position)
    if not 0 <= count <= (len(body) - position) // _HEADER_BYTES_MIN:
        raise InvalidRecordError(f"{count} headers do not fit in {len(body) - position} bytes.")
    headers = []
    for _ in range(count):
        key, position = _read_bytes(body, position)
        if key is None:
            raise InvalidRecordError("A header of a record has no key.")
        value, position = _read_bytes(body, position)
        headers.append((key.decode("utf-8", "surrogateescape"), value))
    return tuple(headers), position
