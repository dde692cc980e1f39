"""Bodies of requests, read within their bounds: of one request in bytes and time, of all together in bytes.

Memory is taken as a body arrives, so that many at once wait for each other instead of filling the memory, and a client
that announces much and sends next to nothing keeps nothing from others. It is taken in two steps: for the first
`FIRST_BYTES`, of which all bodies may hold a share, and then for all that may follow. Whoever has taken the second step
waits for nobody any more, and so makes room for the others. Whoever sends slowly is given up as soon as others wait for
its memory.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, Request

from anabranch.errors import GatewayError
from anabranch.gateway.http.deadline import lift_deadline, restart_deadline

if TYPE_CHECKING:
    from anabranch.gateway.gateway import Gateway

BODY_SECONDS_MAX = 60.0
"""For a whole body."""
CROWDED_SECONDS = 2.0
CROWDED_BYTES_PER_SECOND_MIN = 256 * 1024
"""While others wait for the memory that it holds, a body has these seconds, and more only as long as it comes at this
rate."""
PASS_OVER_SECONDS_MAX = 2.0
PASS_OVER_BYTES_MAX = 16 * 2**20
FREE_BYTES = 4 * 1024
"""What of each body may be held without asking, so that small requests always get through."""
FIRST_BYTES = 64 * 1024
"""Taken for a body that outgrows `FREE_BYTES`; for one that outgrows this, all that may follow."""
SILENT_SECONDS_MAX = 60.0
"""Between two lines of a stream without an end."""


def check_encoding(request: Request) -> None:
    """A packed body would be kept as it is, or unpack to more than anybody asked for: it is refused. Raises
    GatewayError."""
    headers = request.headers
    packed = headers.get("content-encoding", "identity").strip().lower()
    sent = headers.get("transfer-encoding", "chunked").strip().lower()
    if packed not in ("", "identity") or sent != "chunked":
        raise GatewayError(
            "Bodies are taken as they are: send it without Content-Encoding, and without a Transfer-Encoding other "
            "than chunked. What is stored is compressed by the node.",
            "UNSUPPORTED_MEDIA_TYPE",
            415,
        )


@contextlib.asynccontextmanager
async def body_of(gateway: "Gateway", request: Request) -> AsyncIterator[bytes]:
    """The whole body; what it costs is given back when the block ends."""
    check_encoding(request)
    limit = gateway.request_bytes_max
    declared = declared_bytes(request)
    if declared is not None and declared > limit:
        if request.headers.get("expect", "").lower() != "100-continue":  # Else it waits to be told.
            await _pass_over(request)
        raise too_large(limit)
    memory = BodyMemory(gateway, limit if declared is None else declared)
    try:
        lift_deadline()
        body = await _read(gateway, request, limit, memory)
        restart_deadline()
        yield body
    finally:
        memory.give_back()


class BodyMemory:
    """Share of one body in the memory for all bodies."""

    def __init__(self, gateway: "Gateway", bytes_max: int) -> None:
        self._gateway = gateway
        self._bytes_max = bytes_max
        self._first_held = 0
        self._rest_held = 0

    async def grow(self, count: int) -> None:
        """Take what `count` bytes need. Raises GatewayError if there is not enough for long."""
        if count > FREE_BYTES and not self._first_held:
            first = min(self._bytes_max, FIRST_BYTES) - FREE_BYTES
            await self._gateway.hold_first(first)
            self._first_held = first
        if count > FIRST_BYTES and not self._rest_held:
            # More than half of all memory is never asked for: two such bodies would wait for each other.
            rest = min(self._bytes_max - FIRST_BYTES, self._gateway.bodies.bytes_max // 2)
            await self._gateway.hold(rest)
            self._rest_held = rest

    @property
    def is_holding(self) -> bool:
        return self._first_held > 0

    def give_back(self) -> None:
        self._gateway.give_first(self._first_held)
        self._gateway.bodies.give(self._rest_held)
        self._first_held = self._rest_held = 0


async def _read(gateway: "Gateway", request: Request, limit: int, memory: BodyMemory) -> bytes:
    found = bytearray()
    is_more = True
    deadline = BodyDeadline(gateway, memory)
    while is_more:
        piece, is_more = await deadline.next_piece(request, len(found))
        if len(found) + len(piece) > limit:
            found.clear()
            if is_more:
                await _pass_over(request)
            raise too_large(limit)
        await memory.grow(len(found) + len(piece))
        found += piece
    return bytes(found)


class BodyDeadline:
    """Limit on the time that a body, or a line of a stream, takes to arrive. The time that it waits for memory does not
    count."""

    def __init__(self, gateway: "Gateway", memory: BodyMemory) -> None:
        self._gateway = gateway
        self._memory = memory
        self._waited_seconds = 0.0

    async def next_piece(self, request: Request, bytes_read: int) -> tuple[bytes, bool]:
        """And whether more follows. A client is given up sooner if others wait for the memory that its body holds."""
        loop = asyncio.get_running_loop()
        begun = loop.time() - self._waited_seconds
        end = begun + BODY_SECONDS_MAX
        crowded_end = begun + CROWDED_SECONDS + bytes_read / CROWDED_BYTES_PER_SECOND_MIN
        while True:
            now = loop.time()
            if now >= end or (now >= crowded_end and self._keeps_others_waiting):
                raise _late()
            try:
                async with asyncio.timeout(min(CROWDED_SECONDS, end - now)):
                    piece = await _next_piece(request)
            except TimeoutError:
                continue
            self._waited_seconds = loop.time() - begun
            return piece

    @property
    def _keeps_others_waiting(self) -> bool:
        return self._memory.is_holding and self._gateway.is_crowded


async def _next_piece(request: Request) -> tuple[bytes, bool]:
    """And whether more follows."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


async def _pass_over(request: Request) -> None:
    """Take a little more of a body that is refused: many clients look at the answer only when all is sent."""
    passed, is_more = 0, True
    try:
        async with asyncio.timeout(PASS_OVER_SECONDS_MAX):
            while is_more and passed < PASS_OVER_BYTES_MAX:
                piece, is_more = await _next_piece(request)
                passed += len(piece)
    except TimeoutError:
        return  # The connection is closed with the answer.


def declared_bytes(request: Request) -> int | None:
    """What Content-Length says; None: nothing."""
    given = request.headers.get("content-length")
    return int(given) if given is not None and given.isdigit() else None


async def lines_of(gateway: "Gateway", request: Request) -> AsyncGenerator[bytes, None]:
    """The lines of a body of any length, without their ends; empty ones are left out. Each has the time and the memory
    of a body of its own. Close it: it holds memory."""
    limit = gateway.request_bytes_max
    memory = BodyMemory(gateway, limit)
    rest = bytearray()
    deadline = BodyDeadline(gateway, memory)
    is_more = True
    try:
        while is_more:
            if rest:
                piece, is_more = await deadline.next_piece(request, len(rest))
            else:
                piece, is_more = await _first_piece(request)
            rest += piece
            await asyncio.sleep(0)  # A body of empty lines would leave nobody else a turn.
            if b"\n" in piece:  # Else a long line that comes byte by byte would be copied for each of them.
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    if line.strip():
                        yield _checked(bytes(line), limit)
                lines.clear()
                memory.give_back()
                deadline = BodyDeadline(gateway, memory)
            if len(rest) > limit:
                raise too_large(limit)
            await memory.grow(len(rest))
        if rest.strip():
            yield bytes(rest)
    finally:
        memory.give_back()


async def _first_piece(request: Request) -> tuple[bytes, bool]:
    """Of a line. Nothing is held for a stream that is silent between two lines."""
    try:
        async with asyncio.timeout(SILENT_SECONDS_MAX):
            return await _next_piece(request)
    except TimeoutError:
        raise _late() from None


def _checked(line: bytes, limit: int) -> bytes:
    if len(line) > limit:
        raise too_large(limit)
    return line


def too_large(limit: int) -> GatewayError:
    return GatewayError(
        f"At most {limit} bytes are taken at once (gateway.request.bytes.max): send less in one request, or lines of "
        "application/x-ndjson.",
        "REQUEST_TOO_LARGE",
        413,
    )


def _late() -> GatewayError:
    return GatewayError("The body did not come in time: send it faster.", "REQUEST_TIMEOUT", 408)
