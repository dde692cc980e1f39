"""Whole frames out of whatever has arrived so far: a four-byte size, then that many bytes.

Pure and without state: the connection owns the buffer and says which part of it is filled; the answer is
where frames lie in it, so nothing is copied. A size that is not a size, or is above the limit, is refused
as soon as its four bytes are there: before any memory is taken for what it announces.
"""

import struct
from typing import NamedTuple

from anabranch.errors import FrameTooLargeError, ProtocolError

SIZE_BYTES = 4

_size_at = struct.Struct(">i").unpack_from


class Frames(NamedTuple):
    """`spans` are (start, end) of bodies, sizes not included.

    The first byte that belongs to no whole frame is at `position`; the frame that begins there needs
    `bytes_wanted` bytes from there on, which is `SIZE_BYTES` while not even its size has arrived.
    """

    spans: list[tuple[int, int]]
    position: int
    bytes_wanted: int


def split_frames(
    buffer: bytes | bytearray | memoryview, start: int, end: int, frame_bytes_max: int, frames_max: int
) -> Frames:
    """The whole frames in `buffer[start:end]`, at most `frames_max`.

    A bad size behind good frames is reported only once those were handed out, so that they are still
    answered.
    """
    spans: list[tuple[int, int]] = []
    while end - start >= SIZE_BYTES and len(spans) < frames_max:
        (size,) = _size_at(buffer, start)
        if not 0 < size <= frame_bytes_max:
            if spans:
                return Frames(spans, start, SIZE_BYTES)
            raise _refusal(size, frame_bytes_max)
        body = start + SIZE_BYTES
        if body + size > end:
            return Frames(spans, start, SIZE_BYTES + size)
        start = body + size
        spans.append((body, start))
    return Frames(spans, start, SIZE_BYTES)


def _refusal(size: int, frame_bytes_max: int) -> ProtocolError:
    if size <= 0:
        return ProtocolError(f"A frame of {size} bytes is not a Kafka request.")
    return FrameTooLargeError(f"A frame of {size} bytes is above the limit of {frame_bytes_max}.")
