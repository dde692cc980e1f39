"""CRC-32C (Castagnoli), the checksum of every record batch, over any buffer and without copying it.

Compiled (`_fast.pyx`) or, in the pure form, by the `crc32c` package, which is imported at the first sum: its import
costs more than all others of a start. `docs/decisions/0001-crc32c-library.md` and `0012-compiled-module.md` have the
measurements.
"""

from anabranch.record.buffers import ByteBuffer
from anabranch.record.form import COMPILED

__all__ = ["crc32c", "crc32c_pure"]


def crc32c_pure(buffer: ByteBuffer) -> int:
    """The checksum of the whole buffer; hand in a memoryview slice, for a slice of bytes is a copy."""
    from crc32c import crc32c

    return crc32c(buffer)


if COMPILED:
    from anabranch.record._fast import crc32c
else:
    crc32c = crc32c_pure
