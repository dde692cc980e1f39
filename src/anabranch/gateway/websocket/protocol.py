"""How one WebSocket is spoken: uvicorn's protocol, and what it leaves open about clients that do not read.

Text may be handed over as the UTF-8 it is: what goes to a thousand subscribers need not be encoded a thousand times.
A close waits for the client to take what lies in its buffer, for ever if it never reads: here it is cut off after a
moment. Pings are answered only while there is room, or a client that sends them and never reads would fill the memory.
What clients send is bounded over all of them, in bytes and in pieces, and read and parsed a little at a time
(`slices.py`).
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request

from anabranch.gateway.http.addresses import Addresses
from anabranch.gateway.http.protocol import host_of
from anabranch.gateway.http.slices import SlicedParser

UTF8_TEXT = "anabranch.text"
"""In a `websocket.send`, in place of `text`."""
CLOSING_SECONDS_MAX = 5.0
"""How long the last messages may take to reach the client."""
SEND_NOW = "anabranch.send_now"
"""In the scope: sends such a text without waiting, if it can."""
HAND_OVER = "anabranch.hand_over"
"""In the scope: whoever is handed over to is asked first whether it deals with a small message at once."""
SMALL_BYTES_MAX = 4096
QUEUED_MAX = 64
"""Messages of a client that were read and not dealt with, as long as they are small."""
BUFFER_BYTES_MAX = 64 * 1024
SYSTEM_BUFFER_BYTES = 256 * 1024
"""What the system may hold unsent for a client; left alone it takes megabytes for everyone who does not read."""
READ_BYTES_MAX = 16 * 1024
"""Read in one turn of the loop: of tiny frames asyncio's quarter of a megabyte would hold up everybody for a second."""
SLICE_BYTES = 1024
"""Parsed at once: up to 170 empty frames."""
PIECES_MAX = 4096
"""Of one message. They may be empty, so that no limit in bytes ends them."""
INCOMING_BYTES_MAX = 128 * 2**20
"""Of messages that are not whole, or not dealt with, over all WebSockets; beyond, those with long ones are closed."""
LONG_BYTES = 64 * 1024
NO_HANDSHAKE = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: 97\r\nconnection: close\r\n\r\n"
    b'{"error": {"code": "BAD_REQUEST", "message": "A WebSocket begins with a GET that has no body."}}\n'
)


REFUSALS = frozenset({1002, 1003, 1007, 1009, 1011, 1013})
"""Codes of closing that are counted as refusals where the node was first to close."""


class Incoming:
    """What clients have sent and is still held, over all WebSockets of a node."""

    def __init__(self) -> None:
        self.bytes_held = 0


class SocketProtocol(WebSocketsSansIOProtocol, SlicedParser):
    unsent_bytes_max = 1024 * 1024
    incoming = Incoming()
    addresses = Addresses(10_000)
    refusals: Counter[str]
    _host: str | None = None
    _closing_timer: asyncio.TimerHandle | None = None
    _held_bytes = 0
    _rows = 0
    """Frames in the slice that is being parsed."""
    _message_bytes = 0
    """Of the message whose pieces come."""
    _queued_bytes = 0
    _take_now: Callable[[str], bool] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._unparsed = bytearray()
        self._host = host_of(transport)  # Counted since the connection was made.
        transport.max_size = READ_BYTES_MAX  # type: ignore[attr-defined]  # Of asyncio's own transports.
        self.transport.set_write_buffer_limits(min(BUFFER_BYTES_MAX, self.unsent_bytes_max // 4))
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, SYSTEM_BUFFER_BYTES
        )

    def data_received(self, data: bytes) -> None:
        if not self.handshake_initiated:
            self._take_handshake(data)
            return
        self._unparsed += data
        self.parse_slices()
        if self._held_bytes > LONG_BYTES and self.incoming.bytes_held > INCOMING_BYTES_MAX:
            self._refuse(
                CloseCode.TRY_AGAIN_LATER, "The node holds too much of what clients send: try again."
            )
            self._limit_closing()

    def has_slice(self) -> bool:
        return len(self._unparsed) > 0

    def parse_slice(self) -> int:
        self._rows = 0
        if self.transport.is_closing():
            self._unparsed.clear()
        else:
            piece = bytes(self._unparsed[:SLICE_BYTES])
            del self._unparsed[:SLICE_BYTES]
            super().data_received(piece)
        return self._rows

    def after_parsing(self) -> None:
        pongs = b"".join(self.conn.data_to_send())
        if pongs:
            self.transport.write(pongs)
        self._note_held()
        self._limit_closing()

    def hold_reading(self) -> None:
        self.transport.pause_reading()

    def let_reading_go(self) -> None:
        if not self.read_paused:
            self.transport.resume_reading()

    def handle_events(self) -> None:
        self._rows = len(self.conn.events)
        super().handle_events()

    def _note_held(self) -> None:
        count = len(self._unparsed) + len(self.conn.reader.buffer) + self._message_bytes + self._queued_bytes
        self.incoming.bytes_held += count - self._held_bytes
        self._held_bytes = count

    def _take_handshake(self, head: bytes) -> None:
        """If the head is whole, and yet none, uvicorn would wait for the rest for ever."""
        super().data_received(head)
        if self.handshake_initiated:
            self._limit_closing()
            return
        self.refusals["BAD_REQUEST"] += 1
        self.transport.write(b"".join(self.conn.data_to_send()) or NO_HANDSHAKE)
        self.transport.close()

    def _refuse(self, code: CloseCode, reason: str) -> None:
        if not self.close_sent:
            self.conn.fail(code, reason)
            self.handle_parser_exception()

    def handle_text(self, event: Frame) -> None:
        self._message_bytes = len(event.data)
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        self._message_bytes = len(event.data)
        super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        self._message_bytes += len(event.data)
        if len(self.frames) >= PIECES_MAX:
            self._refuse(CloseCode.MESSAGE_TOO_BIG, f"A message may come in {PIECES_MAX} pieces.")
        else:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """Small messages are read on for while the last one is dealt with; uvicorn stops reading after each."""
        is_small = self._message_bytes <= SMALL_BYTES_MAX
        if is_small and self._is_taken():
            self._message_bytes = 0
            return
        self._queued_bytes += self._message_bytes
        self._message_bytes = 0
        if self.read_paused or not is_small or self.queue.qsize() >= QUEUED_MAX:
            super().send_receive_event_to_app()
            return
        self.read_paused = True
        super().send_receive_event_to_app()
        self.read_paused = False

    def _is_taken(self) -> bool:
        """What waits in the queue comes first."""
        if self._take_now is None or self.close_sent or self.curr_msg_data_type != "text":
            return False
        if not self.queue.empty():
            return False
        try:
            return self._take_now(b"".join(self.frames).decode())
        except UnicodeDecodeError:
            return False

    def hand_over(self, take_now: Callable[[str], bool]) -> None:
        self._take_now = take_now

    async def receive(self) -> Any:
        """Whoever asks for the next message is done with the last one."""
        if self.queue.empty() and self._queued_bytes:
            self._queued_bytes = 0
            self._note_held()
        message = await super().receive()
        if self.is_parsing_later:
            self.hold_reading()  # It may just have been resumed.
        return message

    async def send(self, message: Any) -> None:
        text = message.get(UTF8_TEXT)
        if text is None:
            await super().send(message)
            return
        await self.writable.wait()
        if not self.send_now(text):
            raise ClientDisconnected

    def send_now(self, text: bytes) -> bool:
        """Whether the client is there and has room for it."""
        if self.disconnected or self.close_sent or self.transport.is_closing() or not self.writable.is_set():
            return False
        self.conn.send_text(text)
        self.transport.write(b"".join(self.conn.data_to_send()))
        return True

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            self.scope[SEND_NOW] = self.send_now  # type: ignore[literal-required]
            self.scope[HAND_OVER] = self.hand_over  # type: ignore[literal-required]

    def handle_ping(self) -> None:
        """The pong is made already, and leaves with all others of what was read; without room it is dropped: a client
        that reads again may ask again."""
        if not self.writable.is_set():
            self.conn.data_to_send()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._limit_closing()

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self._limit_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._closing_timer is not None:
            self._closing_timer.cancel()
        close = self.conn.close_sent
        if close is not None and close.code in REFUSALS and not self.conn.close_rcvd_then_sent:
            self.refusals[f"WEBSOCKET_{close.code:d}"] += 1
        self.stop_parsing()
        self.incoming.bytes_held -= self._held_bytes
        self._held_bytes = 0
        if self._host is not None:
            self.addresses.give(self._host)
        super().connection_lost(exc)

    def _limit_closing(self) -> None:
        if self._closing_timer is None and self.transport.is_closing():
            self._closing_timer = self.loop.call_later(CLOSING_SECONDS_MAX, self.transport.abort)
