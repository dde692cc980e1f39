"""Who does what with a partition in mode branch, as far as one broker can see: who of its view is primary, who keeps
copies, what is to be done next, and what is safe.

Everybody decides by what it knows. Two who do not see each other may both be primary: that is a split, and what each
writes is kept apart by lanes. So nothing here has to be right for records to be safe; only `may_adopt` has to.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from anabranch.modes.branch.lines import Branches, Span, UnknownBranchError, behind, common_part
from anabranch.modes.branch.rows import FIRST_LANE, NO_LANE, Lane, Tip, next_lane
from anabranch.values import BrokerId, Offset


class Rank(NamedTuple):
    """The greatest of a view is primary."""

    stays: bool
    """It neither leaves nor is short of room."""
    is_placed: bool
    """It was chosen for its room, and nobody after it."""
    drawn: int
    """By the rendezvous hash."""
    broker: BrokerId


class Head(NamedTuple):
    """Where a broker's line ends, as it has said itself."""

    tip: Tip
    reign: Lane
    """The lane that it appends to; NO_LANE: none."""
    safe: Offset
    """Below this the records of its line are safe."""
    view: int = 0
    """Of which time in branches it is: one of a time before is nobody's any more."""


class Step(Enum):
    NOTHING = 0
    REIGN = 1
    """Become primary, and take in whatever is not in this line yet."""
    FOLLOW = 2
    """Another is primary."""


def in_order(ranks: Iterable[Rank]) -> list[BrokerId]:
    """The primary first, then who keeps copies."""
    return [rank.broker for rank in sorted(ranks, reverse=True)]


def copies_of(order: Sequence[BrokerId], primary: BrokerId, count: int) -> list[BrokerId]:
    """Who of a view is to keep a partition: whoever is primary, and the next ones."""
    return [primary, *(broker for broker in order if broker != primary)][: max(1, count)]


def next_step(
    me: BrokerId,
    primary: BrokerId,
    mine: Head,
    others: Collection[Head],
    branches: Branches,
    *,
    is_stable: bool,
) -> Step:
    """`others`: of the brokers in view. Before the view has been the same for a while nobody begins anything: a lost
    packet is no split."""
    if primary != me:
        return Step.FOLLOW
    if not is_stable:
        return Step.NOTHING
    if mine.reign == NO_LANE or needs_merge(mine, others, branches):
        return Step.REIGN
    return Step.NOTHING


def needs_merge(mine: Head, others: Iterable[Head], branches: Branches) -> bool:
    """Whether one of the others has what is not in my line, or goes on writing beside it."""
    return any(
        other.reign != NO_LANE or not is_behind_or_unknown(branches, mine.tip, other.tip) for other in others
    )


def is_behind_or_unknown(branches: Branches, tip: Tip, other: Tip) -> bool:
    """Whose rows have not come yet is looked at when they have."""
    try:
        return branches.is_behind(tip, other)
    except UnknownBranchError:
        return True


Held = Callable[[Span], bool]
"""Whether all bytes of a span are here, and synced."""


def may_adopt(branches: Branches, new: Tip, old: Tip, is_held: Held) -> bool:
    """Whether a broker whose line ends at `old` may take over the one that ends at `new`: all that it had must be in
    it, and what was written again elsewhere must be here.

    Raises UnknownBranchError.
    """
    return branches.is_behind(new, old) and all(is_held(span) for span in must_hold(branches, new, old))


def must_hold(branches: Branches, new: Tip, old: Tip) -> list[Span]:
    """What has to be here before the line that ends at `new` takes the place of the one that ends at `old`: what the
    last branch begins with; and all that is in the place of what this broker had. What was only ever written behind
    its own records may come later. Raises UnknownBranchError."""
    new_line, old_line = branches.line(new), branches.line(old)
    common = common_part(new_line, old_line)
    last = new_line[-1]
    begins_with = Span(last.lane, last.start, branches.opened[last.lane].sources_end)
    if common == old_line:
        return [begins_with]
    return [*(span for span in behind(new_line, common) if span.lane != last.lane), begins_with]


class Keeping(NamedTuple):
    """How well one keeps up that is to keep a copy of the present reign's lane."""

    equal_ms: int
    """Of this time it has everything; or it was asked to follow then."""
    mark_end: Offset
    mark_ms: int
    """Where the lane ended the last time that it had reached such a mark, and when that was."""


def begun(own_end: Offset, now_ms: int) -> Keeping:
    return Keeping(now_ms, own_end, now_ms)


def kept_up(keeping: Keeping, end: Offset, own_end: Offset, now_ms: int) -> Keeping:
    """It has everything below `end`, synced."""
    if end < keeping.mark_end:
        return keeping
    return Keeping(now_ms if end >= own_end else keeping.mark_ms, own_end, now_ms)


def is_late(keeping: Keeping, now_ms: int, lag_ms_max: int) -> bool:
    return now_ms - keeping.equal_ms > lag_ms_max


def lane_of_reign(slot: int, known: Iterable[Lane], *, is_first: bool) -> Lane:
    """A lane that nobody ever had: above all that are known, and of this broker's slot. The first lane of all is the
    first primary's, whatever its slot, so nobody else takes it for want of knowing better."""
    highest = max(known, default=NO_LANE)
    if is_first and highest == NO_LANE:
        return FIRST_LANE
    return next_lane(slot, max(highest, FIRST_LANE))
