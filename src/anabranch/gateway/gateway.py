"""Gateway: what the routes share: the way to the brokers, the gathered writes, limits and figures.

Every file of routes has a function `routes(gateway)`, which `api/routes.py` lists; what it keeps running it ends in a
coroutine added to `on_close`, called before the last answers leave.
"""

import asyncio
from asyncio import FIRST_COMPLETED
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from anabranch.broker.requests.turns import ROWS_PER_TURN, Turns
from anabranch.errors import GatewayError
from anabranch.gateway.calls import Calls
from anabranch.gateway.http.budget import Budget
from anabranch.gateway.produce.produce_batcher import Gatherer

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.gateway.websocket.sockets import Sockets
    from anabranch.server.listener import Listener

BODY_BYTES_MAX = 128 * 2**20
"""Of request bodies and of answers being made, over all connections."""


CLIENT_ENDED: ContextVar[asyncio.Event | None] = ContextVar("CLIENT_ENDED", default=None)
"""Of the request that is being served: set when its client has closed its side of the connection, or is gone."""
HOLD_SECONDS_MAX = 5.0
WOKEN_AT_ONCE = 16
"""Requests that go on in one round of the loop after they have waited for records."""

Found = TypeVar("Found")


class Gateway:
    def __init__(self, broker: "Broker", listener: "Listener") -> None:
        self.broker = broker
        self.listener = listener
        self.settings = broker.settings
        self.clock = broker.clock
        self.calls = Calls(broker)
        self.gather = Gatherer(self.calls, broker.settings, broker.clock)
        self.refusals: Counter[str] = Counter()
        """Counts what was refused or given up, by the code that the client was told. The codes are a fixed set of a few
        dozen: no client can add one."""
        self.bodies = Budget(BODY_BYTES_MAX)
        self._first_parts = Budget(BODY_BYTES_MAX // 4)
        """Of request bodies, each its first part: a share of `bodies`, so that bodies which wait for room for the rest
        never hold all of it."""
        self.request_bytes_max = broker.settings.gateway_request_bytes_max
        self.poll_ms_max = broker.settings.gateway_poll_ms_max
        self.subscriber_bytes_max = broker.settings.gateway_subscriber_bytes_max
        self.sockets: Sockets | None = None
        self.on_close: list[Callable[[], Awaitable[None]]] = []
        self.connection_count: Callable[[], int] = lambda: 0
        self.arrived_bytes: Callable[[], int] = lambda: 0
        self.incoming_bytes: Callable[[], int] = lambda: 0
        self.is_closing = False
        self._turns = Turns()
        self._polls: set[asyncio.Task[Any]] = set()

    @property
    def polls_count(self) -> int:
        """Requests that wait for records."""
        return len(self._polls)

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody should wait any longer for the request that is served: the node stops, or the client has
        closed its side of the connection, which is all that is seen of one that is gone."""
        ended = CLIENT_ENDED.get()
        return self.is_closing or (ended is not None and ended.is_set())

    @property
    def is_crowded(self) -> bool:
        """Whether requests wait for memory that bodies hold."""
        return self.bodies.waiting_count > 0 or self._first_parts.waiting_count > 0

    async def hold(self, count: int) -> None:
        """Wait for room for so many bytes; give them back to `bodies`. Raises GatewayError if none comes for long."""
        await _take(self.bodies, count)

    async def hold_first(self, count: int) -> None:
        """The same for the first part of a request's body; give it back by `give_first`."""
        await _take(self._first_parts, count)
        try:
            await _take(self.bodies, count)
        except BaseException:
            self._first_parts.give(count)
            raise

    def give_first(self, count: int) -> None:
        self.bodies.give(count)
        self._first_parts.give(count)

    async def poll(self, waiting: Coroutine[Any, Any, Found]) -> Found | None:
        """What comes of waiting for records; None: the request is abandoned, so whoever polls in a loop ends it."""
        task = asyncio.ensure_future(waiting)
        ended = CLIENT_ENDED.get()
        gone = asyncio.ensure_future(ended.wait()) if ended is not None else None
        self._polls.add(task)
        try:
            if self.is_closing:
                task.cancel()
            await asyncio.wait({task} | ({gone} if gone is not None else set()), return_when=FIRST_COMPLETED)
            if not task.done():
                return None
            await self._turns.wait(
                ROWS_PER_TURN // WOKEN_AT_ONCE
            )  # One record may wake a thousand who wait for it.
            return None if task.cancelled() and self.is_closing else task.result()
        finally:
            self._polls.discard(task)
            task.cancel()
            if gone is not None:
                gone.cancel()

    async def close(self) -> None:
        self.is_closing = True
        for task in self._polls:
            task.cancel()
        for close in self.on_close:
            await close()
        await self.gather.close()

    def abort(self) -> None:
        """Whoever still waits is left alone."""
        self.gather.abort()


async def _take(budget: Budget, count: int) -> None:
    if budget.take_at_once(count):
        return
    try:
        async with asyncio.timeout(HOLD_SECONDS_MAX):
            await budget.take(count)
    except TimeoutError:
        raise GatewayError("The gateway is busy: try again in a moment.", "BUSY", 503) from None
