"""FetchWaits: fetches that wait for bytes or for their deadline.

A waiting fetch is entered at each of its partitions; a publish wakes those of that partition. It is told which of its
partitions have news, retried and, if it is still short of its minimum, goes on waiting. The deadline retries it one
last time, and then it answers with whatever there is. A fetch leaves all its partitions as soon as it is answered or
its client is gone.

A fetch costs something for each of its partitions, and its client sends the next one as soon as it is answered. With
a thousand partitions that are all written to, each publish would cost milliseconds; so such a fetch lets news gather
for about as long as it takes to answer it.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch.broker.topics.partition import Partition


GATHER_SECONDS_PER_PARTITION = 5e-6
GATHER_PARTITIONS_MIN = 200
"""A fetch of fewer is tried at once."""


def _is_over(final: bool) -> bool:
    return True


class WaitingFetch:
    """One fetch that could not be answered yet. `retry(final)` says whether it is answered now; what is new since
    the last try is in `woken_by`."""

    __slots__ = ("_due", "_gather_seconds", "_partitions", "_retry", "_timer", "_waits", "woken_by")

    def __init__(
        self, waits: "FetchWaits", retry: Callable[[bool], bool], partitions: "list[Partition]", wait_ms: int
    ) -> None:
        self._waits = waits
        self._retry = retry
        self._partitions = partitions
        self.woken_by: set[Partition] = set()
        self._gather_seconds = 0.0
        if len(partitions) >= GATHER_PARTITIONS_MIN:
            self._gather_seconds = len(partitions) * GATHER_SECONDS_PER_PARTITION
        self._due: asyncio.TimerHandle | None = None
        self._timer = waits.loop.call_later(wait_ms / 1000, self.end)
        for partition in partitions:
            partition.waiting_fetches[self] = None

    def woken(self, partitions: "list[Partition]") -> None:
        self.woken_by.update(partitions)
        if not self._gather_seconds:
            self._try_again()
        elif self._due is None:
            self._due = self._waits.loop.call_later(self._gather_seconds, self._try_again)

    def _try_again(self) -> None:
        self._due = None
        if self._retry(False):
            self.leave()
        self.woken_by.clear()

    def end(self) -> None:
        """The deadline has come, or the node stops: answer with whatever there is."""
        retry = self._retry
        self.leave()
        retry(True)

    def leave(self) -> None:
        """Wait no longer."""
        self._timer.cancel()
        if self._due is not None:
            self._due.cancel()
        for partition in self._partitions:
            partition.waiting_fetches.pop(self, None)
        self._partitions = []
        self._waits.waiting.pop(self, None)
        self._retry = _is_over  # It knows the fetch, which knows this.


class FetchWaits:
    """Enters fetches and wakes them."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.waiting: dict[WaitingFetch, None] = {}
        self.is_ended = False
        """The node stops: whoever is tried now has to answer."""

    def wait(
        self, retry: Callable[[bool], bool], partitions: "list[Partition]", wait_ms: int
    ) -> WaitingFetch:
        fetch = WaitingFetch(self, retry, partitions, wait_ms)
        self.waiting[fetch] = None
        return fetch

    def end_all(self) -> None:
        """The node stops: nobody waits for bytes that will not come."""
        self.is_ended = True
        for fetch in list(self.waiting):
            fetch.end()

    def wake(self, partitions: "Iterable[Partition]") -> None:
        woken: dict[WaitingFetch, list[Partition]] = {}
        for partition in partitions:
            for fetch in partition.waiting_fetches:
                woken.setdefault(fetch, []).append(partition)
        for fetch, by in woken.items():
            fetch.woken(by)
