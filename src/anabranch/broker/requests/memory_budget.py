"""MemoryBudget: how many bytes all connections may hold together.

There is one for unfinished requests, and one for what batches inflate to: were they one, requests that hold all memory
could wait for ever for the memory to be unpacked.

A connection takes what its frame needs, once that is more than is free to all, and gives it back when it shrinks or
closes. One that gets none waits in line and reads nothing meanwhile. Addresses take turns, first come, first served
within one, so that a thousand connections from one address do not keep another address waiting. A request that waits
for something else holds nothing (`Connection.shrink`), and while anybody waits for memory the listener's sweep closes
frames that arrive slowly (`eviction.py`). What a batch inflates to is taken before a worker begins and given back when
it ends.
"""

from collections.abc import Callable
from typing import TypeVar

from anabranch.broker.workers import Done, Workers

Result = TypeVar("Result")


class MemoryBudget:
    __slots__ = ("_lines", "bytes_max", "bytes_taken", "bytes_wanted", "grants")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_taken = 0
        self.bytes_wanted = 0
        """Of all who stand in line."""
        self.grants = 0
        """How often somebody in line got what they waited for."""
        self._lines: dict[str, dict[Callable[[], None], int]] = {}
        """Who waits, by address. The first address is served next and then goes to the end."""

    @property
    def is_short(self) -> bool:
        """Somebody stands in line."""
        return bool(self._lines)

    @property
    def bytes_missing(self) -> int:
        """What has to come back before everybody in line is served."""
        return max(0, self.bytes_taken + self.bytes_wanted - self.bytes_max)

    def take(self, count: int) -> bool:
        """Whether `count` more bytes may be held; those in line come first."""
        if self._lines or self.bytes_taken + count > self.bytes_max:
            return False
        self.bytes_taken += count
        return True

    def wait(self, count: int, granted: Callable[[], None], address: str = "") -> None:
        """Stand in line for `count` bytes; they are taken when `granted` is called."""
        assert count <= self.bytes_max, "a request may not be larger than all memory for requests"
        self._lines.setdefault(address, {})[granted] = count
        self.bytes_wanted += count

    def give(self, count: int) -> None:
        self.bytes_taken -= count
        assert self.bytes_taken >= 0, "more bytes given back than were taken"
        self._serve()

    def leave(self, granted: Callable[[], None], address: str = "") -> bool:
        """Give up a place in line. Whether there was one."""
        line = self._lines.get(address, {})
        count = line.pop(granted, None)
        if count is None:
            return False
        self.bytes_wanted -= count
        if not line:
            del self._lines[address]
        self._serve()  # Those behind may want less.
        return True

    def _serve(self) -> None:
        while self._lines:
            address, line = next(iter(self._lines.items()))
            granted, count = next(iter(line.items()))
            if self.bytes_taken + count > self.bytes_max:
                return
            del line[granted], self._lines[address]
            if line:
                self._lines[address] = line
            self.bytes_wanted -= count
            self.bytes_taken += count
            self.grants += 1
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
