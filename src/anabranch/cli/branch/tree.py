"""The tree of a partition's branches, for people: the newest first, as `git log --graph` shows commits.

A node is a *stretch*: a part of a lane between two places where something goes on from it. So a split shows as two
columns, a heal as two that meet, and the drawing says which records are in the line that is served now (`*`) and which
lie beside it (`o`). Branches in which nothing was written are left out, unless one is written to now.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from anabranch.cli.branch.facts import PartitionFacts
from anabranch.cli.branch.graph import graph
from anabranch.modes.branch.history import records_between
from anabranch.modes.branch.lines import Branches, Line, Span, UnknownBranchError
from anabranch.modes.branch.rows import NO_LANE, BranchRow, Lane, RowKind, Tip
from anabranch.values import Offset

IN_LINE = "*"
BESIDE = "o"


class Stretch(NamedTuple):
    """Offsets [start, end) of a lane; `is_first`: the lane begins here, `is_last`: it ends here, as far as is known."""

    lane: Lane
    start: Offset
    end: Offset
    is_first: bool
    is_last: bool


# --- nodes -----------------------------------------------------------------------------------------------------------


class Tree:
    """The stretches of a partition, newest first, each with those it goes on from."""

    def __init__(self, facts: PartitionFacts) -> None:
        self._branches: Branches = facts.branches
        left = _left(facts.branches)
        self._by_lane = {
            lane: list(_stretches(facts, lane, left.get(lane, set())))
            for lane in sorted(facts.branches.opened, reverse=True)
        }
        self.parents: dict[Stretch, list[Stretch]] = {
            stretch: self._parents(stretch) for found in self._by_lane.values() for stretch in reversed(found)
        }

    def _parents(self, stretch: Stretch) -> list[Stretch]:
        if not stretch.is_first:
            return [each for each in self._by_lane[stretch.lane] if each.end == stretch.start][:1]
        row = self._branches.opened[stretch.lane]
        named = [self._at(tip) for tip in (Tip(row.old, row.old_end), *row.inputs)]
        there = list(dict.fromkeys(each for each in named if each is not None))
        return [
            each
            for each in there
            if not any(self._is_before(each, other) for other in there if other != each)
        ]

    def _at(self, tip: Tip) -> Stretch | None:
        """The stretch that ends there. Where nothing was written before, what that went on from."""
        lane, end = tip
        while lane != NO_LANE:
            below = [each for each in self._by_lane.get(lane, ()) if each.start < end]
            if below:
                return below[-1]
            row = self._branches.opened.get(lane)
            if row is None:
                return None
            lane, end = row.old, row.old_end
        return None

    def _is_before(self, one: Stretch, other: Stretch) -> bool:
        """Whether the line of the other goes through the one."""
        try:
            line = self._branches.line(Tip(other.lane, other.end))
        except UnknownBranchError:
            return False
        return any(span.lane == one.lane and one.end <= span.end for span in line)


def _stretches(facts: PartitionFacts, lane: Lane, left: set[Offset]) -> Iterator[Stretch]:
    """Of one lane, in the order of offsets. `left`: where others go on from it."""
    start, end = facts.branches.opened[lane].new_start, facts.ends[lane]
    if start == end and facts.writer_of(lane) is not None:
        yield Stretch(lane, start, end, is_first=True, is_last=True)
        return
    edges = [start, *sorted(each for each in left if start < each < end), end]
    for begins, ends in pairwise(edges):
        if begins < ends:
            yield Stretch(lane, begins, ends, begins == start, ends == end)


def _left(branches: Branches) -> dict[Lane, set[Offset]]:
    """Where branches go on from others, or took them in."""
    left: dict[Lane, set[Offset]] = {}
    for row in branches.opened.values():
        for lane, end in (Tip(row.old, row.old_end), *row.inputs):
            left.setdefault(lane, set()).add(end)
    return left


# --- text ------------------------------------------------------------------------------------------------------------


class Drawn(NamedTuple):
    """One printed row."""

    drawing: str
    stretch: Stretch | None
    note: str


def drawn(facts: PartitionFacts) -> Iterator[Drawn]:
    """The rows of the tree; what a branch joined stands beside the lines under it."""
    tree = Tree(facts)
    marks = {each: IN_LINE if is_served(facts, each) else BESIDE for each in tree.parents}
    notes: list[str] = []
    for drawing, node in graph(tree.parents, marks):
        if node is None:
            yield Drawn(drawing, None, notes.pop(0) if notes else "")
            continue
        for note in notes:  # There was no line to put it beside.
            yield Drawn("|", None, note)
        notes = _notes(facts.line, facts.branches.opened[node.lane]) if node.is_first else []
        yield Drawn(drawing, node, "")
    for note in notes:
        yield Drawn("", None, note)


def _notes(line: Line, row: BranchRow) -> list[str]:
    if not row.inputs:
        return []
    lanes = sorted({tip.lane for tip in row.inputs} | ({row.old} - {NO_LANE}))
    count = sum(source.end - source.start for source in row.sources)
    if any(
        span.lane == row.new for span in line
    ):  # There it is known which of them were left out as repeats.
        count = records_between(line, row.new_start, row.sources_end)
    again = f"{count} record{'' if count == 1 else 's'} written again" if count else "nothing written again"
    return [f"joins {_listed(lanes)}: {again}"]


def _listed(lanes: Iterable[Lane]) -> str:
    names = [str(lane) for lane in lanes]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def is_served(facts: PartitionFacts, stretch: Stretch) -> bool:
    """In the line of the first side, or where that goes on."""
    is_next = bool(facts.sides) and stretch.start == stretch.end and stretch.lane == facts.sides[0].lane
    return is_next or _is_in(facts.line, stretch)


def _is_in(line: Line, stretch: Stretch) -> bool:
    return any(span.lane == stretch.lane and stretch.start < span.end for span in line)


def records_of(facts: PartitionFacts, stretch: Stretch) -> int:
    """Those that are left of it; in the line that is served, those that can be read."""
    if stretch.start < stretch.end and _is_in(facts.line, stretch):
        return records_between(facts.line, stretch.start, stretch.end)
    span = Span(stretch.lane, stretch.start, stretch.end)
    removed = facts.branches.removed_below((span,)).get(stretch.lane, stretch.start)
    return records_between((span,), removed, stretch.end)


def state_of(facts: PartitionFacts, stretch: Stretch) -> str:
    """What becomes of the branch."""
    if facts.writer_of(stretch.lane) is not None:
        return "written" if stretch.is_last else ""
    if not stretch.is_last:
        return ""
    if stretch.lane in facts.branches.sealed:
        return "sealed"
    rows = facts.branches.opened.values()
    is_over = any((stretch.lane, stretch.end) in ((row.old, row.old_end), *row.inputs) for row in rows)
    return "ended" if is_over else "open"


def opened_ms(facts: PartitionFacts, lane: Lane) -> int:
    return facts.branches.opened[lane].time_ms


def sealed_ms(facts: PartitionFacts, lane: Lane) -> int:
    times = [row.time_ms for row in facts.rows if row.kind is RowKind.SEALED and row.new == lane]
    return min(times, default=0)


def moment(time_ms: int) -> str:
    """By the clock of whoever looks."""
    return datetime.fromtimestamp(time_ms / 1000).strftime("%Y-%m-%d %H:%M:%S") if time_ms else ""
