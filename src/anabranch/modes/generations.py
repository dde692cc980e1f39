"""The table of generations of one replica: under which leadership each of its records was written.

A row (generation, start) is entered only when the log equals that leader's below `start`, ends there and is synced; the
records of a generation lie between its start and the next row's. Two replicas with the same row were therefore equal
below its start, and one leader alone gave out the offsets from there on: the logs are equal up to where the shorter of
the two leaves that generation. This is what a returning follower, a new leader and a client's truncation check go by.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from anabranch.values import Generation, Offset

NO_GENERATION = Generation(-1)
"""What Kafka's protocol says where there is none."""


class Row(NamedTuple):
    generation: Generation
    start: Offset


class Generations:
    """Never changed: each change gives a new table."""

    __slots__ = ("rows",)

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        assert all(one < other and one.start <= other.start for one, other in pairwise(rows)), rows
        self.rows = tuple(rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Generations) and self.rows == other.rows

    def __hash__(self) -> int:
        return hash(self.rows)

    def __repr__(self) -> str:
        return f"Generations({[tuple(row) for row in self.rows]})"

    @property
    def last(self) -> Generation:
        return self.rows[-1].generation if self.rows else NO_GENERATION

    def entered(self, generation: Generation, start: Offset) -> "Generations":
        """A new leadership begins where the log ends now."""
        assert generation > self.last, f"{generation} after {self.last}"
        return Generations([*self.rows, Row(generation, start)])

    def cut(self, end: Offset) -> "Generations":
        """Of a log that is cut at `end`: what began behind it never was; what began right there has been entered."""
        return Generations([row for row in self.rows if row.start <= end])

    def until(self, generation: Generation) -> "Generations":
        """Without the rows after this generation."""
        return Generations([row for row in self.rows if row.generation <= generation])

    def has_row_at(self, offset: Offset) -> bool:
        """A leadership began right there."""
        for row in reversed(self.rows):
            if row.start <= offset:
                return row.start == offset
        return False

    def at(self, offset: Offset) -> Generation:
        """Under which the record of this offset was written, or the next one will be."""
        return max((row.generation for row in self.rows if row.start <= offset), default=NO_GENERATION)

    def end_of(self, generation: Generation, log_end: Offset) -> tuple[Generation, Offset]:
        """Where the records of that generation end, or of the greatest before it that is known here: what
        OffsetForLeaderEpoch answers. (-1, -1) if none is known that early."""
        known = self.until(generation).rows
        if not known:
            return NO_GENERATION, Offset(-1)
        after = self.rows[len(known) :]
        return known[-1].generation, after[0].start if after else log_end

    def common_end(self, end: Offset, other: "Generations", other_end: Offset) -> Offset:
        """Up to where two logs that end there are equal: the shorter end of the last row they share; 0 if they share
        none."""
        shared = set(self.rows) & set(other.rows)
        if not shared:
            return Offset(0)
        last = max(shared).generation
        return min(self.end_of(last, end)[1], other.end_of(last, other_end)[1])
