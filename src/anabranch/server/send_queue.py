"""SendQueue: answers on their way to one socket, in order, bytes with `sendmsg` and file slices with `sendfile`.

Neighbouring bytes leave in one call. What the socket does not take stays, and the connection is told to wait for
it to become writable. A slice is held open from the moment it is answered with, so that its file is not closed
under it. If somebody writes to that file while a slow reader takes its time, the rest is read and checked once more,
a part at a time, and leaves from memory.
"""

import os
import socket
from collections import deque
from collections.abc import Iterable
from time import monotonic
from typing import cast

from anabranch.broker.requests.call import HeldBytes, Piece
from anabranch.errors import AnabranchError
from anabranch.log.segment.slice import Slice

BUFFERS_PER_CALL_MAX = 64
SENDFILE_BYTES_MAX = 4 * 1024 * 1024
"""So that one large slice does not keep the loop from everybody else."""
CHECKED_SECONDS = 0.005
"""How long after the last look at a slice's file no other is needed: a reader that keeps up costs none."""


class OpenSlice:
    """A file slice and how far it has been sent; holds its descriptor open."""

    __slots__ = ("_is_changed", "_slice", "checked_at", "descriptor", "left", "position")

    def __init__(self, part: Slice) -> None:
        part.pin()
        descriptor = part.fileno()
        assert descriptor is not None, "only slices of real files are sent by sendfile"
        self._slice = part
        self._is_changed = False
        self.descriptor = descriptor
        self.position = part.position
        self.left = part.count
        self.checked_at = monotonic()

    def next_if_changed(self) -> memoryview | None:
        """The next bytes to send, checked anew, if its file is not what it was; OSError if they do not hold."""
        if not self._is_changed:
            now = monotonic()
            if now - self.checked_at < CHECKED_SECONDS:
                return None
            self.checked_at = now
            if self._slice.is_unchanged():
                return None
            self._is_changed = True
        try:
            data = self._slice.checked_again(self.position)
        except AnabranchError as error:
            raise OSError(f"a slice was damaged while it was sent: {error}") from error
        self.position += len(data)
        self.left -= len(data)
        return data

    def close(self) -> None:
        self._slice.unpin()


Held = bytes | bytearray | memoryview | OpenSlice
"""A piece on its way out: bytes, or a file slice that keeps its file open."""


def held(piece: Piece) -> Held:
    if isinstance(piece, bytes | bytearray | memoryview):
        return piece
    return OpenSlice(cast(Slice, piece))


def let_go(piece: Held) -> None:
    if isinstance(piece, OpenSlice):
        piece.close()


class SendQueue:
    __slots__ = ("_pieces", "_together", "bytes_held", "bytes_sent")

    def __init__(self, together: HeldBytes | None = None) -> None:
        self._together = together if together is not None else HeldBytes()
        self._pieces: deque[Held] = deque()
        self.bytes_held = 0
        """Bytes in memory that wait for the reader; file slices do not count."""
        self.bytes_sent = 0
        """Everything so far: it grows as long as the reader takes something."""

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def put(self, pieces: Iterable[Held]) -> None:
        self._pieces.extend(pieces)

    def send(self, sock: socket.socket) -> bool:
        """True: all is gone. False: go on when the socket is writable. Raises OSError when the peer is gone."""
        pieces = self._pieces
        try:
            while pieces:
                first = pieces[0]
                if isinstance(first, OpenSlice):
                    is_gone = self._send_slice(sock, first)
                elif len(pieces) == 1:
                    is_gone = self._has_left([first], sock.send(first))
                else:
                    is_gone = self._send_bytes(sock)
                if not is_gone:
                    break
        except BlockingIOError:
            pass
        self._hold(sum(len(piece) for piece in pieces if not isinstance(piece, OpenSlice)) if pieces else 0)
        return not pieces

    def _hold(self, count: int) -> None:
        self._together.count += count - self.bytes_held
        self.bytes_held = count

    def _send_bytes(self, sock: socket.socket) -> bool:
        buffers: list[bytes | bytearray | memoryview] = []
        flags = 0
        for piece in self._pieces:
            if isinstance(piece, OpenSlice):
                flags = socket.MSG_MORE  # The head of an answer travels with the first bytes of its file.
                break
            if len(buffers) == BUFFERS_PER_CALL_MAX:
                break
            buffers.append(piece)
        return self._has_left(buffers, sock.sendmsg(buffers, (), flags))

    def _has_left(self, buffers: list[bytes | bytearray | memoryview], sent: int) -> bool:
        """Drop what was sent of the first pieces; whether that was all of them."""
        self.bytes_sent += sent
        for buffer in buffers:
            if sent < len(buffer):
                self._pieces[0] = memoryview(buffer)[sent:]
                return False
            sent -= len(buffer)
            self._pieces.popleft()
        return True

    def _send_slice(self, sock: socket.socket, part: OpenSlice) -> bool:
        data = part.next_if_changed()
        if data is not None:
            self._pieces.appendleft(data)
            if not part.left:
                del self._pieces[1]
                part.close()
            return self._has_left([data], sock.send(data)) and not part.left
        wanted = min(part.left, SENDFILE_BYTES_MAX)
        sent = os.sendfile(sock.fileno(), part.descriptor, part.position, wanted)
        if not sent:
            raise OSError("a segment file is shorter than what was promised of it")
        self.bytes_sent += sent
        part.position += sent
        part.left -= sent
        if not part.left:
            part.close()
            self._pieces.popleft()
            return True
        return False

    def clear(self) -> None:
        for piece in self._pieces:
            let_go(piece)
        self._pieces.clear()
        self._hold(0)
