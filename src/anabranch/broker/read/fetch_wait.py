"""FetchWaits: fetches that wait for bytes or for their deadline.

A waiting fetch is entered at each of its partitions; a publish wakes those of that partition. It is told which of its
partitions have news, retried and, if it is still short of its minimum, goes on waiting. The deadline retries it one
last time, and then it answers with whatever there is. A fetch leaves all its partitions as soon as it is answered or
its client is gone.

A fetch costs something for each of its partitions, and its client sends the next one as soon as it is answered. With
a thousand partitions that are all written to, each publish would cost milliseconds; so such a fetch lets news gather
for about as long as it takes to answer it.

A publish, the end of a topic or a deadline that many share may wake thousands at once, and as many clients may hang up
at once. So whoever is due stands in line, fetches of few partitions and of many apart, and each turn of the broker
serves as many as `ROWS_PER_TURN` allow of each line, first come first served.

What waits is memory: `partitions_max` bounds the partitions that all fetches wait for together, the first
`FREE_PARTITIONS` of each excepted, so that a fetch of a few always waits. Where a fetch finds no room, the address
whose fetches wait for most is turned away first, its newest fetch before others. That may be the newcomer.

Everything here runs on the loop's thread and counts work instead of time: the simulator and the tests see the same
turns on any machine.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch.broker.topics.partition import Partition


GATHER_SECONDS_PER_PARTITION = 5e-6
GATHER_PARTITIONS_MIN = 200
"""A fetch of fewer is tried at once."""

FREE_PARTITIONS = 32
"""What each fetch may wait for without being counted, as each connection has a small buffer that is not."""
ROWS_PER_TURN = 500
"""For the fetches of either line that are tried in one turn. A row costs 2 to 20 microseconds."""
ROWS_PER_TRY = 4
"""What a try costs besides its partitions."""
WAKES_PER_TURN = 5_000
"""Fetches, at one partition each, that one turn tells of news. One costs less than a microsecond."""
LEAVES_PER_TURN = 5_000
"""Partitions that fetches whose clients are gone leave in one turn; the same."""


def _is_over(final: bool) -> bool:
    return True


def _stays() -> None:
    """Fetches that are not counted are not turned away."""


class WaitingFetch:
    """One fetch that could not be answered yet. `retry(final)` says whether it is answered now; what is new since
    the last try is in `woken_by`. At each of its partitions its place in the request is noted."""

    __slots__ = (
        "_due",
        "_gather_seconds",
        "_partitions",
        "_retry",
        "_timer",
        "_turn_away",
        "_waits",
        "address",
        "is_final",
        "is_in_line",
        "size",
        "woken_by",
    )

    def __init__(
        self,
        waits: "FetchWaits",
        retry: Callable[[bool], bool],
        places: "Sequence[Partition | None]",
        wait_ms: int,
        address: str = "",
        turn_away: Callable[[], None] = _stays,
    ) -> None:
        self._waits = waits
        self._retry = retry
        self._turn_away = turn_away
        self.address = address
        self.is_final = False
        self.is_in_line = False
        self.woken_by: set[Partition] = set()
        self._partitions = [place for place in places if place is not None]
        self.size = len(self._partitions)
        self._gather_seconds = 0.0
        if self.size >= GATHER_PARTITIONS_MIN:
            self._gather_seconds = self.size * GATHER_SECONDS_PER_PARTITION
        self._due: asyncio.TimerHandle | None = None
        self._timer = waits.loop.call_later(wait_ms / 1000, self._end_soon)
        for number, place in enumerate(places):
            if place is not None:
                place.waiting_fetches[self] = number

    @property
    def is_over(self) -> bool:
        """It waits no longer, and is perhaps still entered at some of its partitions."""
        return self._retry is _is_over

    @property
    def is_entered(self) -> bool:
        return bool(self._partitions)

    def woken(self, partitions: "Sequence[Partition]") -> None:
        if self.is_over:
            return
        self.woken_by.update(partitions)
        if not self._gather_seconds:
            self._waits.stand_in_line(self)
        elif self._due is None:
            self._due = self._waits.loop.call_later(self._gather_seconds, self._gathered)

    def _gathered(self) -> None:
        self._waits.stand_in_line(self)

    def _end_soon(self) -> None:
        """The deadline has come."""
        self.is_final = True
        self._waits.stand_in_line(self)

    def try_again(self) -> int:
        """Its turn in the line has come. How many rows that were."""
        rows = ROWS_PER_TRY + len(self.woken_by)
        self._due = None
        if self.is_final:
            self.end()
        elif self._retry(False):
            self.leave()
        self.woken_by.clear()
        return rows + self.size if self.is_over else rows

    def end(self) -> None:
        """The deadline has come, or the node stops: answer with whatever there is."""
        retry = self._retry
        self.leave()
        retry(True)

    def turn_away(self) -> None:
        """Others need the room."""
        turn_away = self._turn_away
        self.leave()
        turn_away()

    def leave(self) -> None:
        """Wait no longer."""
        if self.is_over:
            return
        self._retry = _is_over  # It knows the fetch, which knows this.
        self._turn_away = _stays
        self._timer.cancel()
        if self._due is not None:
            self._due.cancel()
        self.woken_by.clear()
        self._waits.left(self)

    def leave_partitions(self, count: int) -> int:
        """Be entered at up to `count` partitions less. At how many it was."""
        partitions = self._partitions
        count = min(count, len(partitions))
        for _ in range(count):
            fetches = partitions.pop().waiting_fetches
            fetches.pop(self, None)
            if not fetches:
                fetches.clear()  # What was emptied one by one keeps the memory of its largest size.
        return count


class FetchWaits:
    """Enters fetches and wakes them. `schedule` sees to it that `serve` is called."""

    def __init__(self, schedule: Callable[[], None], partitions_max: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.waiting: dict[WaitingFetch, None] = {}
        self.is_ended = False
        """The node stops: whoever is tried now has to answer."""
        self.partitions = 0
        """Those that are counted, of all fetches that wait."""
        self.turned_away_total = 0
        self._schedule = schedule
        self._partitions_max = partitions_max
        self._counted: Counter[str] = Counter()
        """The same by address."""
        self._long: dict[str, dict[WaitingFetch, None]] = {}
        """Whose partitions are counted, by address, oldest first."""
        self._woken: OrderedDict[Partition, None] = OrderedDict()
        self._lines: tuple[deque[WaitingFetch], deque[WaitingFetch]] = (deque(), deque())
        """Who is due to be tried: fetches of few partitions, and of many."""
        self._leaving: deque[WaitingFetch] = deque()
        self._is_serving = False
        self.rows_max = 0
        """The most rows of one line that were served in one turn so far."""

    # --- who waits -------------------------------------------------------------------------------------------

    def make_room(self, partitions: int, address: str) -> bool:
        """Whether a fetch of so many partitions may wait, once those of addresses with more were turned away."""
        counted = _counted(partitions)
        while counted and self.partitions + counted > self._partitions_max:
            largest = max(self._counted, key=self._counted.__getitem__, default=address)
            if self._counted[address] + counted >= self._counted[largest]:
                self.turned_away_total += 1
                return False
            self.turned_away_total += 1
            next(reversed(self._long[largest])).turn_away()
        return True

    def wait(
        self,
        retry: Callable[[bool], bool],
        places: "Sequence[Partition | None]",
        wait_ms: int,
        address: str = "",
        turn_away: Callable[[], None] = _stays,
    ) -> WaitingFetch:
        fetch = WaitingFetch(self, retry, places, wait_ms, address, turn_away)
        self.waiting[fetch] = None
        if counted := _counted(fetch.size):
            self.partitions += counted
            self._counted[address] += counted
            self._long.setdefault(address, {})[fetch] = None
        return fetch

    def left(self, fetch: WaitingFetch) -> None:
        """It waits no longer. Where many clients leave at once, that takes more than a turn."""
        del self.waiting[fetch]
        if counted := _counted(fetch.size):
            self.partitions -= counted
            self._counted[fetch.address] -= counted
            del self._long[fetch.address][fetch]
            if not self._long[fetch.address]:
                del self._long[fetch.address], self._counted[fetch.address]
        if self._is_serving or fetch.size <= FREE_PARTITIONS:
            fetch.leave_partitions(fetch.size)
        else:
            self._leaving.append(fetch)
            self._schedule()

    def end_all(self) -> None:
        """The node stops: nobody waits for bytes that will not come."""
        self.is_ended = True
        for fetch in list(self.waiting):
            fetch.end()

    # --- who is due ------------------------------------------------------------------------------------------

    def wake(self, partitions: "Iterable[Partition]") -> None:
        """These have news."""
        self._woken.update(dict.fromkeys(partitions))
        self._schedule()

    def stand_in_line(self, fetch: WaitingFetch) -> None:
        if not fetch.is_in_line:
            fetch.is_in_line = True
            self._lines[fetch.size > FREE_PARTITIONS].append(fetch)
            self._schedule()

    @property
    def is_behind(self) -> bool:
        return bool(self._woken or self._lines[0] or self._lines[1] or self._leaving)

    def serve(self) -> None:
        """One turn: tell who is woken, try those in line, and let go of those who left."""
        self._is_serving = True
        try:
            self._tell_woken()
            for line in self._lines:
                rows = 0
                while line and rows < ROWS_PER_TURN:
                    fetch = line.popleft()
                    fetch.is_in_line = False
                    if not fetch.is_over:
                        rows += fetch.try_again()
                self.rows_max = max(self.rows_max, rows)
            left = 0
            while self._leaving and left < LEAVES_PER_TURN:
                fetch = self._leaving[0]
                left += fetch.leave_partitions(LEAVES_PER_TURN - left)
                if not fetch.is_entered:
                    self._leaving.popleft()
        finally:
            self._is_serving = False

    def _tell_woken(self) -> None:
        told = 0
        while self._woken and told < WAKES_PER_TURN:
            partition, _ = self._woken.popitem(last=False)
            told += 1 + len(partition.waiting_fetches)
            by = (partition,)
            for fetch in partition.waiting_fetches:
                fetch.woken(by)


def _counted(partitions: int) -> int:
    return max(0, partitions - FREE_PARTITIONS)
