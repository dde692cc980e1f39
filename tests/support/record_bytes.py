"""Records by hand: bodies, lengths and batches that may be right or wrong."""

from collections.abc import Iterator
from struct import pack_into

from anabranch.record.batch import HEADER_BYTES, seal
from anabranch.record.builder import BatchBuilder
from anabranch.record.varint import append_varint


def varints(*values: int) -> bytes:
    out = bytearray()
    for value in values:
        append_varint(out, value)
    return bytes(out)


def framed(body: bytes) -> bytes:
    return varints(len(body)) + body


def batch_of(payload: bytes, count: int, last_offset_delta: int | None = None) -> bytearray:
    """A batch whose envelope is right around a payload that may not be."""
    builder = BatchBuilder()
    builder.add(None, None, timestamp_ms=0)
    batch = builder.build()[:HEADER_BYTES] + payload
    pack_into(">i", batch, 23, count - 1 if last_offset_delta is None else last_offset_delta)
    pack_into(">i", batch, 57, count)
    seal(batch)
    return batch


def long_form(raw: int, size: int) -> bytes:
    """An integer in `size` bytes, whether it needs them or not."""
    return bytes(raw >> 7 * place & 127 | 128 * (place < size - 1) for place in range(size))


INTEGERS = [
    *(
        varints(value)
        for value in (*range(-3, 4), -64, -65, 63, 64, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
    ),
    *(long_form(raw, size) for raw in (0, 1, 2, 3) for size in (2, 3, 5, 6, 10, 11)),
    *(long_form(raw, 5) for raw in (2**32 - 1, 2**32, 2**33, 2**34, 2**35 - 1)),
    *(long_form(raw, 10) for raw in (2**64 - 1, 2**64, 2**65, 2**70 - 1)),
    *(b"\x80" * size for size in (1, 2, 4, 5, 9, 10, 11)),
]
"""Variable-length integers: right ones, some longer than needed, some too large, some that never end."""

FIRST = [
    varints(5),
    varints(0),
    varints(1) + b"k",
    varints(1) + b"v",
    varints(1),
    varints(1) + b"h",
    varints(0),
]


def spoiled_sections(value_bytes: int = 900) -> Iterator[bytes]:
    """Two records of which one has one wrong field, or none has; the last has a value of that size."""
    value = varints(value_bytes) + bytes(value_bytes)
    last = framed(b"\0" + varints(300, 1, 70) + bytes(70) + value + varints(0))
    yield framed(b"\0" + b"".join(FIRST)) + last
    for place in range(len(FIRST)):
        for integer in INTEGERS:
            for rest in (b"", b"k", b"\0\0"):
                spoiled = b"".join([*FIRST[:place], integer + rest, *FIRST[place + 1 :]])
                yield framed(b"\0" + spoiled) + last
    for integer in INTEGERS:
        yield integer + b"\0" + b"".join(FIRST) + last
        yield last + integer
