"""Poller: waits for every connection's socket at once, and gives each its turn.

asyncio watches one descriptor, an epoll of our own in which all sockets are entered. When some have something to
say, one turn of the broker serves them all: each is read once, then the core writes what they brought and sends the
answers. So a request costs no handle of the loop of its own, and neighbours share a write. What a connection's buffer
lends to the writer stays as it is: a connection reads once in a turn, before anything of it is queued, and what was
queued between turns is written before the next one reads.

However many requests have arrived, they are parsed in steps of about `STEP_NS`: one when sockets are read, and two when
answers have left. Each connection has an equal share of a step. What is left stays in the buffers, and its connections
stand in line: those that had no share yet in one, and in another those that sent more than their share.

Whoever sends one request after the other sends the next a moment after the last answer. So when turns follow closely
upon each other, the poller *lingers*: it looks again for a few microseconds before it gives the core back. To put a
core to sleep and wake it costs more than that (decision 15).
"""

import asyncio
import logging
import os
import select
from collections import deque
from time import perf_counter_ns
from typing import Protocol

from anabranch.broker.write.core import BrokerCore
from anabranch.clock import Clock

logger = logging.getLogger(__name__)

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
EVENTS_PER_TURN_MAX = 1024
"""Those who come later have the next turn; nobody waits for more than this."""

STEP_NS = 10_000_000
FRAMES_PER_STEP = 1024
"""Shared by the connections of a step. A request costs 3 to 500 microseconds, so time may be over sooner."""
TIMED_EVERY = 16
"""Of so many sockets, the time is looked at behind the last."""

SOON_NS = 200_000
"""A turn that begins so soon after the last one ended is a reason to linger after it."""
LINGER_NS = 40_000
STAY_NS = 500_000
"""Then the loop's other work has its turn."""


class Watched(Protocol):
    def ready(self, events: int) -> None:
        """The socket can be read or written, or its other end is gone."""
        ...

    def go_on(self) -> None:
        """Its turn in the line has come."""
        ...

    def close(self, reason: str) -> None: ...


class Poller:
    def __init__(self, core: BrokerCore, clock: Clock) -> None:
        self.clock = clock
        self.turn_ms = clock.monotonic_ms()
        """The time of the present turn: near enough for idle times, and cheaper than to ask for each request."""
        self.frames_each = FRAMES_PER_STEP
        """How many requests of a connection may be parsed in this step; 0: it is over."""
        self._step_end_ns = 0
        self.newcomers: deque[Watched] = deque()
        """Who was read when the step was over."""
        self.backlog: deque[Watched] = deque()
        """Whose buffers may hold more requests, first come first served."""
        self._is_about_to_read = False
        """What lies in buffers is being written so that they can be read to: nothing more of them may be lent."""
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._poll = self._epoll.poll
        self._watched: dict[int, Watched] = {}
        self._ended_ns = 0
        self._may_linger = len(os.sched_getaffinity(0)) > 1  # On one core a client could not send meanwhile.

    def start(self) -> None:
        self._loop.add_reader(self._epoll.fileno(), self._turn)

    def watch(self, descriptor: int, events: int, watched: Watched) -> None:
        """Tell `watched` of these events from now on; no events: of nothing."""
        is_known = descriptor in self._watched
        if not events:
            if is_known:
                del self._watched[descriptor]
                self._epoll.unregister(descriptor)
        elif is_known:
            self._epoll.modify(descriptor, events)
        else:
            self._epoll.register(descriptor, events)  # First: it may fail, and the number is used again.
            self._watched[descriptor] = watched

    def _turn(self) -> None:
        began_ns = perf_counter_ns()
        is_busy = self._may_linger and began_ns - self._ended_ns < SOON_NS
        self._serve(self._poll(0, EVENTS_PER_TURN_MAX))
        self._ended_ns = perf_counter_ns()
        if is_busy:
            self._linger(began_ns + STAY_NS)

    def _linger(self, until_ns: int) -> None:
        """Serve those who come at once, until nobody does."""
        now_ns = self._ended_ns
        core = self._core
        while now_ns < until_ns and now_ns - self._ended_ns < LINGER_NS and not core.is_loop_awaited:
            found = self._poll(0, EVENTS_PER_TURN_MAX)
            now_ns = perf_counter_ns()
            if found:
                self._serve(found)
                self._ended_ns = now_ns = perf_counter_ns()

    def _serve(self, found: list[tuple[int, int]]) -> None:
        core = self._core
        self.turn_ms = self.clock.monotonic_ms()
        self._is_about_to_read = True
        try:
            while core.queue:
                core.turn()  # Handed in since the last turn: its bytes may lie where we read to.
        finally:
            self._is_about_to_read = False
        self._begin_step(len(found))
        core.is_turn_open = True
        try:
            for number, (descriptor, events) in enumerate(found, 1):
                watched = self._watched.get(descriptor)
                if watched is None:
                    continue  # Closed a moment ago, by a neighbour's doing.
                try:
                    watched.ready(events)
                except Exception as error:
                    # A defect of ours costs this connection, and nobody else anything.
                    logger.exception("a connection failed: this is a defect")
                    watched.close(f"{type(error).__name__}: {error}")
                if number % TIMED_EVERY == 0 and self._is_step_over:
                    self.frames_each = 0
        finally:
            core.is_turn_open = False
            core.turn()

    @property
    def is_behind(self) -> bool:
        return bool(self.newcomers or self.backlog)

    def go_on(self) -> None:
        """Let those in line parse what they have, as far as one step for each line gets; after answers have left."""
        if self._is_about_to_read:
            return
        for line in (self.newcomers, self.backlog):
            if not line:
                continue
            self._begin_step(len(line))
            for _ in range(len(line)):
                connection = line.popleft()
                try:
                    connection.go_on()
                except Exception as error:
                    # A defect of ours, or a full table of the system, costs this connection, and nobody else anything.
                    logger.exception("a connection failed while it was parsed: this is a defect")
                    connection.close(f"{type(error).__name__}: {error}")
                if self._is_step_over:
                    break

    def _begin_step(self, connections: int) -> None:
        self.frames_each = max(1, FRAMES_PER_STEP // max(1, connections))
        self._step_end_ns = perf_counter_ns() + STEP_NS

    @property
    def _is_step_over(self) -> bool:
        return perf_counter_ns() > self._step_end_ns

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
