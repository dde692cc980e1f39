"""`/v1/ws` and `/v1/topics/{topic}/ws`: records in and out by WebSocket. docs/gateway.md lists the messages.

Also `/v1/anabranch.js`, the client for browsers, and `/v1/demo`, a page that uses it.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from anabranch.errors import GatewayError
from anabranch.gateway.http.errors import UPGRADE_REQUIRED
from anabranch.gateway.websocket.outlet import ClientGoneError
from anabranch.gateway.websocket.protocol import HAND_OVER, SEND_NOW, UTF8_TEXT
from anabranch.gateway.websocket.session import NotTextError, SocketSession
from anabranch.gateway.websocket.sockets import Sockets

if TYPE_CHECKING:
    from anabranch.gateway.gateway import Gateway

SUBPROTOCOL = "anabranch.v1"
"""Offered by clients that want to be sure of what they speak; the only one there is."""
PAGE_POLICY = (
    "default-src 'self'; connect-src 'self' ws: wss:; style-src 'self' 'unsafe-inline'; script-src 'self'"
)


def routes(gateway: "Gateway") -> list[BaseRoute]:
    gateway.sockets = sockets = Sockets(gateway)
    gateway.on_close.append(sockets.close)

    async def serve(websocket: WebSocket) -> None:
        offered = websocket.scope.get("subprotocols") or []
        await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        topic = websocket.path_params.get("topic")
        session = SocketSession(sockets, StarletteLine(websocket), topic)
        websocket.scope[HAND_OVER](session.take_now)
        await sockets.serve(session)

    async def say_how(request: Request) -> Response:
        raise GatewayError(
            "This path serves WebSockets only: connect with a WebSocket client, as ws://, or send the headers "
            "Connection: Upgrade and Upgrade: websocket; a proxy in between has to pass them on.",
            "UPGRADE_REQUIRED",
            UPGRADE_REQUIRED,
        )

    paths = ("/v1/ws", "/v1/topics/{topic}/ws")
    return [
        *(WebSocketRoute(path, serve) for path in paths),
        *(Route(path, say_how) for path in paths),
        Route("/v1/anabranch.js", _file("anabranch.js", "text/javascript; charset=utf-8")),
        Route("/v1/demo.js", _file("demo.js", "text/javascript; charset=utf-8")),
        Route("/v1/demo", _file("demo.html", "text/html; charset=utf-8")),
    ]


class StarletteLine:
    """A WebSocket as a session wants it."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._is_closing = False
        self._send_now: Callable[[bytes], bool] = websocket.scope[SEND_NOW]
        self.host = websocket.client.host if websocket.client is not None else ""

    async def receive(self) -> str | None:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        text: str | None = message.get("text")
        if text is None:
            raise NotTextError
        return text

    def send_now(self, text: bytes) -> bool:
        return not self._is_closing and self._send_now(text)

    async def send(self, text: bytes) -> None:
        if self._is_closing:
            raise ClientGoneError
        try:
            await self._websocket.send({"type": "websocket.send", UTF8_TEXT: text})
        except (WebSocketDisconnect, OSError):
            self._is_closing = True  # Others wait to say something: for them it is over, too.
            raise ClientGoneError from None
        except RuntimeError:
            if not self._is_closing:
                raise
            raise ClientGoneError from None  # It was closed while this waited for room.

    async def close(self, code: int, reason: str) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        with suppress(WebSocketDisconnect, OSError, RuntimeError):  # It may have closed first.
            await self._websocket.close(code, reason)


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def served(request: Request) -> Response:
        headers = {
            "Cache-Control": "no-cache",
            "Content-Security-Policy": PAGE_POLICY,
            "X-Content-Type-Options": "nosniff",
        }
        return Response(_content(name), headers=headers, media_type=kind)

    return served


@cache
def _content(name: str) -> bytes:
    return files("anabranch.gateway").joinpath("static", name).read_bytes()
