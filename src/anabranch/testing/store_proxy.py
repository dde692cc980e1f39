"""StoreProxy: an HTTP proxy in front of an S3-speaking server, that does to requests what networks and stores do.

    with StoreProxy("http://127.0.0.1:5000") as proxy:
        url = f"s3://bucket?endpoint={proxy.endpoint}"
        proxy.delay("PUT", 50)                                  # every PUT takes 50 ms more
        proxy.fail(Trouble.ERROR, kind="PUT", times=3)          # the next three are answered with 500
        proxy.fail(Trouble.DEAF, share=0.1)                     # one in ten requests of any kind, until `heal`
        proxy.refuse()                                          # nobody listens any more
        proxy.heal()                                            # all is well again, on the same port
        proxy.requests["PUT"], proxy.bytes["GET"]               # what there was

Kinds: PUT, GET, HEAD, LIST and DELETE (one or many). Each request is read whole, sent on over a connection of its own,
and its answer read whole, so a fault strikes where it says and nowhere else. Methods may be called from any thread.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from random import Random
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urlsplit

CALL_SECONDS_MAX = 10
HEAD_BYTES_MAX = 64 * 1024
SLOW_MS = 1500


class Trouble(Enum):
    ERROR = "500 Internal Server Error"
    """Answered so, and not done."""
    OVERLOAD = "503 Slow Down"
    TOO_MANY = "429 Too Many Requests"
    DENIED = "403 Forbidden"
    NOT_IMPLEMENTED = "501 Not Implemented"
    SLOW = "slow"
    """Done, `SLOW_MS` later than it would be."""
    CUT_REQUEST = "cut request"
    """The connection breaks in the middle of the request's body; it is not done."""
    CUT_ANSWER = "cut answer"
    """Done; the connection breaks in the middle of the answer."""
    DROPPED_ANSWER = "dropped answer"
    """Done; the connection breaks before the answer."""
    WITHHELD_ANSWER = "withheld answer"
    """Done; nothing is ever said of it, until the caller loses patience."""
    DEAF = "deaf"
    """Not done, and nothing is ever said."""


ANSWERED = frozenset(trouble for trouble in Trouble if trouble.value[0].isdigit())


class Request(NamedTuple):
    kind: str
    head: bytes
    body: bytes


@dataclass
class _Fault:
    trouble: Trouble
    kind: str | None
    times: int | None
    share: float
    path: bytes = b""

    def strikes(self, kind: str, head: bytes, rng: Random) -> bool:
        if self.times == 0 or self.kind not in (None, kind) or rng.random() >= self.share:
            return False
        if self.path not in head.partition(b"\r\n")[0]:
            return False
        if self.times is not None:
            self.times -= 1
        return True


class StoreProxy:
    def __init__(self, target: str, *, host: str = "127.0.0.1", seed: int = 0) -> None:
        parts = urlsplit(target)
        assert parts.scheme == "http", "it reads what it carries"
        assert parts.hostname is not None
        self._target = parts.hostname, parts.port or 80
        self._host = host
        self._port = 0
        self._rng = Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="store-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._faults: list[_Fault] = []
        self._delays_ms: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: Counter[str] = Counter()
        """Those that came, by kind, whatever became of them."""
        self.bytes: Counter[str] = Counter()
        """Of bodies: PUT those that came, GET those that were sent back."""
        self.struck: Counter[Trouble] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._call(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- for tests ---------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        return f"http://{self._host}:{self._port}"

    def delay(self, kind: str, milliseconds: int) -> None:
        """Each request of that kind takes so much longer."""
        self._do(lambda: self._delays_ms.__setitem__(kind, milliseconds))

    def fail(
        self,
        trouble: Trouble,
        *,
        kind: str | None = None,
        times: int | None = None,
        share: float = 1.0,
        path: str = "",
    ) -> None:
        """Let the next `times` requests of that kind fail (None: all until `heal`), or a share of them; with `path`
        only those of names that contain it."""
        self._do(lambda: self._faults.append(_Fault(trouble, kind, times, share, path.encode())))

    def refuse(self) -> None:
        """Nobody listens, and connections that are open break."""
        self._call(self._stop_listening)

    def heal(self) -> None:
        """End all faults. Delays stay, and so does silence towards those who already wait in vain."""

        async def heal() -> None:
            self._faults.clear()
            if self._server is None:
                await self._listen()

        self._call(heal)

    # --- in the thread of the loop -----------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _do(self, action: Callable[[], None]) -> None:
        async def run() -> None:
            action()

        self._call(run)

    def _call(self, action: Callable[[], Coroutine[object, object, None]]) -> None:
        asyncio.run_coroutine_threadsafe(action(), self._loop).result(CALL_SECONDS_MAX)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._host, self._port, backlog=512)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._close_connections()

    async def _close(self) -> None:
        await self._stop_listening()
        await asyncio.sleep(0)  # Aborted transports close their sockets in the loop's next turn.

    async def _close_connections(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- connections -------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # Only we cancel, to break connections; a stream's task that was cancelled makes asyncio complain.
            with suppress(OSError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
                while await self._serve_one(reader, writer):
                    await writer.drain()
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """False: this connection is over."""
        head = await reader.readuntil(b"\r\n\r\n")
        kind = kind_of(head)
        self.requests[kind] += 1
        trouble = self._strike(kind, head)
        length = length_of(head)
        if trouble is Trouble.CUT_REQUEST:
            await reader.readexactly(length // 2)
            return False
        request = Request(kind, head, await reader.readexactly(length))
        if kind == "PUT":
            self.bytes[kind] += length
        await asyncio.sleep(self._delay_s(kind, trouble))
        if trouble in ANSWERED:
            writer.write(_refusal(trouble))
            return True
        if trouble is Trouble.DEAF:
            await reader.read()
            return False
        return await self._pass_on(request, trouble, reader, writer)

    def _strike(self, kind: str, head: bytes) -> Trouble | None:
        for fault in self._faults:
            if fault.strikes(kind, head, self._rng):
                self.struck[fault.trouble] += 1
                return fault.trouble
        return None

    def _delay_s(self, kind: str, trouble: Trouble | None) -> float:
        slow_ms = SLOW_MS if trouble is Trouble.SLOW else 0
        return (self._delays_ms.get(kind, 0) + slow_ms) / 1000

    async def _pass_on(
        self,
        request: Request,
        trouble: Trouble | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        head, body = await self._ask_target(request)
        match trouble:
            case Trouble.DROPPED_ANSWER:
                return False
            case Trouble.WITHHELD_ANSWER:
                await reader.read()  # Until the caller hangs up.
                return False
            case Trouble.CUT_ANSWER:
                answer = head + body
                writer.write(answer[: len(head) + len(body) // 2 if body else len(head) // 2])
                await writer.drain()
                writer.close()  # Not aborted: the half should arrive.
                return False
        if request.kind == "GET":
            self.bytes["GET"] += len(body)
        writer.write(head)
        writer.write(body)
        return True

    async def _ask_target(self, request: Request) -> tuple[bytes, bytes]:
        """The answer's head and body, fit for a connection that goes on."""
        reader, writer = await asyncio.open_connection(*self._target, limit=HEAD_BYTES_MAX)
        try:
            writer.write(with_header(request.head, b"connection", b"close"))
            writer.write(request.body)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            body = await _body_of(request, head, reader)
        finally:
            writer.transport.abort()
        head = b"HTTP/1.1" + head[head.index(b" ") :]
        if b"\ncontent-length:" not in head.lower() and b"\ntransfer-encoding:" not in head.lower():
            head = with_header(head, b"content-length", str(len(body)).encode())
        return with_header(head, b"connection", b"keep-alive"), body


async def _body_of(request: Request, head: bytes, reader: asyncio.StreamReader) -> bytes:
    """As long as the head says; else until the server hangs up, which it was asked to do."""
    status = head.split(b" ", 2)[1][:3]
    if request.kind == "HEAD" or status in (b"204", b"304"):
        return b""
    length = header_of(head, b"content-length")
    return await reader.read() if length is None else await reader.readexactly(int(length))


def kind_of(head: bytes) -> str:
    method, target, _ = head.split(b" ", 2)
    query = urlsplit(target.decode("latin-1")).query
    if method == b"POST" and "delete" in query:
        return "DELETE"
    if method == b"GET" and "list-type=" in query:
        return "LIST"
    return method.decode("latin-1")


def length_of(head: bytes) -> int:
    return int(header_of(head, b"content-length") or 0)


def header_of(head: bytes, wanted: bytes) -> bytes | None:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == wanted:
            return value.strip()
    return None


def with_header(head: bytes, name: bytes, value: bytes) -> bytes:
    """The same head with one header set, whatever it was."""
    lines = [line for line in head.split(b"\r\n") if line and not line.lower().startswith(name + b":")]
    return b"\r\n".join([*lines, name + b": " + value, b"", b""])


def _refusal(trouble: Trouble) -> bytes:
    code = trouble.value[4:].replace(" ", "")
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code></Error>'.encode()
    head = f"HTTP/1.1 {trouble.value}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
