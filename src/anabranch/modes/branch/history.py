"""What people ask about branches: how many records lie between two offsets of a line, which branches nobody has joined
yet, and which records two lines do not share. Pure, like the lines themselves.

The rows say where a branch ends only once it is sealed. Whoever asks therefore also says how far each lane is known to
reach (`ends`): what brokers hold of it.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from anabranch.modes.branch.lines import Branches, Line, Origins, Span, UnknownBranchError
from anabranch.modes.branch.rows import Lane, Tip
from anabranch.values import Offset

Ends = Mapping[Lane, Offset]


# --- counting -------------------------------------------------------------------------------------------------------


def records_between(line: Line, start: int, end: int) -> int:
    """Offsets of the line in [start, end): what lies between two lanes is no record. Like everywhere, offsets that a
    record once had count as one."""
    return sum(max(0, min(span.end, end) - max(span.start, start)) for span in line)


def offset_before(line: Line, end: int, count: int) -> int:
    """Where to begin so that so many records come before `end`; the line's start if it has fewer."""
    left = count
    for span in reversed(line):
        upto = min(span.end, end)
        if span.start >= upto:
            continue
        if upto - span.start >= left:
            return upto - left
        left -= upto - span.start
        end = span.start
    return end


def present_line(branches: Branches, line: Line, upto: Offset) -> Line:
    """What is left of a line below an offset, without what was removed."""
    removed = branches.removed_below(line)
    left = [
        Span(span.lane, max(span.start, removed.get(span.lane, span.start)), min(span.end, upto))
        for span in line
    ]
    return tuple(span for span in left if span.start < span.end)


# --- which branches there are ---------------------------------------------------------------------------------------


def lane_ends(branches: Branches, held: Ends) -> dict[Lane, Offset]:
    """How far each lane is known to reach: by its seal, by what others took of it, and by what is held."""
    ends = {
        lane: max(row.sources_end, branches.sealed.get(lane, row.new_start), held.get(lane, row.new_start))
        for lane, row in branches.opened.items()
    }
    for row in branches.opened.values():
        for lane, end in (Tip(row.old, row.old_end), *row.inputs):
            if lane in ends:
                ends[lane] = max(ends[lane], end)
    return ends


def open_tips(branches: Branches, ends: Ends) -> list[Tip]:
    """The ends of lines that no other line contains, the greatest first: one if nothing is left to be joined."""
    continued = {Tip(row.old, row.old_end) for row in branches.opened.values()}
    found: list[Tip] = []
    for lane, end in sorted(ends.items(), reverse=True):
        tip = Tip(lane, end)
        if tip not in continued and not any(_is_behind(branches, each, tip) for each in found):
            found.append(tip)
    return found


def _is_behind(branches: Branches, tip: Tip, other: Tip) -> bool:
    """Not where a row is missing: it has not come yet, and nobody knows."""
    try:
        return branches.is_behind(tip, other)
    except UnknownBranchError:
        return False


def reappended(branches: Branches) -> int:
    """How many records were written a second time, so that lines could be joined."""
    return sum(source.end - source.start for row in branches.opened.values() for source in row.sources)


def joins(branches: Branches) -> int:
    """How many branches were opened to join others."""
    return sum(bool(row.inputs) for row in branches.opened.values())


# --- comparing ------------------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """Parts of two lines whose records are not in the other."""

    only_one: tuple[Span, ...]
    only_other: tuple[Span, ...]


def difference(branches: Branches, one: Line, other: Line) -> Difference:
    """A record that was written again is the same record."""
    return Difference(_without(branches, one, other), _without(branches, other, one))


def _without(branches: Branches, line: Line, others: Iterable[Span]) -> tuple[Span, ...]:
    known = Origins()
    for span in others:
        for moved in branches.origins(span):
            known.add(moved)
    return tuple(part for span in line for moved in branches.origins(span) for part in known.add(moved))
