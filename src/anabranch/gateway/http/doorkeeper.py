"""Doorkeeper: stands before every route. Lets in whom `access.py` lets in, answers browsers who ask first what they may
do, turns our errors into answers, answers in time whatever the brokers do, and gives up on whoever takes no answer."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect
from uvicorn.protocols.utils import ClientDisconnected

from anabranch.errors import AnabranchError, GatewayError
from anabranch.gateway.gateway import CLIENT_ENDED
from anabranch.gateway.http.access import Access
from anabranch.gateway.http.deadline import Deadline, set_deadline
from anabranch.gateway.http.errors import DEFECT_CODE, code_word, error_json, headers_of, status_of
from anabranch.gateway.http.protocol import SAFE_METHODS, Link

SEND_SECONDS_MAX = 30.0
"""How long a client may leave an answer untaken."""
CROWDED_SECONDS = 2.0
"""The same while others wait for the memory that it takes."""
PREFLIGHT_AGE_SECONDS = 600
NO_GUESSING = (b"x-content-type-options", b"nosniff")
"""What a record holds is never taken for a page, whatever it looks like."""

logger = logging.getLogger(__name__)


class UntakenError(Exception):
    """The client does not take its answer: the connection is closed."""


class Doorkeeper:
    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        is_crowded: Callable[[], bool],
        timeout_ms: int,
        refusals: Counter[str],
    ) -> None:
        """`is_crowded`: whether requests wait for memory that answers hold. `timeout_ms`: until when a request is
        answered. `refusals`: by their codes."""
        self._timeout_ms = timeout_ms
        self._app = app
        self._access = access
        self._is_crowded = is_crowded
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._let_in(scope, receive, self._in_time(scope, send))
        except UntakenError:
            logger.info("a client of the gateway takes no answer: its connection is closed")
            self._refusals["ANSWER_NOT_TAKEN"] += 1
            scope["anabranch.link"].abort()
        except (ClientDisconnect, WebSocketDisconnect, ClientDisconnected) as error:
            logger.debug(
                "a client of the gateway is gone in the middle of something: %s", type(error).__name__
            )
        except (
            Exception
        ):  # Only this connection is affected. Its client was told, unless its answer had begun.
            logger.exception("a request to the gateway failed: this is a defect")
            self._refusals[DEFECT_CODE] += 1

    def _in_time(self, scope: Scope, send: Send) -> Send:
        """Every answer goes this way, refusals included: nobody holds a connection by not reading. Raises
        UntakenError, ClientDisconnect. A WebSocket has its own protocol, which sees to that."""
        if scope["type"] == "websocket":
            return send
        link: Link = scope["anabranch.link"]

        async def send_in_time(message: Message) -> None:
            if link.is_closing():
                raise ClientDisconnect  # asyncio would warn of every piece that is written to it.
            if link.flow.write_paused:
                await self._send_slowly(send, message)
            else:
                await send(message)

        return send_in_time

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] in ("http", "websocket"), "there is no lifespan here"
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        is_socket = scope["type"] == "websocket"
        try:
            if not is_socket and scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                self._access.check_preflight(headers)
                await _preflight(self._access.shares_with(headers), send)
                return
            self._access.check(scope["path"], headers, scope["query_string"], is_socket=is_socket)
        except GatewayError as error:
            await self._refuse(scope, send, error, {})
            return
        if is_socket:
            await self._app(scope, receive, send)
            return
        await self._serve(scope, receive, send, self._access.shares_with(headers))

    async def _serve(self, scope: Scope, receive: Receive, send: Send, more: dict[str, str]) -> None:
        has_begun = False
        link: Link = scope["anabranch.link"]
        CLIENT_ENDED.set(link.ended)
        deadline = Deadline(self._timeout_ms, is_safe=scope["method"] in SAFE_METHODS)
        set_deadline(deadline)
        shared = [NO_GUESSING, *((name.encode(), value.encode("latin-1")) for name, value in more.items())]

        async def send_answer(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                deadline.lift()
                message["headers"] = [*message.get("headers", ()), *shared]
            await send(message)

        try:
            async with deadline:
                await self._app(scope, receive, send_answer)
        except TimeoutError:
            if not deadline.has_passed:
                raise
            await self._refuse(scope, send, deadline.error(), more)
        except AnabranchError as error:
            if has_begun:
                self._refusals[code_word(error)] += 1
                link.abort()
            else:
                await self._refuse(scope, send, error, more)

    async def _refuse(self, scope: Scope, send: Send, error: AnabranchError, more: dict[str, str]) -> None:
        self._refusals[code_word(error)] += 1
        headers = {"content-type": "application/json", **headers_of(error), **more}
        kind = "http" if scope["type"] == "http" else "websocket.http"
        await _send(send, status_of(error), headers, error_json(error), kind)

    async def _send_slowly(self, send: Send, message: Message) -> None:
        """To a client that does not keep up. It is given up sooner while others wait for the memory it holds."""
        sending = asyncio.ensure_future(send(message))
        waited_seconds = 0.0
        try:
            while not sending.done():
                await asyncio.wait({sending}, timeout=CROWDED_SECONDS)
                waited_seconds += CROWDED_SECONDS
                if not sending.done() and (waited_seconds >= SEND_SECONDS_MAX or self._is_crowded()):
                    raise UntakenError
            sending.result()
        finally:
            sending.cancel()


async def _preflight(shared: dict[str, str], send: Send) -> None:
    headers = {
        **shared,
        "access-control-allow-methods": "GET, HEAD, POST, DELETE, OPTIONS",
        "access-control-allow-headers": "*, authorization",
        "access-control-max-age": str(PREFLIGHT_AGE_SECONDS),
        "vary": "Origin",
    }
    await _send(send, 204, headers, b"", "http")


async def _send(send: Send, status: int, headers: dict[str, str], body: bytes, kind: str) -> None:
    pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    if status != 204:
        pairs.append((b"content-length", str(len(body)).encode()))
    await send({"type": f"{kind}.response.start", "status": status, "headers": pairs})
    await send({"type": f"{kind}.response.body", "body": body})
