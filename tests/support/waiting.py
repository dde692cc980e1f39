"""Waiting for something to become true, with a deadline and a sentence for when it does not."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

WAIT_S_MAX = 20.0
PAUSE_S = 0.02


def wait_until(check: Callable[[], T], what: str, seconds_max: float = WAIT_S_MAX) -> T:
    """Calls `check` until it returns something true, and returns that."""
    deadline = time.monotonic() + seconds_max
    while not (value := check()):
        assert time.monotonic() < deadline, f"waited {seconds_max:.0f} s in vain for {what}"
        time.sleep(PAUSE_S)
    return value
