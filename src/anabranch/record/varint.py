"""Kafka's variable-length integers: base 128, low bits first, zigzag so that small negatives stay small.

A varint holds 32 bits in at most 5 bytes, a varlong 64 bits in at most 10; encodings longer than needed are
read as Java reads them. Readers take the position of the first byte and return the value with the position
after it; running off the buffer or past the width is an `InvalidRecordError`.
"""

from anabranch.errors import InvalidRecordError
from anabranch.record.buffers import ByteBuffer

VARINT_BITS = 32
VARLONG_BITS = 64


def read_varint(buffer: ByteBuffer, position: int) -> tuple[int, int]:
    return _read(buffer, position, VARINT_BITS)


def read_varlong(buffer: ByteBuffer, position: int) -> tuple[int, int]:
    return _read(buffer, position, VARLONG_BITS)


def _read(buffer: ByteBuffer, position: int, bits: int) -> tuple[int, int]:
    try:
        byte = buffer[position]
        if byte < 128:  # Most lengths and deltas fit in one byte.
            return (byte >> 1) ^ -(byte & 1), position + 1
        unsigned, shift = byte & 127, 7
        while shift < bits:
            position += 1
            byte = buffer[position]
            unsigned |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
    except IndexError:
        raise InvalidRecordError("A variable-length integer runs past the end of its record.") from None
    if byte >= 128 or unsigned >> bits:
        raise InvalidRecordError(f"A variable-length integer does not fit in {bits} bits.")
    return (unsigned >> 1) ^ -(unsigned & 1), position + 1


def wrapped_int64(value: int) -> int:
    """What Java's long would hold: a sum or difference of two of them may pass the end and come in again."""
    return (value + 2**63 & 2**64 - 1) - 2**63


def append_varint(out: bytearray, value: int) -> None:
    """Appends a varint or a varlong: they differ only in what may be put in, which the caller has checked."""
    unsigned = value << 1 if value >= 0 else (~value << 1) | 1
    while unsigned >= 128:
        out.append(unsigned & 127 | 128)
        unsigned >>= 7
    out.append(unsigned)
