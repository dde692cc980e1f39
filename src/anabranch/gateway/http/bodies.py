"""Bodies of requests, read within their bounds: of one request in bytes and time, of all together in bytes.

Memory is taken as a body arrives, never on the word of its announced length, so that many at once wait for each other
instead of filling the memory, and a client that announces much and sends little keeps nothing from others. Whoever
sends slowly is given up as soon as others wait for its memory.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
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
GROWTH = 4
"""How many times what has arrived may be taken for a body."""
SILENT_SECONDS_MAX = 60.0
"""Between two pieces of a stream without an end."""


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
        await _pass_over(request)
        raise too_large(limit)
    room = Room(gateway, limit if declared is None else declared)
    try:
        lift_deadline()
        body = await _read(gateway, request, limit, room)
        restart_deadline()
        yield body
    finally:
        room.give_back()


class Room:
    """Memory for one body, taken from that for all bodies."""

    def __init__(self, gateway: "Gateway", bytes_max: int) -> None:
        self._gateway = gateway
        self._bytes_max = bytes_max
        self._bytes_held = FREE_BYTES

    async def grow(self, count: int) -> None:
        """Have room for `count` bytes that have arrived. Raises GatewayError if none comes for long."""
        if count <= self._bytes_held:
            return
        wanted = max(count, min(GROWTH * count, self._bytes_max))
        await self._gateway.hold(wanted - self._bytes_held)
        self._bytes_held = wanted

    def give_back(self) -> None:
        self._gateway.bodies.give(self._bytes_held - FREE_BYTES)
        self._bytes_held = FREE_BYTES


async def _read(gateway: "Gateway", request: Request, limit: int, room: Room) -> bytes:
    found = bytearray()
    is_more = True
    begun = asyncio.get_running_loop().time()
    while is_more:
        piece, is_more = await _next_in_time(gateway, request, begun, len(found))
        if len(found) + len(piece) > limit:
            found.clear()
            if is_more:
                await _pass_over(request)
            raise too_large(limit)
        await room.grow(len(found) + len(piece))
        found += piece
    return bytes(found)


async def _next_in_time(
    gateway: "Gateway", request: Request, begun: float, bytes_read: int
) -> tuple[bytes, bool]:
    """The next piece. A client that keeps others waiting for memory is given up sooner."""
    loop = asyncio.get_running_loop()
    end = begun + BODY_SECONDS_MAX
    crowded_end = begun + CROWDED_SECONDS + bytes_read / CROWDED_BYTES_PER_SECOND_MIN
    while True:
        now = loop.time()
        if now >= end or (gateway.bodies.waiting_count and now >= crowded_end):
            raise _late()
        try:
            async with asyncio.timeout(min(CROWDED_SECONDS, end - now)):
                return await _next_piece(request)
        except TimeoutError:
            continue


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


async def lines_of(request: Request, limit: int) -> AsyncIterator[bytes]:
    """The lines of a body of any length, without their ends; empty ones are left out."""
    rest = bytearray()
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(SILENT_SECONDS_MAX):
                piece = await anext(stream, None)
        except TimeoutError:
            raise _late() from None
        if piece is None:
            break
        rest += piece
        await asyncio.sleep(0)  # A body of empty lines would leave nobody else a turn.
        if b"\n" not in piece:  # Else a long line that comes byte by byte would be copied for each of them.
            rest = _checked_rest(rest, limit)
            continue
        *lines, last = rest.split(b"\n")
        for line in lines:
            if line.strip():
                yield _checked(bytes(line), limit)
        rest = _checked_rest(last, limit)
    if rest.strip():
        yield _checked(bytes(rest), limit)


def _checked(line: bytes, limit: int) -> bytes:
    if len(line) > limit:
        raise too_large(limit)
    return line


def _checked_rest(rest: bytearray, limit: int) -> bytearray:
    if len(rest) > limit:
        raise too_large(limit)
    return rest


def too_large(limit: int) -> GatewayError:
    return GatewayError(
        f"At most {limit} bytes are taken at once (gateway.request.bytes.max): send less in one request, or lines of "
        "application/x-ndjson.",
        "REQUEST_TOO_LARGE",
        413,
    )


def _late() -> GatewayError:
    return GatewayError("The body did not come in time: send it faster.", "REQUEST_TIMEOUT", 408)
