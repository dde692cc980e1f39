"""Receiving: the buffers into which a peer link reads. Records in them are lent to whoever takes the message, for as
long as they look at them; a buffer is written to again only when nobody does any more."""

from contextlib import suppress

from anabranch.broker.peers.codec import LENGTH_BYTES
from anabranch.server.peers.handshake import HELLO_BYTES_MAX

BUFFER_BYTES = 256 * 1024
ROOM_BYTES_MIN = 64 * 1024
"""With less room left, another buffer is taken."""
RESTING_MAX = 8


class Receiving:
    def __init__(self) -> None:
        self.begin = 0
        """Where what has not been looked at begins, and where it ends."""
        self.end = 0
        self.is_lent = False
        self._raw = bytearray(HELLO_BYTES_MAX + LENGTH_BYTES)  # A stranger gets no more.
        self.view = memoryview(self._raw)
        self._resting: list[bytearray] = []
        """Used before, and perhaps still looked at."""

    def make_room(self, frame_bytes: int) -> None:
        """For all of a frame of which something may be there already, and for more."""
        begin, end, size = self.begin, self.end, len(self.view)
        if begin == end and not self.is_lent and size >= BUFFER_BYTES:
            self.begin = self.end = 0
        elif size - begin < frame_bytes or size - end < ROOM_BYTES_MIN:
            self._move_to(self._fresh(max(frame_bytes, BUFFER_BYTES)))

    def make_room_for_hello(self) -> None:
        if self.begin:
            self._move_to(bytearray(HELLO_BYTES_MAX + LENGTH_BYTES))

    def _move_to(self, raw: bytearray) -> None:
        view = memoryview(raw)
        rest = self.end - self.begin
        view[:rest] = self.view[self.begin : self.end]
        self.view.release()
        if len(self._raw) == BUFFER_BYTES and len(self._resting) < RESTING_MAX:
            self._resting.append(self._raw)
        self._raw, self.view, self.begin, self.end = raw, view, 0, rest
        self.is_lent = False

    def _fresh(self, size: int) -> bytearray:
        """Memory that was used already costs less than new one, which the system has to clear."""
        if size == BUFFER_BYTES:
            for number, raw in enumerate(self._resting):
                with suppress(BufferError):  # Python lets nobody resize what somebody looks at.
                    raw.pop()
                    raw.append(0)
                    return self._resting.pop(number)
        return bytearray(size)
