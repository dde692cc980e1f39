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

UTF8_TEXT = "anabranch.text"
"""In a `websocket.send`, in place of `text`."""
PARTING_SECONDS = 5.0
"""How long the last messages may take to reach the client."""
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

    async def send(self, message: Any) -> None:
        text = message.get(UTF8_TEXT)
        if text is None:
            await super().send(message)
            return
        await self.writable.wait()
        if self.disconnected or self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        self.conn.send_text(text)
        self.transport.write(b"".join(self.conn.data_to_send()))

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
