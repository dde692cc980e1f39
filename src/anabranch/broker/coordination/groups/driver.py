"""Wakes a coordinator when its next deadline comes, on the running loop.

Keeps one timer. Deadlines mostly move later, with every heartbeat: those cost nothing here, the timer fires,
finds nothing due and is set again. Tests leave this out and call `tick` with the time they want.
"""

import asyncio

from anabranch.broker.coordination.groups.coordinator import GroupCoordinator
from anabranch.clock import Clock


class LoopDriver:
    def __init__(self, coordinator: GroupCoordinator, clock: Clock) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ms: int | None = None

    def start(self) -> None:
        self._coordinator.on_deadline_moved = self._arm
        self._arm()

    def stop(self) -> None:
        self._coordinator.on_deadline_moved = None
        self._disarm()

    def _arm(self) -> None:
        next_ms = self._coordinator.next_deadline_ms()
        if next_ms is None or (self._armed_ms is not None and self._armed_ms <= next_ms):
            return
        self._disarm()
        delay_ms = max(next_ms - self._clock.monotonic_ms(), 0)
        self._armed_ms = next_ms
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._fire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._armed_ms = None

    def _fire(self) -> None:
        self._disarm()
        try:
            self._coordinator.tick(self._clock.monotonic_ms())
        finally:
            self._arm()  # A defect in one group must not stop the clocks of all others.
