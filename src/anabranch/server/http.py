"""HttpServer: `/metrics` for Prometheus and `/healthz`, on a port of its own.

Speaks just enough HTTP/1.1 for that: one request per connection, GET only, bounded in size and time. The gateway
and the console will bring a real web server; until then this costs no dependency and no start-up time.
"""

import asyncio
import json
from typing import TYPE_CHECKING

from anabranch.config import host_and_port

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.server.listener import Listener

REQUEST_BYTES_MAX = 8 * 1024
REQUEST_SECONDS_MAX = 5.0
CONNECTIONS_MAX = 64
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class HttpServer:
    def __init__(self, broker: "Broker", listener: "Listener") -> None:
        self._broker = broker
        self._listener = listener
        self._server: asyncio.Server | None = None
        self._connections = 0
        self.address = ""

    async def open(self, address: str) -> None:
        host, port = host_and_port(address)
        self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)
        bound = self._server.sockets[0].getsockname()
        self.address = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._connections >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._connections += 1
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # Whoever it was did not finish an HTTP request, or takes no answer; there is nobody to tell.
        finally:
            self._connections -= 1
            writer.transport.abort()  # Closing would wait for a reader who takes nothing, without end.

    def _answer(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            return _response(400, "text/plain", b"This is an HTTP port.\n")
        method, target = words[0], words[1].split("?", 1)[0]
        if method not in ("GET", "HEAD"):
            return _response(405, "text/plain", b"Only GET is served here.\n")
        status, kind, body = self._page(target)
        return _response(status, kind, b"" if method == "HEAD" else body)

    def _page(self, target: str) -> tuple[int, str, bytes]:
        match target:
            case "/metrics":
                from anabranch.server.metrics import render

                return 200, "text/plain; version=0.0.4; charset=utf-8", render(self._broker, self._listener)
            case "/healthz":
                return self._health()
            case _:
                return 404, "text/plain", b"There are /metrics and /healthz here.\n"

    def _health(self) -> tuple[int, str, bytes]:
        """Healthy: every partition takes writes, the log of topics and configs too, and groups are served."""
        fenced = [str(each.id) for each in self._broker.partitions() if each.log.fenced]
        groups = "failed" if self._broker.groups_failed else "ok"
        is_well = not fenced and not self._broker.groups_failed
        health = {"status": "ok" if is_well else "degraded", "fenced_partitions": fenced, "groups": groups}
        return (200 if is_well else 503), "application/json", json.dumps(health).encode() + b"\n"


def _response(status: int, kind: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
