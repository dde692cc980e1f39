"""What the compiled module offers; see `_fast.pyx`."""

from anabranch.record.buffers import ByteBuffer

def crc32c(buffer: ByteBuffer, /) -> int: ...
