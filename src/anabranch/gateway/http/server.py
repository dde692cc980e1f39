"""HttpServer: the node's HTTP port. It is bound when the node starts; the web server is loaded, in a worker, when the
first connection knocks, so that a node whose HTTP port nobody uses neither starts later nor holds more memory.

`close` lets answers under way end for a moment: whoever waits for records is answered at once.
"""

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING

from anabranch.broker.workers import in_heavy_worker
from anabranch.config import http_host_and_port
from anabranch.gateway.http.access import Access
from anabranch.server.accepting import BACKLOG

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.gateway.http.web import Web
    from anabranch.server.listener import Listener

CLOSE_SECONDS_MAX = 2.0

logger = logging.getLogger(__name__)


class HttpServer:
    def __init__(self, broker: "Broker", listener: "Listener") -> None:
        """Raises InvalidConfigError if the token cannot be read."""
        self._broker = broker
        self._listener = listener
        self._access = Access(broker.settings)
        self._socket: socket.socket | None = None
        self._loading: asyncio.Task[None] | None = None
        self._web: Web | None = None
        self.address = ""

    async def open(self, address: str) -> None:
        """Bind it. Raises OSError."""
        host, port = http_host_and_port(address)
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = found[0]
        self._socket = bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setblocking(False)
            bound.bind(place)
            bound.listen(BACKLOG)
        except OSError:
            bound.close()
            self._socket = None
            raise
        name = bound.getsockname()
        self.address = f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
        if not self._access.is_local and not self._access.needs_token:
            logger.warning(
                "anybody who reaches http %s may read and write every topic: set gateway.token.file, or bind 127.0.0.1",
                self.address,
            )
        loop.add_reader(bound.fileno(), self._first_knock)

    def _first_knock(self) -> None:
        """Whoever knocks waits in the system's queue until the web server takes it from there."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        self._loading = loop.create_task(self._load(self._socket))

    async def _load(self, bound: socket.socket) -> None:
        try:
            await in_heavy_worker(self._broker.workers, _import_web)
            from anabranch.gateway.http.web import Web

            web = Web(self._broker, self._listener, self._access)
            await web.start(bound)
            self._web = web
        except Exception:
            logger.exception("the HTTP port cannot be served: this is a defect")
            bound.close()

    async def close(self) -> None:
        """Accept nothing more, answer what was accepted."""
        bound, self._socket = self._socket, None
        if bound is None:
            return
        if self._loading is None:
            asyncio.get_running_loop().remove_reader(bound.fileno())
        else:
            await self._loading
        if self._web is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS_MAX):
                    await self._web.stop()
            self._web.abort()
        bound.close()


def _import_web() -> None:
    """A tenth of a second of reading files, off the loop."""
    import anabranch.gateway.http.web  # noqa: F401
