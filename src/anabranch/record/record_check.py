"""Is this records section exactly what its batch says? Asked of every batch a producer sends.

The structure of each record is walked: its length, its place in the batch (0, 1, 2, ...), key, value and headers
must fit into one another and end where the section ends. A record that breaks this would be met by every consumer
of the partition, so it is refused at the door. Contents are not looked at but for the newest time, which a header
only claims to know, and no object is made per record: the loop reads one- and two-byte integers in place, which
nearly all are, and leaves the rest to `varint`. Its compiled twin is in `_fast.pyx`.
"""

from anabranch.errors import InvalidRecordError
from anabranch.record.backend import COMPILED
from anabranch.record.buffers import ByteBuffer
from anabranch.record.varint import read_varint, read_varlong

_RECORD_BYTES_MIN = 6  # One byte each: attributes, two deltas, null key, null value, no headers.
_HEADER_BYTES_MIN = 2  # An empty key and a null value.
_OLDER_THAN_ANY = -(2**65)
_NO_KEY = "A record of a compacted topic has no key."


def check_records_pure(payload: ByteBuffer, record_count: int, keys_required: bool = False) -> int:
    """Refuses a section that is not exactly `record_count` whole records, or lacks a key where each needs one.

    Returns the largest timestamp delta of them.
    """
    try:
        # Bytes are read faster than a view of them.
        end, newest = _walk(bytes(payload), record_count, keys_required)
    except IndexError:
        raise InvalidRecordError(f"The batch ends before its {record_count} records do.") from None
    if end != len(payload):
        raise InvalidRecordError(f"{record_count} records end at byte {end} of {len(payload)}.")
    return newest


def _walk(payload: bytes, record_count: int, keys_required: bool) -> tuple[int, int]:  # noqa: C901 - a call costs more than a test
    position = 0
    size = len(payload)
    newest = _OLDER_THAN_ANY  # Twice the delta, which for one that is not negative is what the bytes say.
    for number in range(record_count):
        byte, more = payload[position], payload[position + 1]
        if byte < 128:
            position += 1
            end = position + (byte >> 1)
        elif more < 128:
            position += 2
            end = position + (more << 6 | (byte & 127) >> 1)
        else:
            length, position = read_varint(payload, position)
            end = position + length
        if byte & 1 or end > size or end - position < _RECORD_BYTES_MIN:
            raise InvalidRecordError(f"A record of {end - position} bytes does not fit in {size - position}.")
        position += 2  # Attributes, and the first byte of the timestamp delta.
        byte = payload[position - 1]
        if byte > 127:
            more = payload[position]
            if more < 128:
                position += 1
                byte = more << 7 | byte & 127
            else:
                delta, position = read_varlong(payload, position - 1)
                byte = delta << 1 if delta >= 0 else ~delta << 1 | 1
        if byte & 1:
            byte = ~byte
        if byte > newest:
            newest = byte
        byte, more = payload[position], payload[position + 1]
        if byte < 128:
            position += 1
            delta = byte >> 1
        elif more < 128:
            position += 2
            delta = more << 6 | (byte & 127) >> 1
        else:
            delta, position = read_varint(payload, position)
        if delta != number or byte & 1:
            raise InvalidRecordError(f"Record {number} of a batch does not say that it is number {number}.")
        byte = payload[position]
        if byte == 1:
            if keys_required:
                raise InvalidRecordError(_NO_KEY)
            position += 1
        elif byte < 128 and not byte & 1:
            position += 1 + (byte >> 1)
        else:
            position = _after_bytes(payload, position, end, _NO_KEY if keys_required else None)
        byte, more = payload[position], payload[position + 1]
        if byte & 1 or more > 127 < byte:
            position = _after_bytes(payload, position, end)
        elif byte < 128:
            position += 1 + (byte >> 1)
        else:
            position += 2 + (more << 6 | (byte & 127) >> 1)
        position = position + 1 if not payload[position] else _after_headers(payload, position, end)
        if position != end:
            raise InvalidRecordError(f"The fields of record {number} do not end where it does.")
    return position, newest >> 1


def _after_bytes(payload: ByteBuffer, position: int, end: int, complaint_if_null: str | None = None) -> int:
    """Past a key or a value; null (-1) is allowed if there is no complaint about it."""
    length, position = read_varint(payload, position)
    if length == -1:
        if complaint_if_null:
            raise InvalidRecordError(complaint_if_null)
        return position
    if length < 0 or position + length > end:
        raise InvalidRecordError(f"A field of {length} bytes does not fit in its record.")
    return position + length


def _after_headers(payload: ByteBuffer, position: int, end: int) -> int:
    count, position = read_varint(payload, position)
    if not 0 <= count <= (end - position) // _HEADER_BYTES_MIN:
        raise InvalidRecordError(f"{count} headers do not fit in {end - position} bytes.")
    for _ in range(count):
        position = _after_bytes(payload, position, end, "A header of a record has no key.")
        position = _after_bytes(payload, position, end)
    return position


if COMPILED:
    from anabranch.record._fast import check_records as check_records
else:
    check_records = check_records_pure
