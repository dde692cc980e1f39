"""How one WebSocket is spoken: uvicorn's protocol, and what it leaves open about clients that do not read.

Text may be handed over as the UTF-8 it is: what goes to a thousand subscribers need not be encoded a thousand times.
A close waits for the client to take what lies in its buffer, for ever if it never reads: here it is cut off after a
moment. Pings are answered only while there is room, or a client that sends them and never reads would fill the memory.
"""

import asyncio
import socket
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

UTF8_TEXT = "anabranch.text"
"""In a `websocket.send`, in place of `text`."""
PARTING_SECONDS = 5.0
"""How long the last messages may take to reach the client."""
SEND_NOW = "anabranch.send_now"
"""In the scope: sends such a text without waiting, if it can."""
SMALL_BYTES_MAX = 4096
QUEUED_MAX = 64
"""Messages of a client that were read and not dealt with, as long as they are small."""
BUFFER_BYTES_MAX = 64 * 1024
SYSTEM_BUFFER_BYTES = 256 * 1024
"""What the system may hold unsent for a client; left alone it takes megabytes for everyone who does not read."""


class SocketProtocol(WebSocketsSansIOProtocol):
    unsent_bytes_max = 1024 * 1024
    _parting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(min(BUFFER_BYTES_MAX, self.unsent_bytes_max // 4))
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, SYSTEM_BUFFER_BYTES
        )

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._part()

    def send_receive_event_to_app(self) -> None:
        """Small messages are read on for while the last one is dealt with; uvicorn stops reading after each."""
        is_small = sum(map(len, self.frames)) <= SMALL_BYTES_MAX
        if self.read_paused or not is_small or self.queue.qsize() >= QUEUED_MAX:
            super().send_receive_event_to_app()
            return
        self.read_paused = True
        super().send_receive_event_to_app()
        self.read_paused = False

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

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # The pong is made already; a client that reads again may ask again.

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._part()

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self._part()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._parting is not None:
            self._parting.cancel()
        super().connection_lost(exc)

    def _part(self) -> None:
        if self._parting is None and self.transport.is_closing():
            self._parting = self.loop.call_later(PARTING_SECONDS, self.transport.abort)
