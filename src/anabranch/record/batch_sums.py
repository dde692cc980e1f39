"""Checks of whole batches in a buffer: which hold, and which byte of their heads was changed.

The head of a batch is its first 17 bytes (base offset, length, generation, magic), which its own CRC leaves out because
a broker stamps them. Whoever keeps the CRC-32C of the heads of neighbouring batches can tell that a head was changed,
and, if it was a single byte, which one: the difference of two sums of equally long data depends only on the changed
bits and on how many bytes follow them.
"""

from functools import cache
from struct import Struct

from anabranch.record.backend import COMPILED
from anabranch.record.batch import HEADER_BYTES, LOG_OVERHEAD, MAGIC
from anabranch.record.buffers import ByteBuffer
from anabranch.record.crc32c import crc32c

HEAD_BYTES = 17

# base offset, length, magic, crc, last offset delta
_CHECKED = Struct(">qi4xbI2xi")
_CRC_FROM = 21
_OFFSET_MAX = 2**63 - 1
_POLYNOMIAL = 0x82F63B78


def sound_batches_pure(buffer: ByteBuffer, start: int, end: int, next_offset: int) -> tuple[int, int, int]:
    """Walk the batches of [start, end) up to the first that does not hold: where that is, which offset comes next, and
    the CRC-32C over the heads of those before.

    A batch holds if it lies whole in the range, its CRC does, and its offsets follow `next_offset`.
    """
    view = memoryview(buffer)
    end = min(end, len(view))
    if not 0 <= start <= end:
        raise ValueError(f"{start} to {end} is not within a buffer of {len(view)} bytes")
    at, heads = start, bytearray()
    while end - at >= HEADER_BYTES:
        base, length, magic, crc, delta = _CHECKED.unpack_from(view, at)
        size = length + LOG_OVERHEAD
        if magic != MAGIC or not HEADER_BYTES <= size <= end - at or delta < 0:
            break
        if not next_offset <= base < _OFFSET_MAX - delta:
            break
        if crc32c(view[at + _CRC_FROM : at + size]) != crc:
            break
        heads += view[at : at + HEAD_BYTES]
        next_offset = base + delta + 1
        at += size
    return at, next_offset, crc32c(heads)


if COMPILED:
    from anabranch.record._fast import sound_batches as sound_batches
else:
    sound_batches = sound_batches_pure


def changed_byte(data: ByteBuffer, expected_crc: int) -> int | None:
    """The index of the one byte that must have been changed for `data` to have had another sum; None if changing no
    single byte explains it."""
    table, index_of_top = _tables()
    difference = crc32c(data) ^ expected_crc
    if not difference:
        return None
    for position in range(len(memoryview(data)) - 1, -1, -1):
        # Undo the step of one byte. If nothing is left, that byte is where the difference came in.
        index = index_of_top[difference >> 24]
        difference ^= table[index]
        if not difference:
            return position
        difference = (difference << 8 | index) & 0xFFFFFFFF
    return None


@cache
def _tables() -> tuple[list[int], list[int]]:
    """The sum of each byte, and which byte's sum begins with which eight bits."""
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    index_of_top = [0] * 256
    for index, crc in enumerate(table):
        index_of_top[crc >> 24] = index
    return table, index_of_top
