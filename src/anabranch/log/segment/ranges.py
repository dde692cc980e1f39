"""Which bytes of a file are known to be good: a sorted list of [start, end) that merge when they touch."""

from bisect import bisect_left, bisect_right


class Ranges:
    """Grows with `add`; a segment has one, and only the writer changes it."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        if start >= end:
            return
        if self._ends and start == self._ends[-1]:
            self._ends[-1] = end  # The usual case: the writer goes on where it stopped.
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def covers(self, start: int, end: int) -> bool:
        if start >= end:
            return True
        found = bisect_right(self._starts, start) - 1
        return found >= 0 and self._ends[found] >= end

    def cut(self, size: int) -> None:
        """Forget everything from `size` on."""
        while self._starts and self._starts[-1] >= size:
            self._starts.pop()
            self._ends.pop()
        if self._ends and self._ends[-1] > size:
            self._ends[-1] = size

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()

    def __iter__(self) -> "zip[tuple[int, int]]":
        return zip(self._starts, self._ends, strict=True)
