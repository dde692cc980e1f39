"""Who does what with a partition in mode branch, as far as one broker can see: who of its view is primary, who keeps
copies, what is to be done next, and what is safe.

Everybody decides by what it knows. Two who do not see each other may both be primary: that is a split, and what each
writes is kept apart by lanes. So nothing here has to be right for records to be safe; only `may_adopt` has to.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from anabranch.replication.branch_lines import Branches, Span, UnknownBranchError, behind, common_part
from anabranch.replication.branch_rows import NO_LANE, Lane, Tip
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
    it, and if some of that was written again elsewhere, then it must be here again as well.

    Raises UnknownBranchError.
    """
    if not branches.is_behind(new, old):
        return False
    new_line, old_line = branches.line(new), branches.line(old)
    common = common_part(new_line, old_line)
    if common == old_line:
        return True
    rest = behind(new_line, common)
    return bool(rest) and all(is_held(span) for span in must_hold(branches, rest))


def must_hold(branches: Branches, spans: Iterable[Span]) -> list[Span]:
    """Of what was appended behind the records that were written again, the tip's lane may lack something."""
    *before, last = spans
    sources_end = branches.opened[last.lane].sources_end
    return [*before, Span(last.lane, last.start, max(last.start, min(last.end, sources_end)))]


class Follower(NamedTuple):
    """One that is to keep a copy of the present reign's lane."""

    end: Offset
    """What it said to have, synced."""
    equal_ms: int
    """When it had everything last, or was asked to follow."""


def safe_end(own: Offset, followers: Mapping[BrokerId, Follower], now_ms: int, lag_ms_max: int) -> Offset:
    """Records of the reign's lane below this are on every asked copy that keeps up."""
    return Offset(
        min([own, *(each.end for each in followers.values() if not is_late(each, now_ms, lag_ms_max))])
    )


def is_late(follower: Follower, now_ms: int, lag_ms_max: int) -> bool:
    return now_ms - follower.equal_ms > lag_ms_max
