"""Subscription: one client's way through the partitions it follows, no faster than it has granted and can take.

Each partition is a `Follow` with a position of its own. It is either ready (a chunk is at hand, or may be) or waits in
the fan-out; a single task takes the ready ones in turn, and only while the client has credit left and the socket is
free. Records of a partition go out in the order of their offsets and none is left out, but for those the filter drops.
A subscription that cannot go on ends with an error.
"""

import asyncio
from collections import deque
from collections.abc import Mapping

from anabranch.broker.requests.turns import ROWS_PER_TURN
from anabranch.errors import AnabranchError
from anabranch.gateway.read.chunks import Chunk
from anabranch.gateway.read.fan_out import FanOut, OnArrival, Stream, Wait
from anabranch.gateway.read.header_filter import HeaderFilter
from anabranch.gateway.websocket.fields import Id
from anabranch.gateway.websocket.messages import CREDIT_MAX
from anabranch.gateway.websocket.outlet import Outlet

PROGRESS_MS = 5000
"""How often a client is told how far it is though its filter lets nothing through."""


class Follow:
    """One partition: everything below `position` was sent, or dropped by the filter."""

    __slots__ = ("held", "is_over", "last_sent", "position", "stream", "wait")

    def __init__(self, stream: Stream, position: int) -> None:
        self.stream = stream
        self.position = position
        self.last_sent = -1
        self.held: Chunk | None = None
        self.wait: Wait | None = None
        self.is_over = False


class Subscription:
    def __init__(
        self, own_id: Id, fan_out: FanOut, outlet: Outlet, wanted: HeaderFilter | None, credit: int
    ) -> None:
        self.id = own_id
        self._fan_out = fan_out
        self._outlet = outlet
        self._wanted = wanted
        self._credit = credit
        self._follows: dict[int, Follow] = {}
        self._ready: deque[Follow] = deque()
        self._moved = asyncio.Event()
        self._clock = fan_out.clock
        self._told_ms = self._clock.monotonic_ms()
        self._failure: AnabranchError | None = None

    @property
    def credit(self) -> int:
        return self._credit

    @property
    def follows(self) -> Mapping[int, Follow]:
        """By partition."""
        return self._follows

    def follow(self, stream: Stream, position: int) -> None:
        assert stream.partition not in self._follows
        follow = Follow(stream, position)
        self._follows[stream.partition] = follow
        self._make_ready(follow)

    def unfollow(self, partition: int) -> None:
        follow = self._follows.pop(partition)
        follow.is_over = True
        if follow.wait is not None:
            self._fan_out.leave(follow.wait)
        self._drop_held(follow)

    def close(self) -> None:
        for partition in list(self._follows):
            self.unfollow(partition)

    def grant(self, records: int) -> None:
        self._credit = min(CREDIT_MAX, self._credit + records)
        self._moved.set()

    def fail(self, error: AnabranchError) -> None:
        """End it with this error."""
        self._failure = error
        self._moved.set()

    async def run(self) -> None:
        """Sends until it is cancelled. Raises the AnabranchError that ends the subscription."""
        while True:
            await self._can_go_on()
            async with self._outlet.turn:
                await self._send_next()
            if self._ready:
                await asyncio.sleep(0)  # A socket that takes everything would leave nobody else a turn.

    async def _can_go_on(self) -> None:
        while not (self._ready and self._credit > 0):
            if self._failure is not None:
                raise self._failure
            self._moved.clear()
            await self._moved.wait()
        if self._failure is not None:
            raise self._failure

    async def _send_next(self) -> None:
        """While this subscription waited for its turn, what was ready may have been taken from it."""
        follow = self._next_ready()
        if follow is None:
            return
        chunk = self._drop_held(follow) or self._fan_out.chunk_at(follow.stream, follow.position)
        if chunk is None:
            self._wait(follow)
            return
        if chunk.is_heavy(self._wanted):
            await self._fan_out.turns.wait(ROWS_PER_TURN)
        cut = chunk.cut(follow.position, self._credit, self._outlet.message_bytes_max, self.id, self._wanted)
        text = cut.text if cut.text is not None else self._progress(chunk, cut.next)
        del chunk  # A client that stalls in what follows must not keep it.
        follow.position = cut.next
        if cut.records:
            follow.last_sent = cut.last
            self._credit -= cut.records
        if text is not None:
            await self._outlet.send(text)
            self._fan_out.records_sent_total += cut.records
        self._go_on(follow)

    def _go_on(self, follow: Follow) -> None:
        """Most have come to the end, and wait; without credit nothing is waited for, nor read."""
        if (
            self._credit == 0
            or follow.is_over
            or self._fan_out.chunk_at(follow.stream, follow.position) is not None
        ):
            self._make_ready(follow)
        else:
            self._wait(follow)

    def _wait(self, follow: Follow) -> None:
        follow.wait = self._fan_out.wait(follow.stream, follow.position, self._arrival(follow))

    def _progress(self, chunk: Chunk, next_offset: int) -> bytes | None:
        """A client that loses its connection must not begin where its filter last let something through."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._told_ms < PROGRESS_MS:
            return None
        self._told_ms = now_ms
        return chunk.progress(self.id, next_offset)

    def _next_ready(self) -> Follow | None:
        while self._ready:
            follow = self._ready.popleft()
            if not follow.is_over:
                return follow
        return None

    def _make_ready(self, follow: Follow) -> None:
        if not follow.is_over:
            self._ready.append(follow)
            self._moved.set()

    def _arrival(self, follow: Follow) -> OnArrival:
        def arrived(chunk: Chunk | None, error: AnabranchError | None) -> None:
            follow.wait = None
            if error is not None:
                self.fail(error)
                return
            assert chunk is not None
            if self._outlet.hold(chunk.size_bytes):
                follow.held = chunk
            self._make_ready(follow)

        return arrived

    def _drop_held(self, follow: Follow) -> Chunk | None:
        chunk, follow.held = follow.held, None
        if chunk is not None:
            self._outlet.let_go(chunk.size_bytes)
        return chunk
