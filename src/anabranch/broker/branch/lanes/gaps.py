"""LaneGaps: which offsets of a joined branch have no record, so that counts of records are right.

What two sides wrote is written again with its gaps: a batch that a producer had sent to both is left out the second
time. And the first lane of a topic that was in branches before has the lanes of then in it, with all that lies between.
The rows do not say so; the headers of what a lane began with do. That part of a lane never changes, so it is walked
over once, in a worker, when somebody wants to count. Whoever does not wait for it counts too much.

All methods are for the loop's thread.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from anabranch.broker.branch.line_view import headers_of
from anabranch.broker.workers import in_heavy_worker
from anabranch.errors import AnabranchError
from anabranch.modes.branch.lines import Line, Span
from anabranch.modes.branch.rows import NO_LANE, BranchRow, Lane, lane_of
from anabranch.values import Offset

if TYPE_CHECKING:
    from uuid import UUID

    from anabranch.broker.branch.partition import BranchPartition
    from anabranch.broker.workers import Workers
    from anabranch.log.log import Log

    Place = tuple[UUID, int, Lane]

WAIT_SECONDS_MAX = 2.0
GAPS_MAX = 10_000
"""Of one lane: beyond these, numbers without a record count as one."""

logger = logging.getLogger(__name__)


class LaneGaps:
    def __init__(self, workers: "Workers") -> None:
        self._workers = workers
        self._loop = asyncio.get_running_loop()
        self._found: dict[Place, tuple[Span, ...]] = {}
        self._searches: dict[Place, asyncio.Task[None]] = {}

    def known(self, partition: "BranchPartition", lane: Lane) -> tuple[Span, ...]:
        """Those of a lane, as far as they were found; if they were not looked for yet, that begins."""
        place = (*partition.key, lane)
        found = self._found.get(place)
        if found is None:
            self._begin(partition, lane)
        return found or ()

    async def find(self, partitions: "Iterable[BranchPartition]") -> None:
        """Until those of all lanes that these partitions serve are known, or for a while."""
        for partition in partitions:
            for span in partition.line:
                self.known(partition, span.lane)
        if self._searches:
            await asyncio.wait(list(self._searches.values()), timeout=WAIT_SECONDS_MAX)

    def _begin(self, partition: "BranchPartition", lane: Lane) -> None:
        place, row, log = (
            (*partition.key, lane),
            partition.branches.opened.get(lane),
            partition.lanes.get(lane),
        )
        region = region_of(partition, row) if row is not None else None
        if region is None:
            return
        if log is None or log.start_offset > region.start or log.end_offset < region.end:
            return  # It is not here, or not yet.
        if place not in self._searches:
            task = self._loop.create_task(self._search(place, log, region))
            self._searches[place] = task
            task.add_done_callback(lambda _: self._searches.pop(place, None))

    async def _search(self, place: "Place", log: "Log", region: Span) -> None:
        try:
            self._found[place] = await in_heavy_worker(self._workers, lambda: gaps_in(log, region))
        except AnabranchError as error:
            logger.warning("records of %s cannot be counted: %s", log.folder, error)

    async def stop(self) -> None:
        searches = list(self._searches.values())
        for search in searches:
            search.cancel()
        await asyncio.gather(*searches, return_exceptions=True)


def region_of(partition: "BranchPartition", row: BranchRow) -> Span | None:
    """What a lane began with, if there may be gaps in it: others wrote it, or it is a log from before, with the records
    of earlier lanes."""
    lane = row.new
    if row.sources:
        return Span(lane, row.new_start, row.sources_end)
    start, end = partition.view.removed.get(lane, row.new_start), partition.branches.sealed.get(lane)
    is_from_before = row.old == NO_LANE and lane_of(start) < lane
    return Span(lane, start, end) if is_from_before and end is not None else None


def gaps_in(log: "Log", region: Span) -> tuple[Span, ...]:
    """In a worker: offsets of a region that no batch has. Raises StorageError, CorruptDataError."""
    gaps: list[Span] = []
    position = region.start
    for header in headers_of(log, region):
        if header.base_offset > position:
            gaps.append(Span(region.lane, position, Offset(header.base_offset)))
            if len(gaps) == GAPS_MAX:
                return tuple(gaps)
        position = max(position, Offset(header.next_offset))
    if position < region.end:
        gaps.append(Span(region.lane, position, region.end))
    return tuple(gaps)


def without_gaps(line: Line, gaps: Iterable[Span]) -> Line:
    """The spans of a line, cut where there is nothing. Gaps in the order of offsets."""
    by_lane: dict[Lane, list[Span]] = {}
    for gap in gaps:
        by_lane.setdefault(gap.lane, []).append(gap)
    found: list[Span] = []
    for span in line:
        position = span.start
        for gap in by_lane.get(span.lane, ()):
            if gap.end <= position or gap.start >= span.end:
                continue
            if position < gap.start:
                found.append(Span(span.lane, position, gap.start))
            position = gap.end
        if position < span.end:
            found.append(Span(span.lane, position, span.end))
    return tuple(found)
