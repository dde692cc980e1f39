"""Records by hand: bodies, lengths and batches that may be right or wrong."""

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
