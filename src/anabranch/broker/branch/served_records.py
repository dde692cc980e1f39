"""Where readers of a line meet records, without the gaps between them, and how many those are."""

from typing import TYPE_CHECKING

from anabranch.broker.branch.lanes.gaps import without_gaps
from anabranch.modes.branch.history import present_line, records_between
from anabranch.modes.branch.lines import Line, Span
from anabranch.modes.branch.rows import lane_of
from anabranch.values import Offset, is_other_lane

if TYPE_CHECKING:
    from anabranch.broker.branch.lanes.gaps import LaneGaps
    from anabranch.broker.branch.partition import BranchPartition
    from anabranch.broker.branch.views import BranchView

START = Offset(0)


def stored_line(partition: "BranchPartition | BranchView", start: Offset = START) -> Line:
    """Where there are records in the object store, below every branch, from `start` on. Each is of the lane that its
    number says."""
    if partition.log.start_offset > partition.archived.floor:
        return ()
    return tuple(Span(lane_of(first), first, end) for first, end in partition.archived.runs(start))


def served_line(gaps: "LaneGaps", partition: "BranchPartition | BranchView") -> Line:
    """Where there are records to read now, besides those in the object store."""
    base = partition.base
    line = present_line(base.branches, partition.line, partition.high_watermark)
    line = tuple(run for span in line for run in _runs(base, span))
    return without_gaps(line, (gap for span in line for gap in gaps.known(base, span.lane)))


def _runs(partition: "BranchPartition", span: Span) -> Line:
    """What the topic had before it went into branches is one lane; it has gaps if the topic was in branches already."""
    log = partition.lanes.get(span.lane)
    if log is None or not is_other_lane(span.start, span.end - 1):
        return (span,)
    runs = (Span(span.lane, max(span.start, first), min(span.end, end)) for first, end in log.runs(span.end))
    return tuple(run for run in runs if run.start < run.end)


def records_behind(gaps: "LaneGaps", partition: "BranchPartition | BranchView", committed: int) -> int:
    """How many records a group that has committed this offset has still to read."""
    line = (*stored_line(partition, Offset(committed)), *served_line(gaps, partition))
    return records_between(line, committed, partition.high_watermark)
