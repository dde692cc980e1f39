"""CRC-32C (Castagnoli), the checksum of every record batch, over any buffer and without copying it.

Compiled (`_fast.pyx`) or, in the pure form, by the `crc32c` package, which is imported at the first sum: the compiled
form then starts without it, 15 ms sooner. The measurements are in `docs/decisions/0001-crc32c-library.md` and
`0012-compiled-module.md`.
"""

from collections.abc import Callable

from anabranch.record.backend import COMPILED
from anabranch.record.buffers import ByteBuffer

_package: Callable[[ByteBuffer], int] | None = None


def crc32c_pure(buffer: ByteBuffer) -> int:
    """The checksum of the whole buffer; hand in a memoryview slice, for a slice of bytes is a copy."""
    global _package
    if _package is None:
        from crc32c import crc32c

        _package = crc32c
    return _package(buffer)


if COMPILED:
    from anabranch.record._fast import crc32c as crc32c
else:
    crc32c = crc32c_pure
