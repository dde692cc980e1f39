"""Sending: what waits to be sent on one peer link. It leaves at the end of the loop's turn, from where it lies.

asyncio's transport would copy everything into one piece first. So we call the system ourselves, on a second descriptor
of the same socket, and leave to the transport only the little it takes to be told when there is room again. TLS has to
make other bytes of ours in any case, and goes through the transport.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from itertools import islice

from anabranch.broker.peers.codec import size_of
from anabranch.broker.peers.messages import Buffer

BUFFERS_PER_CALL_MAX = 256
LEFT_TO_TRANSPORT_BYTES = 16 * 1024


class Sending:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.bytes_waiting = 0
        self.is_blocked = True
        """The system takes no more: the transport says when it does."""
        self._loop = loop
        self._queue: deque[Buffer] = deque()
        self._is_flush_due = False
        self._is_gathering = False
        self._transport: asyncio.Transport | None = None
        self._sock: socket.socket | None = None

    def open(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=0)
        if transport.get_extra_info("sslcontext") is None:
            self._sock = transport.get_extra_info("socket").dup()
        self.is_blocked = False

    def close(self) -> None:
        self.is_blocked = True
        self._queue.clear()
        self.bytes_waiting = 0
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def put(self, frame: Sequence[Buffer], size: int | None = None) -> None:
        self._queue.extend(frame)
        self.bytes_waiting += size_of(frame) if size is None else size
        if not self._is_flush_due and not self._is_gathering:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_due)

    def gather(self) -> None:
        """Let wait what is put from now on, until `flush_gathered`."""
        self._is_gathering = True

    def flush_gathered(self) -> None:
        self._is_gathering = False
        self.flush()

    def _flush_due(self) -> None:
        self._is_flush_due = False
        self.flush()

    def flush(self) -> None:
        while self._queue and not self.is_blocked:
            batch = list(islice(self._queue, BUFFERS_PER_CALL_MAX))
            if self._sock is None:
                self._leave_to_transport(batch)
            elif not self._send(self._sock, batch):
                self._leave_to_transport(self._head())

    def _send(self, sock: socket.socket, batch: list[Buffer]) -> bool:
        """Whether the system took all of it."""
        try:
            sent = sock.sendmsg(batch)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self.is_blocked = True  # The transport meets the same error now, and ends the link with it.
            return False
        is_all = sent == (self.bytes_waiting if len(batch) == len(self._queue) else size_of(batch))
        self._drop(sent)
        return is_all

    def _drop(self, sent: int) -> None:
        queue = self._queue
        if sent == self.bytes_waiting:
            queue.clear()
            self.bytes_waiting = 0
            return
        self.bytes_waiting -= sent
        while queue and sent >= len(queue[0]):
            sent -= len(queue.popleft())
        if sent:
            queue[0] = memoryview(queue[0])[sent:]

    def _head(self) -> list[Buffer]:
        return [memoryview(self._queue[0])[:LEFT_TO_TRANSPORT_BYTES]]

    def _leave_to_transport(self, some: list[Buffer]) -> None:
        assert self._transport is not None
        data = b"".join(some)
        self._drop(len(data))  # First: the transport may say at once that there is room for more.
        self._transport.write(data)
