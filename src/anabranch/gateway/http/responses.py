"""Answers that starlette has no form for: JSON in our way, streams that are made while the request is read, and
answers that count against the gateway's memory until they have left."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from anabranch.gateway.http.texts import json_text

PIECE_BYTES = 64 * 1024
TURN_BYTES = 16 * PIECE_BYTES


class JsonAnswer(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json_text(content) + b"\n"


class HeldAnswer(Response):
    """`release` is called once nobody holds the answer's bytes any more."""

    def __init__(
        self, content: bytes, media_type: str, headers: Mapping[str, str], release: Callable[[], None]
    ) -> None:
        super().__init__(content, 200, headers, media_type)
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """In pieces, each of which waits until the one before it has left: otherwise all of it would lie in the
        connection's buffer after this has ended."""
        view = memoryview(bytes(self.body))
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            for begin in range(0, len(view), PIECE_BYTES):
                if begin % TURN_BYTES == TURN_BYTES - PIECE_BYTES:
                    await asyncio.sleep(
                        0
                    )  # A client that takes all of it at once would leave nobody else a turn.
                piece = bytes(view[begin : begin + PIECE_BYTES])
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._release()


class StreamedAnswer(Response):
    """Pieces leave as they are made. Unlike starlette's own it leaves the request's body to whoever makes them. The
    first piece is empty, and comes when the body is being read: clients that ask first whether to send it (Expect:
    100-continue) are then told so, before the answer begins."""

    def __init__(self, pieces: AsyncIterator[bytes], media_type: str) -> None:
        super().__init__(b"", 200, {"cache-control": "no-store", "x-accel-buffering": "no"}, media_type)
        del self.headers["content-length"]
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await anext(self._pieces)
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            async for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            await self._pieces.aclose()  # type: ignore[attr-defined]  # A generator has it.
        await send({"type": "http.response.body", "body": b"", "more_body": False})
