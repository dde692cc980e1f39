"""Batches of a fetch become records: those from an offset on, as many as are wanted. Pure: a worker may do it."""

from typing import NamedTuple

from anabranch.record.batch import batch_spans, read_header
from anabranch.record.records import Record, records_of

RECORD_OVERHEAD_BYTES = 64


class Read(NamedTuple):
    records: list[Record]
    next_offset: int
    """Where to go on: behind the last record that was read, or behind what there is nothing to read of."""


def read_records(
    data: bytes | memoryview, start: int, *, records_max: int, bytes_max: int, unpacked_bytes_max: int
) -> Read:
    """At least one record if there is one. Raises CorruptDataError, InvalidRecordError, BatchTooLargeError."""
    found: list[Record] = []
    size, next_offset = 0, start
    view = memoryview(data)
    for begin, end in batch_spans(view):
        header = read_header(view, begin)
        records = () if header.is_control else records_of(view[begin:end], unpacked_bytes_max)
        for record in records:
            if record.offset < start:
                continue
            size += _size(record)
            if found and (size > bytes_max or len(found) >= records_max):
                return Read(found, next_offset)
            found.append(record)
            next_offset = record.offset + 1
        next_offset = max(next_offset, header.next_offset)
    return Read(found, next_offset)


def _size(record: Record) -> int:
    size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(held or b"") for name, held in record.headers)
