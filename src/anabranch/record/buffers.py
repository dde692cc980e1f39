"""The one name for "bytes that may be read in place", so that every signature in this room says the same."""

from typing import TypeAlias

ByteBuffer: TypeAlias = bytes | bytearray | memoryview
"""A memoryview must be of single bytes (format B) and contiguous, as every slice of a frame is."""
