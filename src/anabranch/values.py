"""The small numbers and names that every room shares, each with its own type so that they are not mixed.

An *offset* counts records. Wrap once at the edge (a decoded request, a file name);
from there on the type checker keeps them apart. This module imports nothing of ours.
"""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
"""Which record of a partition: 0 is the first ever written."""

Generation = NewType("Generation", int)
"""Which leadership of a partition; Kafka calls it the leader epoch."""

BrokerId = NewType("BrokerId", int)

LANE_BITS = 32
"""In mode branch every reign gives offsets out of a lane of its own, of so many bits (`modes/branch/rows.py`)."""


def is_other_lane(offset: int, other: int) -> bool:
    """Whether two offsets are of different lanes: between them may lie billions that no record has."""
    return offset >> LANE_BITS != other >> LANE_BITS


def is_lane_gap(end: int, start: int) -> bool:
    """Whether there is nothing between records that end before `end` and those from `start` on because the lane has
    changed; compaction leaves no such gap."""
    return end < start and is_other_lane(max(0, end - 1), start)


def was_in_branches(bases: Iterable[int]) -> bool:
    """Whether a partition whose segments begin there has, or had, more than one lane: there may be gaps then where a
    batch had come twice, as in a lane's own folder."""
    return any(base >> LANE_BITS for base in bases)


class TopicPartition(NamedTuple):
    """One partition of one topic; its folder on disk is named by `folder`."""

    topic: str
    partition: int

    @property
    def folder(self) -> str:
        return f"{self.topic}-{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class SegmentState(Enum):
    """The life of a segment, in order. The last two belong to object mode."""

    RECOVERING = "recovering"
    ACTIVE = "active"
    SEALED = "sealed"
    FLUSHING = "flushing"
    FLUSHED = "flushed"
