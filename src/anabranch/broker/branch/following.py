"""Following: a broker that keeps a copy of what the primary writes, as long as that one reigns.

It first has what it must (`branch_roles.must_hold`), then goes over to the primary's line, then asks for the next
records of the primary's lane again and again; each question says up to where its copy is synced, which is how the
primary learns that records are safe. A line that has what the primary's has not is left as it is: the primary sees it
by polling, and takes it in.

What lies further back in the line and is not here is fetched besides (`backfill`), from whoever has it.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from anabranch.broker.branch.lanes.copying import Copying
from anabranch.broker.branch.lanes.reads import LaneReading, piece_of
from anabranch.broker.branch.merging import MissingRecordsError
from anabranch.broker.workers import in_heavy_worker
from anabranch.modes.branch.lines import Span
from anabranch.modes.branch.roles import Head, may_adopt, must_hold
from anabranch.modes.branch.rows import NO_LANE, Lane, Tip, lane_limit
from anabranch.values import BrokerId, Offset

if TYPE_CHECKING:
    from anabranch.broker.branch.partition_role import BranchSeat
    from anabranch.broker.workers import Workers
    from anabranch.clock import Clock

WAIT_MS = 3000
"""How long the primary keeps a question for which it has no records yet, unless its reign ends: well below the time
after which a copy that is not heard of counts as late."""

logger = logging.getLogger(__name__)


class Following:
    def __init__(self, reading: LaneReading, workers: "Workers", clock: "Clock") -> None:
        self._reading = reading
        self._copying = Copying(reading, workers, clock)
        self._workers = workers
        self._clock = clock

    async def follow(self, seat: "BranchSeat", primary: BrokerId, head_of: Callable[[], Head | None]) -> None:
        """Until the primary reigns no more, or there is nothing to be done now. `head_of`: of the primary, while it is
        in view. Raises MissingRecordsError, UnknownBranchError, AnabranchError."""
        while (head := head_of()) is not None and head.reign != NO_LANE:
            if seat.partition.view.lane != head.reign and not await self._adopt(seat, primary, head):
                return
            if not await self._copy_tip(seat, primary, head.reign):
                return

    async def _adopt(self, seat: "BranchSeat", primary: BrokerId, head: Head) -> bool:
        """Go over to the primary's line; False: it has not all that ours has."""
        partition, branches = seat.partition, seat.partition.branches
        if not branches.is_behind(head.tip, partition.tip):
            return False
        for span in must_hold(branches, head.tip, partition.tip):
            await self._copying.copy(seat, span, primary)
        if not may_adopt(branches, head.tip, partition.tip, seat.is_held):
            return False
        await self._copying.make(seat, head.reign, branches.opened[head.reign].new_start)
        await partition.adopt(head.reign, head.safe)
        logger.info("%s follows branch %d of broker %d", partition.id, head.reign, primary)
        return True

    async def _copy_tip(self, seat: "BranchSeat", primary: BrokerId, lane: Lane) -> bool:
        """The next records of the primary's lane; False: it writes to that lane no more."""
        partition = seat.partition
        held = partition.lanes.get(lane)
        if held is not None and not held.is_synced:
            await in_heavy_worker(self._workers, held.sync)  # The question says that it is.
        span = Span(lane, self._copying.position(seat, Span(lane, Offset(0), Offset(0))), lane_limit(lane))
        answer = await self._reading.ask_lane(partition, primary, span, wait_ms=WAIT_MS, is_copying=True)
        if answer.data:
            await self._copying.put(seat, span, piece_of(answer, span))
            log = partition.lanes.get(lane)
            assert log is not None
            await in_heavy_worker(self._workers, log.sync)
            seat.growth.wake()
        partition.follow(answer.safe)
        return answer.is_tip

    async def backfill(self, seat: "BranchSeat") -> None:
        """Fetch what of this broker's line is not here, but for the lane that it follows or writes to."""
        for span in seat.partition.line[:-1]:
            if not seat.is_held(span):
                try:
                    await self._copying.copy(seat, span)
                except MissingRecordsError as error:
                    logger.debug("%s lacks records: %s", seat.partition.id, error)

    @staticmethod
    def is_whole(seat: "BranchSeat") -> bool:
        """Everything of this broker's line is here."""
        return all(seat.is_held(span) for span in seat.partition.line[:-1])

    @staticmethod
    def is_caught_up(seat: "BranchSeat", head: Head) -> bool:
        """Nearly: what is still missing comes in a moment."""
        tip: Tip = seat.partition.tip
        return tip.lane == head.tip.lane and head.tip.end - tip.end <= NEARLY


NEARLY = 10_000
