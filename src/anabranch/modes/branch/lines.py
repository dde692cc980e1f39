"""Lines of records behind branches: what all known rows of one partition say, and how two lines become one.

A line is a row of *spans*, one for each lane it goes through, in the order of their numbers; each begins where its lane
begins. Two lines are equal as far as their spans are: what was removed or compacted on one side does not matter.

Joining two lines (`merge`), by the rules that models/lanes.py has checked: both keep what they have in common. Of the
rest, the tail of the winner, which is the line with the greater end, stays where it is if all of it lies above the
loser's last lane, else none of it. Everything else is written again, in the old order, into a new lane above both.
So whoever read either line, and goes on with the joined one from where it is, misses nothing; and nobody who begins
anew sees a record twice, because a record that was written again is known by where it was first (`origins`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple

from anabranch.modes.branch.rows import (
    NO_LANE,
    NOWHERE,
    BranchRow,
    Lane,
    RowKind,
    Source,
    Tip,
    first_offset,
    lane_of,
)
from anabranch.values import Offset


class Span(NamedTuple):
    """Offsets [start, end) of one lane."""

    lane: Lane
    start: Offset
    end: Offset

    @property
    def count_max(self) -> int:
        return self.end - self.start


Line = tuple[Span, ...]


class UnknownBranchError(Exception):
    """A row is missing that another one goes on from: it has not come yet."""


class Branches:
    """The rows of one partition, as far as they are known here."""

    def __init__(self, rows: Iterable[BranchRow] = ()) -> None:
        self.opened: dict[Lane, BranchRow] = {}
        self.sealed: dict[Lane, Offset] = {}
        self._started: dict[Lane, Offset] = {}
        self._removed: dict[Lane, Offset] | None = None
        """What follows from these; None: rows have come since."""
        self._traced: dict[Lane, list[Moved]] = {}
        """Where the first records of lanes were before, as far as somebody has asked."""
        self._placed: BranchRow | None = None
        self.highest = NO_LANE
        self._first = NO_LANE
        for row in rows:
            self.add(row)

    def add(self, row: BranchRow) -> None:
        """To be told twice changes nothing."""
        self._removed = None
        match row.kind:
            case RowKind.OPENED:
                if row.new in self._traced and row.new not in self.opened:
                    self._traced.clear()  # It was asked for too early.
                self.opened.setdefault(row.new, row)
                self.highest = max(self.highest, row.new)
                if row.new_start < first_offset(row.new):
                    self._first = max(self._first, row.new)
            case RowKind.SEALED:
                self.sealed[row.new] = min(self.sealed.get(row.new, row.old_end), row.old_end)
            case RowKind.STARTED:
                self._started[row.new] = max(self._started.get(row.new, row.new_start), row.new_start)
            case RowKind.PLACED:
                if self._placed is None or _age(self._placed) < _age(row):
                    self._placed = row

    def is_earlier(self, lane: Lane) -> bool:
        """It is of an earlier time in branches. What came of that was kept in another way, and then became the first
        lane of all lines: all of it lies in there, under the numbers it had."""
        return lane < self._first

    def has(self, lane: Lane) -> bool:
        """There is such a branch now."""
        return lane in self.opened and not self.is_earlier(lane)

    def behind_first(self, tip: Tip) -> Tip:
        """A line of which some is not known here has at least what all lines began with: written again, that would have
        no room in another lane."""
        end = self.sealed.get(self._first)
        return Tip(self._first, end) if end is not None and tip.lane <= self._first else tip

    def lane_at(self, offset: Offset) -> Lane:
        """In which lane a record of this offset is: the first has the numbers of many."""
        return max(lane_of(offset), self._first)

    def tip_at(self, offset: Offset) -> Tip:
        """Where a line ends of which others say that it is safe below this. What all lines began with is safe."""
        lane = self.lane_at(offset)
        end = self.sealed.get(lane, offset) if lane == self._first else offset
        return Tip(lane, max(offset, end))

    @property
    def placed_slot(self) -> int | None:
        """Who was chosen for its room."""
        return None if self._placed is None else self._placed.new

    # --- lines ---------------------------------------------------------------------------------------------------

    def line(self, tip: Tip) -> Line:
        """Raises UnknownBranchError."""
        return tuple(reversed(self._back(tip)))

    def _back(self, tip: Tip, upto: Container[Lane] = ()) -> list[Span]:
        """A line from its end on, up to the first of these lanes. Raises UnknownBranchError."""
        spans: list[Span] = []
        lane, end = tip
        while lane != NO_LANE:
            row = self._row(lane)
            spans.append(Span(lane, row.new_start, end))
            if lane in upto:
                break
            lane, end = row.old, row.old_end
        return spans

    def _row(self, lane: Lane) -> BranchRow:
        row = self.opened.get(lane)
        if row is None:
            raise UnknownBranchError(f"No row says where branch {lane} comes from.")
        return row

    def removed_below(self, line: Line) -> dict[Lane, Offset]:
        """What of each lane was removed, in whichever line that was said; of a line that is not known yet nothing."""
        removed = self.removed
        return {span.lane: removed[span.lane] for span in line if span.lane in removed}

    @property
    def removed(self) -> Mapping[Lane, Offset]:
        """Below which offset nothing is left of a lane, of those that something was removed of."""
        if self._removed is None:
            self._removed = self._find_removed()
        return self._removed

    def _find_removed(self) -> dict[Lane, Offset]:
        removed: dict[Lane, Offset] = {}
        for lane, start in self._started.items():
            try:
                # Before a lane that was met already everything is removed already: lines part and never meet again.
                spans = self._back(Tip(lane, start), removed)
            except UnknownBranchError:
                continue
            for span in spans:
                if span.start < start:
                    removed[span.lane] = max(removed.get(span.lane, span.start), min(span.end, start))
        return removed

    def is_behind(self, tip: Tip, other: Tip) -> bool:
        """Whether all records of `other`'s line are in that of `tip`: it was a part of it, or was taken in. A lane has
        one line before it, so it is enough to find the lane that `other` ends in, and far enough. Raises
        UnknownBranchError."""
        if self.is_earlier(other.lane) and not self.is_earlier(tip.lane):
            return True
        self.line(other)
        reached: dict[Lane, Offset] = {}
        wanted = [tip]
        while wanted:
            lane, end = wanted.pop()
            if lane == NO_LANE or end <= reached.get(lane, Offset(-1)):
                continue
            reached[lane] = end
            row = self._row(lane)
            wanted.append(Tip(row.old, row.old_end))
            if end >= row.sources_end:  # Else some of what was taken in lies behind this line's end.
                wanted.extend(row.inputs)
        return other.lane == NO_LANE or other.end <= reached.get(other.lane, Offset(-1))

    # --- where records were first -----------------------------------------------------------------------------------

    def origins(self, span: Span) -> list["Moved"]:
        """The parts of a span, each with where its records were written first."""
        self._trace(span.lane)
        return self._parts(span)

    def _parts(self, span: Span) -> list["Moved"]:
        """`origins` of a lane that was traced."""
        moved: list[Moved] = []
        position = span.start
        for part in self._traced[span.lane]:
            start, end = max(position, part.span.start), min(span.end, part.span.end)
            if start >= end:
                continue
            if position < start:
                moved.append(Moved(Span(span.lane, position, start), span.lane, position))
            first = Offset(part.start + start - part.span.start)
            moved.append(Moved(Span(span.lane, start, end), part.lane, first))
            position = end
        if position < span.end:
            moved.append(Moved(Span(span.lane, position, span.end), span.lane, position))
        return moved

    def _trace(self, lane: Lane) -> None:
        """Where the records were first that a lane begins with. What was written again may have been written again
        before, hundreds of times: those lanes come first, and each once."""
        wanted = [lane]
        while wanted:
            each = wanted[-1]
            row = self.opened.get(each)
            sources = row.sources if row is not None else ()
            before = [source.lane for source in sources if source.lane not in self._traced]
            if before and max(before) < each:
                wanted.extend(before)
                continue
            wanted.pop()
            self._traced[each] = [] if before else self._moved_to(each, sources)

    def _moved_to(self, lane: Lane, sources: Iterable[Source]) -> list["Moved"]:
        moved: list[Moved] = []
        for source in sources:
            shift = source.new_start - source.start
            for part in self._parts(Span(source.lane, source.start, source.end)):
                here = Span(lane, Offset(part.span.start + shift), Offset(part.span.end + shift))
                moved.append(Moved(here, part.lane, part.start))
        return moved


class Moved(NamedTuple):
    """Records that are found in `span` now, and were written first to `lane` from `start` on."""

    span: Span
    lane: Lane
    start: Offset

    @property
    def end(self) -> Offset:
        return Offset(self.start + self.span.count_max)


def _age(row: BranchRow) -> tuple[int, int, int]:
    return row.old, row.old_end, row.new


# --- joining two lines ----------------------------------------------------------------------------------------------


class Merge(NamedTuple):
    """What becomes of two lines: the new branch goes on from `parent`, and begins with `again`, in this order."""

    parent: Tip
    again: tuple[Span, ...]


def merge(branches: Branches, one: Tip, other: Tip) -> Merge:
    """Neither line is behind the other. Raises UnknownBranchError."""
    winner, loser = (one, other) if one > other else (other, one)
    won, lost = branches.line(winner), branches.line(loser)
    common = common_part(won, lost)
    won_tail, lost_tail = behind(won, common), behind(lost, common)
    if is_kept(won_tail, loser):
        plan = _plan(branches, common, won_tail, won_tail, lost_tail)
        if _keeps_order(branches, won_tail, plan.again):
            return plan
    return _plan(branches, common, (), won_tail, lost_tail)


def is_kept(won_tail: Line, loser: Tip) -> bool:
    """Whether no reader of the loser's line can be beyond any record of the winner's tail."""
    return all(span.lane > loser.lane for span in won_tail if span.count_max)


def _plan(branches: Branches, common: Line, kept: Line, won_tail: Line, lost_tail: Line) -> Merge:
    there = Origins()
    for span in (*common, *kept):
        for moved in branches.origins(span):
            there.add(moved)
    again: list[Span] = []
    for span in sorted((*(() if kept else won_tail), *lost_tail)):
        for moved in branches.origins(span):
            again.extend(there.add(moved))
    parent = (*common, *kept)[-1] if common or kept else None
    tip = NOWHERE if parent is None else Tip(parent.lane, parent.end)
    return Merge(tip, tuple(_joined(again)))


def _keeps_order(branches: Branches, kept: Line, again: Iterable[Span]) -> bool:
    """No record that stays was written to the same branch behind one that comes again later."""
    least: dict[Lane, Offset] = {}
    for span in again:
        for moved in branches.origins(span):
            least[moved.lane] = min(least.get(moved.lane, moved.start), moved.start)
    return all(
        moved.end <= least.get(moved.lane, moved.end) for span in kept for moved in branches.origins(span)
    )


def common_part(one: Line, other: Line) -> Line:
    common: list[Span] = []
    for mine, its in zip(one, other, strict=False):
        if mine.lane != its.lane:
            break
        common.append(Span(mine.lane, mine.start, min(mine.end, its.end)))
        if mine.end != its.end:
            break
    return tuple(common)


def behind(line: Line, common: Line) -> Line:
    """What follows a part that the line begins with."""
    rest = list(line[len(common) :])
    if common and common[-1].end < line[len(common) - 1].end:
        cut = line[len(common) - 1]
        rest.insert(0, Span(cut.lane, common[-1].end, cut.end))
    return tuple(rest)


def _joined(spans: Iterable[Span]) -> Iterator[Span]:
    """Neighbours as one."""
    last: Span | None = None
    for span in spans:
        if last is not None and last.lane == span.lane and last.end == span.start:
            last = Span(last.lane, last.start, span.end)
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last


class Origins:
    """Which records there are, by where they were written first."""

    def __init__(self) -> None:
        self._spans: dict[Lane, list[tuple[Offset, Offset]]] = {}
        """Of each lane, in order; none touches the next."""

    def add(self, moved: Moved) -> list[Span]:
        """The parts that were not there before, in their present place."""
        known = self._spans.setdefault(moved.lane, [])
        first = bisect_left(known, moved.start, key=itemgetter(1))
        last = bisect_right(known, moved.end, key=itemgetter(0))
        fresh: list[Span] = []
        position, shift = moved.start, moved.span.start - moved.start
        touched = known[first:last]
        for start, end in touched:
            if start > position:
                fresh.append(_shifted(moved.span.lane, position, start, shift))
            position = max(position, end)
        if position < moved.end:
            fresh.append(_shifted(moved.span.lane, position, moved.end, shift))
        begin = min(moved.start, touched[0][0]) if touched else moved.start
        known[first:last] = [(begin, max(position, moved.end))]
        return fresh


def _shifted(lane: Lane, start: int, end: int, shift: int) -> Span:
    return Span(lane, Offset(start + shift), Offset(end + shift))


def is_known(branches: Branches, offset: Offset) -> bool:
    """Whether any branch that is known here could have given this offset. The first of all is where everybody begins,
    before there is a branch."""
    lane = lane_of(offset)
    return offset == 0 or lane in branches.opened or branches.is_earlier(lane)
