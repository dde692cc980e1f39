"""BranchSeat: one partition in mode branch among peers, with what this broker remembers of it besides its records.

At most one thing is under way at a time (`task`): becoming primary, or following another one.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from anabranch.broker.branch.lanes.reads import Growth
from anabranch.cluster.metadata.rows import NO_MOVE
from anabranch.cluster.rendezvous import drawn
from anabranch.modes.branch.lines import Span
from anabranch.modes.branch.roles import Head, Keeping, begun, is_late, kept_up
from anabranch.modes.branch.rows import NO_LANE, Lane, Tip
from anabranch.values import BrokerId, Offset

if TYPE_CHECKING:
    from anabranch.broker.branch.heads import Key
    from anabranch.broker.branch.partition import BranchPartition

LAG_MS_MAX = 10_000
"""A copy that is behind for longer is not waited for."""
PUT_OFF_MS = 5000


class BranchSeat:
    def __init__(self, partition: "BranchPartition") -> None:
        self.partition = partition
        self.growth = Growth()
        self.making = asyncio.Lock()
        """Held while a lane is made here to copy to."""
        self.looked_at: object = None
        """What there was to see when nothing had to be done."""
        self._drawn: dict[BrokerId, int] = {}
        self.task: asyncio.Task[None] | None = None
        self.follows: BrokerId | None = None
        """Whom the task follows; None: there is none, or it is about becoming primary."""
        self.backfill: asyncio.Task[None] | None = None
        self.quiet_until_ms = 0
        """Another broker has ended the reign here, and is about to begin its own: leave it the time."""
        self.is_unwelcome = False
        """The same, said while this broker was becoming primary itself."""
        self.waits_since_ms: int | None = None
        """Since when it would be primary, and lets the present one go on until it has caught up with it."""
        self.lacks_since_ms: int | None = None
        """Since when it is about to go on behind records that others have and it could not get."""
        self.heard: Tip | None = None
        """Up to where the line of the last primary was safe, as that said itself."""
        self.coordinates_in: Lane | None = None
        """Of the log of committed offsets: in which reign its groups are coordinated here."""
        self.decided: tuple[int, int] | None = None
        """The last decision on how it comes out of branches that was heard of, and when that was."""
        self.closes: int | None = None
        """Under which decision this broker closes it now: so long its own promise does not bind it."""
        self.asked_under = partition.promise.move if partition.promise is not None else NO_MOVE
        """Under which decision it has asked for the end; an earlier process of this broker may have."""
        self.close_again_ms = 0
        self.waits_because = ""
        """Why it has not come out of branches yet."""
        self.keeping: dict[BrokerId, Keeping] = {}
        self._put_off: dict[Tip | Lane, int] = {}

    @property
    def key(self) -> "Key":
        return self.partition.key

    def drawn(self, broker: BrokerId) -> int:
        """The number that a broker draws for this partition."""
        if broker not in self._drawn:
            self._drawn[broker] = drawn(*self.key, broker)
        return self._drawn[broker]

    def has_put_off(self, now_ms: int) -> bool:
        return any(until_ms > now_ms for until_ms in self._put_off.values())

    @property
    def head(self) -> Head:
        partition, view = self.partition, self.partition.view
        reign = NO_LANE if partition.reign is None else partition.reign
        tip = Tip(view.lane, view.end_offset)
        return Head(tip, reign, partition.high_watermark, partition.branched_view)

    @property
    def is_busy(self) -> bool:
        return self.task is not None and not self.task.done()

    @property
    def is_becoming(self) -> bool:
        return self.is_busy and self.follows is None

    def is_held(self, span: Span) -> bool:
        """All bytes of a span are here, and synced."""
        if span.start >= span.end:
            return True
        log = self.partition.lanes.get(span.lane)
        if log is None:
            return False
        start = max(span.start, self.removed(span.lane))
        return log.start_offset <= start and min(log.synced_offset, log.end_offset) >= span.end

    def removed(self, lane: Lane) -> Offset:
        """Below this nothing of a lane is wanted any more, whether or not the present line goes through it."""
        return self.partition.branches.removed.get(lane, Offset(0))

    def put_off(self, tip: Tip, now_ms: int) -> None:
        """Some records of that line are nowhere in view: others may bring them."""
        self._leave_for_later(tip, now_ms)

    def took_in(self, tip: Tip, now_ms: int) -> None:
        """If that lane goes on growing, somebody writes to it who is not in view, and is copied by one who is: there
        would be a merge for every record."""
        self._leave_for_later(tip.lane, now_ms)

    def sees(self, heads: Iterable[Head]) -> None:
        """Who writes to a lane that was taken in, and is in view now, can be told to stop: then the rest is taken in at
        once, for as long as two reign their copies cannot follow both."""
        sealed = self.partition.branches.sealed
        writing = {head.reign for head in heads}
        for what in [each for each in self._put_off if each in writing or each in sealed]:
            del self._put_off[what]

    def _leave_for_later(self, what: Tip | Lane, now_ms: int) -> None:
        self._put_off = {each: until_ms for each, until_ms in self._put_off.items() if until_ms > now_ms}
        self._put_off[what] = now_ms + PUT_OFF_MS

    def is_put_off(self, tip: Tip, now_ms: int) -> bool:
        return max(self._put_off.get(tip, now_ms), self._put_off.get(tip.lane, now_ms)) > now_ms

    # --- copies of a reign ---------------------------------------------------------------------------------------

    def ask_copies(self, brokers: Iterable[BrokerId], now_ms: int) -> None:
        """These are to have a record before it is safe, unless they are too far behind."""
        end = self.partition.log.end_offset
        self.keeping = {broker: self.keeping.get(broker) or begun(end, now_ms) for broker in brokers}
        self.count_copies(now_ms)

    def count_copies(self, now_ms: int) -> None:
        counted = [broker for broker, each in self.keeping.items() if not is_late(each, now_ms, LAG_MS_MAX)]
        if set(counted) != self.partition.mode.copies.keys():
            self.partition.count_copies(counted)

    def copied(self, broker: BrokerId, end: Offset, now_ms: int) -> None:
        """One of them has the lane of this reign up to there on its disk."""
        keeping = self.keeping.get(broker)
        if keeping is not None:
            self.keeping[broker] = kept_up(keeping, end, self.partition.log.end_offset, now_ms)
            self.count_copies(now_ms)
            self.partition.copy_synced(broker, end)
