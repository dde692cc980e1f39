"""MemoryBudget: how many bytes all connections may hold together: of unfinished requests, and, in a budget of its own,
of batches that are unpacked.

A connection takes before it grows its buffer and gives back when it shrinks or closes. Who gets none is put in
line, does not read meanwhile, and is called back in order of arrival. Nobody holds bytes without end: a frame that
makes no progress is closed by the listener's sweep, which gives its bytes back. What a batch unpacks to is taken before
a worker begins and given back when it ends. The two budgets are apart, or requests that hold all memory could wait
for ever to be unpacked.
"""

from collections import deque
from collections.abc import Callable
from typing import TypeVar

from anabranch.broker.workers import Done, Workers

Result = TypeVar("Result")


class MemoryBudget:
    __slots__ = ("_line", "bytes_max", "bytes_taken")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_taken = 0
        self._line: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def is_short(self) -> bool:
        """Somebody stands in line."""
        return bool(self._line)

    def take(self, count: int) -> bool:
        """Whether `count` more bytes may be held; those in line come first."""
        if self._line or self.bytes_taken + count > self.bytes_max:
            return False
        self.bytes_taken += count
        return True

    def wait(self, count: int, granted: Callable[[], None]) -> None:
        """Stand in line for `count` bytes; they are taken when `granted` is called."""
        assert count <= self.bytes_max, "a request may not be larger than all memory for requests"
        self._line.append((count, granted))

    def give(self, count: int) -> None:
        self.bytes_taken -= count
        assert self.bytes_taken >= 0, "more bytes given back than were taken"
        while self._line and self.bytes_taken + self._line[0][0] <= self.bytes_max:
            count_next, granted = self._line.popleft()
            self.bytes_taken += count_next
            granted()

    def run(
        self, workers: Workers, count: int, task: Callable[[], Result], done: Done[Result]
    ) -> Callable[[], bool]:
        """Have a worker carry out a task that takes up to `count` bytes while it runs, as soon as they can be had.

        Returns how to leave the line: a task that has not begun is then forgotten. That says whether it was so.
        """
        count = min(count, self.bytes_max)

        def begin() -> None:
            workers.heavy(task, finished)

        def finished(result: Result | None, error: BaseException | None) -> None:
            try:
                done(result, error)
            finally:
                self.give(count)

        if self.take(count):
            begin()
        else:
            self.wait(count, begin)
        return lambda: self.leave(begin)

    def leave(self, granted: Callable[[], None]) -> bool:
        """Give up a place in line. Whether there was one."""
        length_before = len(self._line)
        self._line = deque(entry for entry in self._line if entry[1] != granted)
        return len(self._line) < length_before
