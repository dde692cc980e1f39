"""Listener: the Kafka port. Accepts connections, bounds their number, and sweeps those that hold things up.

The sweep runs every second: it closes connections that have been idle too long, frames that stopped arriving or
trickle in, and readers that take nothing of their answers; and takes large buffers back from connections that do
not use them. Whom it closes when memory for requests is short is `eviction.py`.
"""

import asyncio
import logging
import socket
from collections import Counter, deque
from collections.abc import Callable

from anabranch.broker.broker import Broker
from anabranch.broker.handlers import dispatch
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.network import network_of
from anabranch.clock import Clock
from anabranch.config import host_and_port
from anabranch.record.backend import COMPILED
from anabranch.server.accepting import BACKLOG, Acceptor
from anabranch.server.bound_socket import address_of, bind
from anabranch.server.connection import FREE_BYTES, Connection
from anabranch.server.eviction import Eviction
from anabranch.server.poller import Poller

logger = logging.getLogger(__name__)

ACCEPTS_PER_TURN_MAX = 64
SWEEP_SECONDS = 1.0
SWEEP_SECONDS_WHEN_SHORT = 0.25
FRAME_MS_MAX = 30_000
FRAME_MS_MAX_WHEN_SHORT = 3_000
ANSWER_MS_MAX_WHEN_SHORT = 10_000
"""How long nobody may take an answer when such answers hold all the memory there is for them, or all of that for
reading from the object store."""
BUFFER_IDLE_MS_MAX = 10_000

PlainTake = Callable[[Connection, memoryview, int, int, deque[Call], int], int]


class Listener:
    def __init__(self, broker: Broker, clock: Clock, connections_max: int, per_host_max: int) -> None:
        settings = broker.settings
        self.broker = broker
        self.dispatch: Callable[[Broker, Call], None] = dispatch
        """Takes each request to its handler."""
        self.take_plain: PlainTake | None = None
        """Tries the shortest way first."""
        self.clock = clock
        self.poller = Poller(broker.core, clock)
        self.memory = broker.request_memory
        self.frame_bytes_max = settings.socket_request_max_bytes
        self.control_bytes_max = settings.request_control_bytes_max
        self.requests_max = settings.connection_requests_max
        self.response_bytes_max = settings.connection_response_bytes_max
        self.connections: set[Connection] = set()
        self.eviction = Eviction(self.connections, self.memory)
        self.requests_total = 0
        self.connections_total = 0
        self.connections_refused_total = 0
        self._connections_max = connections_max
        self._per_host_max = per_host_max
        self._per_network: Counter[str] = Counter()
        self._send_buffer_bytes = settings.socket_send_buffer_bytes
        self._idle_ms_max = settings.connections_max_idle_ms
        self._sock: socket.socket | None = None
        self._acceptor: Acceptor | None = None
        self._loop = asyncio.get_running_loop()
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_drained: asyncio.Event | None = None
        self.flush_due: list[Connection] = []
        """Who has answers that leave at the end of this turn."""
        broker.core.send_answers = self._flush_all

    def serve_through(self, dispatch: Callable[[Broker, Call], None]) -> None:
        """Have all requests taken to their handlers by somebody else: tests that want late or lost answers."""
        self.dispatch = dispatch
        self.take_plain = None

    # --- answers ---------------------------------------------------------------------------------------------

    def _flush_all(self) -> None:
        """Let the answers of this turn leave. Who was held up by them and has sent more is answered in the next."""
        due, self.flush_due = self.flush_due, []
        if not due and not self.poller.is_behind:
            return
        self.poller.turn_ms = self.clock.monotonic_ms()  # The turn may be one that no socket began.
        for connection in due:
            try:
                connection.flush()
            except Exception as error:  # A defect of ours costs this connection, and nobody else anything.
                logger.exception("answers could not be sent: this is a defect")
                connection.close(f"{type(error).__name__}: {error}")
        self.poller.go_on()
        if self.flush_due or self.poller.is_behind:
            self.broker.core.another_turn()

    # --- opening ---------------------------------------------------------------------------------------------

    def open(self, address: str) -> tuple[str, int]:
        """Bind; the address actually bound. Who connects before `listen` is refused. Raises OSError."""
        self._sock = bind(*host_and_port(address))
        return address_of(self._sock)

    def listen(self) -> None:
        """Who connects from now on waits for `start`. Raises OSError if another process was quicker."""
        assert self._sock is not None
        self._sock.listen(BACKLOG)

    def start(self) -> None:
        """Answer those who connect, after `listen`."""
        assert self._sock is not None
        self._acceptor = Acceptor(self._sock, self._welcome, ACCEPTS_PER_TURN_MAX)
        self._acceptor.start()
        self.poller.start()
        self.take_plain = _plain_lane(self.broker)
        self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _welcome(self, sock: socket.socket, host: str) -> None:
        refusal = None
        if len(self.connections) >= self._connections_max:
            refusal = f"{len(self.connections)} are open (max.connections)"
        elif (there := self._per_network[network_of(host)]) >= self._per_host_max:
            refusal = f"{there} are open from there (max.connections.per.ip)"
        if refusal is not None:
            self.connections_refused_total += 1
            sock.close()
            if self.connections_refused_total % 100 == 1:
                logger.warning("refused a connection from %s: %s", host, refusal)
            return
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._send_buffer_bytes > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_bytes)
            connection = Connection(self, sock, host)
        except OSError as error:  # Gone before it was welcomed.
            logger.debug("%s did not stay: %s", host, error)
            sock.close()
            return
        self.remember(connection)

    def remember(self, connection: Connection) -> None:
        self.connections_total += 1
        self.connections.add(connection)
        self._per_network[connection.network] += 1

    # --- the sweep ---------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        seconds = SWEEP_SECONDS_WHEN_SHORT if self.memory.is_short else SWEEP_SECONDS
        self._sweeper = self._loop.call_later(seconds, self._sweep)
        now_ms = self.clock.monotonic_ms()
        is_short = self.memory.is_short
        frame_ms_max = FRAME_MS_MAX_WHEN_SHORT if is_short else FRAME_MS_MAX
        answer_ms_max = ANSWER_MS_MAX_WHEN_SHORT if self._is_short_for_answers else None
        is_crowded = self.eviction.is_crowded
        for connection in list(self.connections):
            try:
                reason = connection.overdue(now_ms, frame_ms_max, self._idle_ms_max, answer_ms_max)
                if reason is not None:
                    connection.close(reason)
                elif is_short or is_crowded or now_ms - connection.last_read_ms > BUFFER_IDLE_MS_MAX:
                    connection.shrink()
            except Exception as error:  # A defect of ours costs this connection, and nobody else anything.
                logger.exception("a connection could not be looked after: this is a defect")
                connection.close(f"{type(error).__name__}: {error}")
        self.eviction.sweep(now_ms)

    @property
    def _is_short_for_answers(self) -> bool:
        broker = self.broker
        return broker.are_answers_too_many or (broker.objects is not None and broker.objects.cache.is_short)

    def forget(self, connection: Connection, reason: str) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
            self._per_network[connection.network] -= 1
            if not self._per_network[connection.network]:
                del self._per_network[connection.network]
        self.broker.fetch_sessions.client_left(connection)
        logger.debug("closed %s: %s", connection.host, reason)
        if self._is_drained is not None and not self.connections:
            self._is_drained.set()

    # --- closing ---------------------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        if self._acceptor is not None:
            self._acceptor.stop()
        elif self._sock is not None:
            self._sock.close()

    async def close(self, seconds_max: float) -> None:
        """Answer what was accepted, for at most `seconds_max`, then close whatever is left."""
        self.stop_accepting()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._is_drained = asyncio.Event()
        for connection in list(self.connections):
            connection.finish()
        if self.connections:
            try:
                async with asyncio.timeout(seconds_max):
                    await self._is_drained.wait()
            except TimeoutError:
                logger.warning("%d connections did not take their answers in time", len(self.connections))
        for connection in list(self.connections):
            connection.close("the node stops")
        self.poller.close()


def _plain_lane(broker: Broker) -> PlainTake | None:
    """The shortest way for plain produce requests, where the compiled module is there."""
    if not COMPILED or broker.settings.socket_request_max_bytes < FREE_BYTES:
        return None  # A frame that is too large may lie in the buffer already, and the lane would not notice.
    from anabranch.broker.write.plain_lane import PlainLane

    return PlainLane(broker).take
