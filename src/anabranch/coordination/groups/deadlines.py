"""Many deadlines that move often and are seldom reached.

Moving a deadline later, which every heartbeat does, is one dictionary write: the heap keeps its old entry and
only learns the new time when the old one comes up. Entries of cancelled keys are swept once they outnumber
the others.
"""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_STALE_MIN = 64


class Deadlines(Generic[K]):
    def __init__(self) -> None:
        self._due_ms: dict[K, int] = {}
        self._queued_ms: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._due_ms)

    def set(self, key: K, due_ms: int) -> None:
        self._due_ms[key] = due_ms
        queued_ms = self._queued_ms.get(key)
        if queued_ms is None or due_ms < queued_ms:
            self._push(key, due_ms)

    def cancel(self, key: K) -> None:
        self._due_ms.pop(key, None)
        self._queued_ms.pop(key, None)
        if len(self._heap) > 2 * len(self._due_ms) + _STALE_MIN:
            self._sweep()

    def get(self, key: K) -> int | None:
        return self._due_ms.get(key)

    def next_ms(self) -> int | None:
        """The soonest deadline."""
        while self._heap:
            queued_ms, _, key = self._heap[0]
            if self._queued_ms.get(key) != queued_ms:
                heapq.heappop(self._heap)  # Cancelled, or a sooner entry has taken this one's place.
            elif self._due_ms[key] > queued_ms:
                heapq.heappop(self._heap)
                self._push(key, self._due_ms[key])
            else:
                return queued_ms
        return None

    def pop_due(self, now_ms: int) -> K | None:
        """One key whose time has come; it is forgotten unless set again."""
        next_ms = self.next_ms()
        if next_ms is None or next_ms > now_ms:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._due_ms[key], self._queued_ms[key]
        return key

    def _push(self, key: K, due_ms: int) -> None:
        self._sequence += 1  # Breaks ties, so that keys are never compared.
        self._queued_ms[key] = due_ms
        heapq.heappush(self._heap, (due_ms, self._sequence, key))

    def _sweep(self) -> None:
        self._heap = []
        for key, due_ms in self._due_ms.items():
            self._push(key, due_ms)
