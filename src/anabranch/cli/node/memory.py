"""The memory policy of a node's process: what it looks through for garbage, keeps of what it freed, and gives back.

`settle_memory` is called once the node is up. From then on `LongCollections` keeps the search for garbage from holding
up requests on a node that has come to keep ten thousand partitions. `return_freed_memory` runs as long as the node
does: memory that requests have taken and freed lies between what is still used, where glibc keeps it for good unless it
is told to give it back.
"""

import asyncio
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from anabranch.record.backend import COMPILED

KEPT_BYTES_MAX = 32 * 1024 * 1024
"""What the process may keep of the memory it freed: batches come and go, and each wants about as much as the last."""
LONG_COLLECTION_SECONDS = 0.05
OLDEST = 2
"""The generation whose collection looks through everything."""
PAUSE_SECONDS_MIN = 1.0
PAUSE_SECONDS_MAX = 16.0
WORTH_BYTES = 4 * 1024 * 1024
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_RESIDENT = Path("/proc/self/statm")


def settle_memory() -> None:
    """Leave what is there now out of every later search for garbage, which would hold up requests, and keep some of
    what requests free for the next ones."""
    gc.freeze()
    gc.enable()
    gc.callbacks.append(LongCollections(gc).on_gc)
    if COMPILED:
        from anabranch.record._fast import keep_freed_memory

        keep_freed_memory(KEPT_BYTES_MAX)


class Collector(Protocol):
    """The module `gc`."""

    def freeze(self) -> None: ...
    def unfreeze(self) -> None: ...
    def get_freeze_count(self) -> int: ...


class LongCollections:
    """Leaves what has lived through a long collection out of the next ones, so that each looks through what is new.

    Objects that were left out and have become garbage in cycles since stay in memory. So once twice as many are left
    out as before, the next collection looks through all of them, however long that takes.
    """

    def __init__(self, collector: Collector, seconds: Callable[[], float] = time.perf_counter) -> None:
        self._collector = collector
        self._seconds = seconds
        self._begun = 0.0
        self._frozen_count_max = 2 * collector.get_freeze_count()

    def on_gc(self, phase: str, info: dict[str, int]) -> None:
        """For `gc.callbacks`."""
        if info["generation"] != OLDEST:
            return
        if phase == "start":
            self._begun = self._seconds()
        elif self._seconds() - self._begun > LONG_COLLECTION_SECONDS:
            self._freeze()

    def _freeze(self) -> None:
        collector = self._collector
        was_all_looked_through = collector.get_freeze_count() == 0
        collector.freeze()
        frozen_count = collector.get_freeze_count()
        if was_all_looked_through:
            self._frozen_count_max = 2 * frozen_count
        elif frozen_count > self._frozen_count_max:
            collector.unfreeze()


def can_return_memory() -> bool:
    return COMPILED and _RESIDENT.exists()


def resident_bytes() -> int:
    return int(_RESIDENT.read_text().split()[1]) * PAGE_BYTES


def release() -> None:
    from anabranch.record._fast import return_freed

    return_freed()


async def return_freed_memory(
    resident: Callable[[], int] = resident_bytes, release: Callable[[], None] = release
) -> None:
    """Give freed memory back to the system, in a thread, while the process has `KEPT_BYTES_MAX` more than at first.

    Where there is little to give back, because the memory is used, look less often."""
    settled = resident()
    pause_seconds = PAUSE_SECONDS_MIN
    while True:
        await asyncio.sleep(pause_seconds)
        before = resident()
        if before <= settled + KEPT_BYTES_MAX:
            pause_seconds = PAUSE_SECONDS_MIN
            continue
        await asyncio.to_thread(release)
        is_worth_it = before - resident() >= WORTH_BYTES
        pause_seconds = PAUSE_SECONDS_MIN if is_worth_it else min(2 * pause_seconds, PAUSE_SECONDS_MAX)
