"""What time it is, behind one small protocol so that tests and the simulator can hand in their own.

`wall_ms` is the time of day that stamps records and decides retention; it may jump. `monotonic_ms` never goes
back and decides every wait and timeout.
"""

import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...

    def monotonic_us(self) -> int:
        """The same clock, for what is too short for milliseconds."""
        ...


class RealClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1000
