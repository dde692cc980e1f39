"""What a replica of a ring is doing: leading, wanting to lead, or copying somebody's log."""

from collections import deque
from dataclasses import dataclass, field

from anabranch.modes.generations import Generations
from anabranch.modes.ring.messages import NOTHING, Promise, ReturnId
from anabranch.values import BrokerId, Generation, Offset


@dataclass(slots=True)
class Follower:
    """How a leader sees one of the others."""

    next: Offset | None = None
    """What to push next; None: it has not said yet."""
    under_way: deque[Offset] = field(default_factory=deque)
    """Where pushes end that it has not answered, oldest first."""
    moved_ms: int = 0
    """When it last answered one, or began to have any."""
    equal_end: Offset = NOTHING
    has_entered: bool = False
    is_trusted: bool = False
    counts: bool = False
    is_close: bool = False
    """It has all that was safe at the last beat."""
    heard_ms: int = 0

    def begin_again(self, start: Offset | None) -> None:
        """Nothing is under way any more."""
        self.next = start
        self.under_way.clear()

    def answered(self, end: Offset, now_ms: int) -> None:
        while self.under_way and self.under_way[0] <= end:
            self.under_way.popleft()
            self.moved_ms = now_ms
        if self.next is None or self.next < end:
            self.next = end


@dataclass(slots=True)
class Candidate:
    generation: Generation
    returns: dict[BrokerId, ReturnId]
    since_ms: int
    promises: dict[BrokerId, Promise] = field(default_factory=dict)


@dataclass(slots=True)
class Copying:
    """Making our log equal to another's, up to its end: a candidate of the best log, a follower of its leader's."""

    source: BrokerId
    table: Generations
    end: Offset | None
    """None: for as long as it leads."""


@dataclass(slots=True)
class Leader:
    generation: Generation
    start: Offset
    since_ms: int
    returns: dict[BrokerId, ReturnId]
    followers: dict[BrokerId, Follower]
    beaten_ms: int = 0
    safe_at_beat: Offset = NOTHING
    closing_ms: int | None = None
    """Since when nobody may write, because the view is to end."""
    opened_ms: int = 0
    """When writers were last let in again, since it did not."""
    sealed_by: set[BrokerId] = field(default_factory=set)
