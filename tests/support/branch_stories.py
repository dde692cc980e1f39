"""Histories of branches as rows, for tests of what is said of them."""

from uuid import UUID

from anabranch.modes.branch.rows import (
    NOWHERE,
    BranchRow,
    Lane,
    Source,
    Tip,
    first_offset,
    opened,
    sealed,
    started,
)
from anabranch.values import Offset

TOPIC_ID = UUID(int=7)
KEY = TOPIC_ID, 0
FIRST, OTHER, JOINED, SPLIT = Lane(0), Lane(5), Lane(1030), Lane(2053)


def at(lane: int, number: int = 0) -> Offset:
    """The offset of that number in a lane."""
    return Offset(first_offset(Lane(lane)) + number)


def split_and_healed() -> list[BranchRow]:
    """Both sides went on behind 80 records, one with 20, the other with 60 in a lane of its own; then they were joined,
    and the 20 written again."""
    ends = Tip(OTHER, at(OTHER, 60)), Tip(FIRST, Offset(100))
    again = Source(FIRST, Offset(80), Offset(100), at(JOINED))
    return [
        opened(KEY, NOWHERE, FIRST, time_ms=1_000),
        opened(KEY, Tip(FIRST, Offset(80)), OTHER, time_ms=2_000),
        sealed(KEY, ends[1], time_ms=3_000),
        sealed(KEY, ends[0], time_ms=3_001),
        opened(KEY, ends[0], JOINED, sources=(again,), inputs=ends, time_ms=4_000),
    ]


def split_again() -> list[BranchRow]:
    """And later another side went on from the 44th record of the joined branch."""
    return [*split_and_healed(), opened(KEY, Tip(JOINED, at(JOINED, 44)), SPLIT, time_ms=5_000)]


def removed_up_to(number: int) -> BranchRow:
    return started(KEY, JOINED, Offset(number), time_ms=6_000)
