"""Batches of a fetch become records: those from an offset on, as many as are wanted. Pure: a worker may do it.

A batch of two kilobytes may unpack to one record of sixty megabytes, and that to six times as much JSON: whoever shows
records as JSON is told of a long one, and not given it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.record.batch import batch_spans, checked_spans, read_header
from anabranch.record.buffers import ByteBuffer
from anabranch.record.compression import Codec
from anabranch.record.records import Record, records_of

RECORD_OVERHEAD_BYTES = 64
JSON_BYTES_MAX = 8 * 2**20
"""A record whose JSON would be longer is only told of."""
UNPACKED_BYTES_MAX = 16 * 2**20
"""Of records that are read for one answer, those that are only told of included; one record may have more."""
ESCAPE_BYTES = 6
AT_ONCE_BYTES_MAX = 16 * 1024
"""So much is decoded where we are: a worker would take longer to begin. Only where it cannot unpack to very much."""
AT_ONCE_CODECS = (Codec.NONE, Codec.LZ4)
_ESCAPED = bytes(code for code in range(32) if code not in b"\b\t\n\f\r")
"""What JSON has only a long spelling for."""


class OmittedRecord(Record):
    """A record that is only told of: without key, value and headers."""

    size_bytes = 0
    """Of what was left out."""


class Read(NamedTuple):
    records: list[Record]
    next_offset: int
    """Where to go on: behind the last record that was read, or behind what there is nothing to read of."""
    sizes: Sequence[int] = ()
    """The `size_of` each record, computed here so that no headers are counted on the loop."""


def read_records(
    data: bytes | memoryview,
    start: int,
    *,
    records_max: int,
    bytes_max: int,
    unpacked_bytes_max: int,
    shortens: bool = True,
) -> Read:
    """At least one record if there is one; with `shortens` those that are too long for JSON are only told of. Raises
    CorruptDataError, InvalidRecordError, BatchTooLargeError."""
    found: list[Record] = []
    sizes: list[int] = []
    size, unpacked, next_offset = 0, 0, start
    view = memoryview(data)
    for begin, end in checked_spans(view):
        header = read_header(view, begin)
        records = () if header.is_control else records_of(view[begin:end], unpacked_bytes_max, first=start)
        for record in records:
            if record.offset < start:
                continue
            shown, record_size = record, size_of(record)
            unpacked += record_size
            if shortens and is_long(record, record_size):
                shown, record_size = omitted(record, record_size), 0
            size += RECORD_OVERHEAD_BYTES + record_size
            is_much = size > bytes_max or unpacked > UNPACKED_BYTES_MAX
            if found and (is_much or len(found) >= records_max):
                return Read(found, next_offset, sizes)
            found.append(shown)
            sizes.append(record_size)
            next_offset = record.offset + 1
        next_offset = max(next_offset, header.next_offset)
    return Read(found, next_offset, sizes)


def is_little(batches: ByteBuffer) -> bool:
    """Whether these are decoded in no time, whatever they hold."""
    return len(batches) <= AT_ONCE_BYTES_MAX and all(
        read_header(batches, start).codec in AT_ONCE_CODECS for start, _ in batch_spans(batches)
    )


def is_long(record: Record, size: int) -> bool:
    """Whether the JSON of a record of that size would be longer than is shown, seen without making it."""
    if size <= JSON_BYTES_MAX // ESCAPE_BYTES:
        return False
    return size > JSON_BYTES_MAX or size + _escaped(record.key) + _escaped(record.value) > JSON_BYTES_MAX


def _escaped(data: bytes | None) -> int:
    """How much longer it becomes as a text of JSON, roughly."""
    return (ESCAPE_BYTES - 1) * (len(data) - len(data.translate(None, _ESCAPED))) if data else 0


def omitted(record: Record, size: int) -> OmittedRecord:
    told = OmittedRecord(record.offset, record.timestamp, None, None, ())
    told.size_bytes = size
    return told


def size_of(record: Record) -> int:
    headers = sum(len(name) + len(held or b"") for name, held in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers
