"""CRC-32C (Castagnoli), the checksum of every record batch, over any buffer and without copying it.

One line over a library so that the choice stays in one place; `docs/decisions/0001-crc32c-library.md` has the
measurements behind it.
"""

from crc32c import crc32c as _crc32c

from anabranch.record.buffers import ByteBuffer


def crc32c(buffer: ByteBuffer) -> int:
    """The checksum of the whole buffer; hand in a memoryview slice, for a slice of bytes is a copy."""
    return _crc32c(buffer)
