"""Web: uvicorn on a socket that is bound already, in the node's own loop, with the gateway behind it."""

import asyncio
import logging
import resource
import socket
from email.utils import formatdate
from typing import TYPE_CHECKING

from uvicorn.config import Config
from uvicorn.server import ServerState

from anabranch.broker.requests.turns import Turns
from anabranch.gateway.api.routes import make_app
from anabranch.gateway.gateway import Gateway
from anabranch.gateway.http.access import Access
from anabranch.gateway.http.addresses import Addresses
from anabranch.gateway.http.protocol import BoundedProtocol, ReadAhead
from anabranch.gateway.websocket.protocol import Incoming, SocketProtocol
from anabranch.server.accepting import Acceptor

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.server.listener import Listener

ACCEPTED_AT_ONCE = 16
"""Connections that begin in one turn of the loop: a thousand would hold up everybody who is connected already."""
KEEP_ALIVE_SECONDS = 75
"""How long a connection may stay without a request: longer than proxies keep theirs (nginx: 60 s), or they would send
requests into connections that are just being closed."""
PING_SECONDS = 20.0
"""A WebSocket that does not answer a ping within that time is gone."""
DATE_SECONDS = 1.0
CONNECTIONS_MIN = 16
LIMITLESS = 2**31
CLOSE_LOOK_SECONDS = 0.02

logger = logging.getLogger(__name__)


def _descriptors_left() -> int:
    """What the Kafka port and the segment files leave of those the system allows."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LIMITLESS if limit == resource.RLIM_INFINITY else max(CONNECTIONS_MIN, limit // 8)


def _connections_max(wanted: int) -> int:
    left = _descriptors_left()
    if left < wanted:
        logger.info(
            "the gateway takes %d connections and not the %d of gateway.connections.max, an eighth of the files this "
            "process may open: raise that limit (ulimit -n), or lower the setting",
            left,
            wanted,
        )
    return min(wanted, left)


class Web:
    def __init__(self, broker: "Broker", listener: "Listener", access: Access) -> None:
        for name in ("uvicorn.error", "uvicorn.access"):
            # What clients do wrong they are told themselves, and our own defects the doorkeeper writes down.
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self.gateway = Gateway(broker, listener)
        settings = broker.settings
        most = _connections_max(settings.gateway_connections_max)
        counted = self.gateway.refusals
        parsing = Turns()
        by_address = Addresses(settings.connections_per_ip_limit(most))

        class Protocol(BoundedProtocol):
            connections_max = most
            addresses = by_address
            refusals = counted
            read_ahead = ReadAhead()
            parsing_turns = parsing
            turns, health_turns, pipelined_turns = Turns(), Turns(), Turns()

        class Socket(SocketProtocol):
            addresses = by_address
            refusals = counted
            unsent_bytes_max = settings.gateway_subscriber_bytes_max
            incoming = Incoming()
            parsing_turns = parsing

        self._config = Config(
            make_app(self.gateway, access),
            http=Protocol,
            ws=Socket,
            ws_per_message_deflate=False,  # It would compress the same bytes for every subscriber anew.
            ws_max_size=settings.gateway_request_bytes_max,
            ws_ping_interval=PING_SECONDS,
            ws_ping_timeout=PING_SECONDS,
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        self._config.load()
        self._protocol = Protocol
        self._state = ServerState()
        self.gateway.connection_count = lambda: len(self._state.connections)
        self.gateway.arrived_bytes = lambda: Protocol.read_ahead.bytes_held
        self.gateway.incoming_bytes = lambda: Socket.incoming.bytes_held
        self._acceptor: Acceptor | None = None
        self._connecting: set[asyncio.Task[None]] = set()
        self._dates: asyncio.TimerHandle | None = None

    async def start(self, bound: socket.socket) -> None:
        self._note_date()
        self._acceptor = Acceptor(bound, self._welcome, ACCEPTED_AT_ONCE)
        self._acceptor.start()

    def _welcome(self, sock: socket.socket, host: str) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(sock))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, sock: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._connection, sock)
        except OSError as error:  # Gone before it was welcomed.
            logger.debug("a client of the HTTP port did not stay: %s", error)
            sock.close()

    def _connection(self) -> BoundedProtocol:
        return self._protocol(config=self._config, server_state=self._state, app_state={})

    def _note_date(self) -> None:
        """Every answer says when it was given."""
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        self._dates = asyncio.get_running_loop().call_later(DATE_SECONDS, self._note_date)

    async def stop(self) -> None:
        """Accept nothing more; let what is under way end."""
        if self._acceptor is not None:
            self._acceptor.stop()
        await self.gateway.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        while self._state.connections or self._state.tasks:  # noqa: ASYNC110 - uvicorn tells nobody when they end.
            await asyncio.sleep(CLOSE_LOOK_SECONDS)

    def abort(self) -> None:
        """Who has not ended by now is cut off."""
        if self._dates is not None:
            self._dates.cancel()
        self.gateway.abort()
        for task in list(self._state.tasks):
            task.cancel()
        for connection in list(self._state.connections):
            connection.transport.abort()
