"""FetchWaits: fetches that wait for bytes or for their deadline.

A waiting fetch is entered at each of its partitions; a publish wakes those of that partition. It is retried and,
if it is still short of its minimum, goes on waiting. The deadline retries it one last time, and then it answers
with whatever there is. A fetch leaves all its partitions as soon as it is answered or its client is gone.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch.broker.partition import Partition


class WaitingFetch:
    """One fetch that could not be answered yet. `retry(final)` says whether it is answered now."""

    __slots__ = ("_partitions", "_retry", "_timer", "_waits")

    def __init__(
        self, waits: "FetchWaits", retry: Callable[[bool], bool], partitions: "list[Partition]", wait_ms: int
    ) -> None:
        self._waits = waits
        self._retry = retry
        self._partitions = partitions
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.end)
        for partition in partitions:
            partition.waiting_fetches.add(self)

    def woken(self) -> None:
        if self._retry(False):
            self.leave()

    def end(self) -> None:
        """The deadline has come, or the node stops: answer with whatever there is."""
        self.leave()
        self._retry(True)

    def leave(self) -> None:
        """Wait no longer."""
        self._timer.cancel()
        for partition in self._partitions:
            partition.waiting_fetches.discard(self)
        self._partitions = []
        self._waits.waiting.discard(self)


class FetchWaits:
    """Enters fetches and wakes them."""

    def __init__(self) -> None:
        self.waiting: set[WaitingFetch] = set()

    def wait(
        self, retry: Callable[[bool], bool], partitions: "list[Partition]", wait_ms: int
    ) -> WaitingFetch:
        fetch = WaitingFetch(self, retry, partitions, wait_ms)
        self.waiting.add(fetch)
        return fetch

    def end_all(self) -> None:
        """The node stops: nobody waits for bytes that will not come."""
        for fetch in list(self.waiting):
            fetch.end()

    def wake(self, partitions: "Iterable[Partition]") -> None:
        woken: dict[WaitingFetch, None] = {}
        for partition in partitions:
            woken.update(dict.fromkeys(partition.waiting_fetches))
        for fetch in woken:
            fetch.woken()
