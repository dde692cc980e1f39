"""Keys of a batch's records, read one by one; see `keys.py`."""

from anabranch.record.buffers import ByteBuffer
from anabranch.record.records import RECORDS_BYTES_MAX, records_of

KeyedRecord = tuple[int, bytes | None, bool]
"""Offset, key, and whether its value is null."""


def keyed_records_pure(batch: ByteBuffer, bytes_max: int = RECORDS_BYTES_MAX) -> list[KeyedRecord]:
    return [(record.offset, record.key, record.value is None) for record in records_of(batch, bytes_max)]
