"""Outlet: everything one WebSocket is told, one message after the other, and how much of it may wait.

Sending waits while the client does not read; whoever has something to say waits for its turn and makes its message only
then. What lies unsent for one client is therefore what the socket's buffer takes, the message that has just filled it,
the one that waits, and the chunks that its subscriptions hold. Each gets a quarter of `bytes_max`; only a single record
that is longer goes beyond.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

MESSAGE_BYTES_MAX = 256 * 1024


class ClientGoneError(Exception):
    """Nobody hears what is said: whatever was done for this client may end."""


class Outlet:
    """`send` raises ClientGoneError once there is nobody on the other side."""

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[None]],
        send_now: Callable[[bytes], bool],
        bytes_max: int,
        refusals: Counter[str],
    ) -> None:
        """`refusals`: the errors that clients are told, by their codes."""
        self._refusals = refusals
        self._send = send
        self._send_now = send_now
        self.message_bytes_max = min(MESSAGE_BYTES_MAX, bytes_max // 4)
        self._held_bytes_max = bytes_max // 4
        self.held_bytes = 0
        self.turn = asyncio.Lock()
        self.sent_total = 0

    async def say(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "error":
            self._refusals[message["code"]] += 1
        text = json.dumps(message, separators=(",", ":")).encode()
        async with self.turn:
            await self.send(text)

    def say_now(self, text: bytes) -> bool:
        """Whether it could be said at once: nobody else waits to say something, and the client has room."""
        if self.turn.locked() or not self._send_now(text):
            return False
        self.sent_total += 1
        return True

    async def send(self, text: bytes) -> None:
        """JSON in UTF-8, in the course of one's turn."""
        assert self.turn.locked()
        if not self._send_now(text):
            await self._send(text)
        self.sent_total += 1

    def hold(self, size_bytes: int) -> bool:
        """Whether so much may be kept in memory for this client until its turn comes; `let_go` follows. What is larger
        than allowed is kept alone, or it would never come to its turn."""
        if self.held_bytes and self.held_bytes + size_bytes > self._held_bytes_max:
            return False
        self.held_bytes += size_bytes
        return True

    def let_go(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        assert self.held_bytes >= 0
