"""Lanes, and the rows of the branch log (seed 003's branch tube).

Every reign of a primary writes into a *lane* of its own: offset = lane << 32 | n. A lane is written once, by one
broker, from its first offset on, and never again after that reign; so an offset never names two records, whatever the
network did. Which broker a lane belongs to follows from its number: lane % 1024 is that broker's slot. A *branch* is
known by its lane.

A row says how a branch came to be: `new` goes on from the branch `old`, below `old_end`, with `new_start`. That is
enough to know the whole line of records behind any branch: its own lane, behind its parent's line up to where it left
that. A branch that joins two others says so in the same row: `sources` are the records it begins with, which others had
written elsewhere, and `inputs` the ends of the lines that it took in. Other rows say of a branch that nothing is
appended to it any more, or what of its line was removed.

Rows are plain facts that never change, so the same rows make the same lines everywhere, in whatever order they come.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple, NewType
from uuid import UUID

from anabranch.errors import CorruptDataError
from anabranch.values import LANE_BITS, Offset

Lane = NewType("Lane", int)

SLOTS = 1024
NO_LANE = Lane(-1)
"""What the first branch of a partition goes on from."""
FIRST_LANE = Lane(0)
"""Of the first primary, whatever its slot: so the offsets of a partition begin with 0."""


def lane_of(offset: int) -> Lane:
    return Lane(offset >> LANE_BITS)


def first_offset(lane: Lane) -> Offset:
    return Offset(lane << LANE_BITS)


def lane_limit(lane: Lane) -> Offset:
    """Every offset of the lane lies below this."""
    return Offset((lane + 1) << LANE_BITS)


def next_lane(slot: int, above: Lane) -> Lane:
    """The least lane of this slot above another."""
    return Lane(above + 1 + (slot - above - 1) % SLOTS)


def slot_of(lane: Lane) -> int:
    return lane % SLOTS


class RowKind(IntEnum):
    OPENED = 0
    """`new` was opened; its `sources` are in it, and synced where it was opened."""
    SEALED = 1
    """Nothing is appended to `new` any more; it ends at `old_end`."""
    STARTED = 2
    """What lies below `new_start` in the line of `new` was removed: by retention, or by somebody's wish."""
    PLACED = 3
    """The broker with slot `new` is to be primary as long as it is there: it has the most room. `old` and `old_end` are
    where the line ended then; of several the one with the greatest end counts."""


class Source(NamedTuple):
    """Records that were written to another branch first: [start, end) of lane `lane` are found again from `new_start`
    on. Gaps between them are kept, so that one number turns each old offset into its new one."""

    lane: Lane
    start: Offset
    end: Offset
    new_start: Offset

    @property
    def new_end(self) -> Offset:
        return Offset(self.new_start + self.end - self.start)


class Tip(NamedTuple):
    """Where a line ends: in this lane, before this offset."""

    lane: Lane
    end: Offset


NOWHERE = Tip(NO_LANE, Offset(0))
"""The tip of a line without records, before any branch was opened."""


class BranchRow(NamedTuple):
    topic_id: UUID
    partition: int
    kind: RowKind
    old: Lane
    new: Lane
    old_end: Offset
    new_start: Offset
    sources: tuple[Source, ...] = ()
    inputs: tuple[Tip, ...] = ()
    time_ms: int = 0
    """When, by the clock of whoever wrote it: for people only."""

    @property
    def key(self) -> tuple[UUID, int]:
        return self.topic_id, self.partition

    @property
    def sources_end(self) -> Offset:
        """The end of what an opened branch begins with."""
        return self.sources[-1].new_end if self.sources else self.new_start

    @property
    def seams(self) -> Iterator[Offset]:
        """Where in a branch begins what was written elsewhere first, piece by piece, and its own."""
        for source in self.sources:
            yield source.new_start
            yield source.new_end


def opened(
    key: tuple[UUID, int],
    parent: Tip,
    lane: Lane,
    *,
    start: Offset | None = None,
    sources: tuple[Source, ...] = (),
    inputs: tuple[Tip, ...] = (),
    time_ms: int = 0,
) -> BranchRow:
    """`start`: of a lane that does not begin with its first offset."""
    begins = first_offset(lane) if start is None else start
    return BranchRow(*key, RowKind.OPENED, parent.lane, lane, parent.end, begins, sources, inputs, time_ms)


def sealed(key: tuple[UUID, int], tip: Tip, time_ms: int = 0) -> BranchRow:
    return BranchRow(
        *key, RowKind.SEALED, tip.lane, tip.lane, tip.end, first_offset(tip.lane), time_ms=time_ms
    )


def started(key: tuple[UUID, int], lane: Lane, start: Offset, time_ms: int = 0) -> BranchRow:
    return BranchRow(*key, RowKind.STARTED, lane, lane, start, start, time_ms=time_ms)


def placed(key: tuple[UUID, int], tip: Tip, slot: int, time_ms: int = 0) -> BranchRow:
    return BranchRow(*key, RowKind.PLACED, tip.lane, Lane(slot), tip.end, tip.end, time_ms=time_ms)


# --- as JSON, in the branch log and between brokers ------------------------------------------------------------------


def to_json(row: BranchRow) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "topic": row.topic_id.hex,
        "partition": row.partition,
        "kind": row.kind.name.lower(),
        "old": row.old,
        "new": row.new,
        "old_end": row.old_end,
        "new_start": row.new_start,
        "time": row.time_ms,
    }
    if row.sources:
        entry["sources"] = [list(source) for source in row.sources]
    if row.inputs:
        entry["inputs"] = [list(tip) for tip in row.inputs]
    return entry


def from_json(entry: Any) -> BranchRow:
    """Raises CorruptDataError."""
    try:
        return BranchRow(
            UUID(hex=entry["topic"]),
            int(entry["partition"]),
            RowKind[entry["kind"].upper()],
            Lane(int(entry["old"])),
            Lane(int(entry["new"])),
            Offset(int(entry["old_end"])),
            Offset(int(entry["new_start"])),
            tuple(Source(*map(int, each)) for each in entry.get("sources", ())),  # type: ignore[arg-type]
            tuple(Tip(*map(int, each)) for each in entry.get("inputs", ())),  # type: ignore[arg-type]
            int(entry.get("time", 0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDataError(f"A row of the branch log does not fit: {error!r}.") from error
