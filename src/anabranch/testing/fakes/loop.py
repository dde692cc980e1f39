"""VirtualLoop: an asyncio event loop without sockets, whose time is a FakeClock. SimWorkers: its worker threads.

When nothing is ready, the clock jumps to the next timer, so that an hour of waiting costs nothing. Callbacks run in
the order asyncio runs them; what real threads would do at some unknown moment, `SimWorkers` does at a moment and in
an order that the seed decides. Everything happens in the thread that calls `run_for`: one seed, one run.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from anabranch.broker.workers import Done, Result
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.disk import PowerLoss

WORKER_MS_MAX = 8


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(self, clock: FakeClock, is_halted: Callable[[], bool]) -> None:
        super().__init__()
        self._clock = clock
        self._is_halted = is_halted
        self._selector = self

    def time(self) -> float:
        return self._clock.monotonic_ms() / 1000

    def run_for(self, milliseconds: int) -> None:
        """Let this much time pass, or less if somebody calls `stop` or the machine halts."""
        timer = self.call_later(milliseconds / 1000, self.stop)
        try:
            self.run_forever()
        finally:
            timer.cancel()

    # --- for whoever has several loops take turns -----------------------------------------------------------------

    @property
    def due_ms(self) -> int | None:
        """When something is to be done next; None: never, as things are."""
        if self._ready:  # type: ignore[attr-defined]
            return self._clock.monotonic_ms()
        scheduled = self._scheduled  # type: ignore[attr-defined]
        return math.ceil(scheduled[0].when() * 1000 - 1e-6) if scheduled else None

    def turn(self) -> None:
        """Do what is due now, and nothing that this brings about."""
        self._stopping = True  # Else it would wait for what is due later, and the clock go on.
        asyncio._set_running_loop(self)  # As `running` does; a context manager costs as much as a short turn.
        try:
            self._run_once()
        finally:
            asyncio._set_running_loop(None)
        self._stopping = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """As if from within this loop."""
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)

    # --- what BaseEventLoop asks of a loop -----------------------------------------------------------------------

    def select(self, timeout_seconds: float | None) -> list[Any]:
        """In the place of a selector: nothing ever comes from outside, but time passes."""
        assert timeout_seconds is not None, "nothing is scheduled, so nothing would ever happen again"
        if timeout_seconds > 0:
            self._clock.advance(max(1, math.ceil(timeout_seconds * 1000 - 1e-6)))
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Nobody sleeps, so nobody needs to be woken."""

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]  # Its one turn; typeshed leaves it out.
        if self._is_halted():
            self.stop()


class SimWorkers:
    """`broker.workers.Workers` without threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: Random) -> None:
        self._loop = loop
        self._rng = rng
        self.slow_ms_max = 0
        """A slow disk: everything takes up to so much longer."""

    def sync(self, task: Callable[[], Result], done: Done[Result]) -> None:
        self._later(self._run, task, done)

    def heavy(self, task: Callable[[], Result], done: Done[Result]) -> None:
        self._later(self._run, task, done)

    def side_by_side(self, tasks: Iterable[Callable[[], Result]]) -> list[Result]:
        return [task() for task in tasks]

    def close(self) -> None:
        """There is nothing to end: what was not run dies with its loop."""

    def _run(self, task: Callable[[], Result], done: Done[Result]) -> None:
        try:
            result = task()
        except PowerLoss:
            raise  # Nobody hears of it: the machine is off.
        except BaseException as error:  # noqa: BLE001 - handed to `done` on the loop, where it is dealt with.
            self._later(done, None, error)
        else:
            self._later(done, result, None)

    def _later(self, function: Callable[..., None], *arguments: object) -> None:
        milliseconds = self._rng.choice((0, 0, 1, self._rng.randint(0, WORKER_MS_MAX)))
        if self.slow_ms_max:
            milliseconds += self._rng.randint(0, self.slow_ms_max)
        self._loop.call_later(milliseconds / 1000, function, *arguments)
