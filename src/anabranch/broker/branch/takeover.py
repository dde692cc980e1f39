"""Reigning: how a broker becomes primary of a partition in mode branch, and takes in what others wrote beside it.

    ask everybody in view to seal > learn their rows > where is each line?
      all are behind ours            > open a lane behind our own tip
      ours is behind another         > have what must be here, open a lane behind that one
      neither                        > write what comes again into a new lane, aside; sync; open it with one row

The row is the switch: before it is on the disk nothing has changed, so that a crash repeats all of it. One other line
is taken in at a time; if there are more, the next attempt, which follows at once, takes in the next. Whoever does not
answer is taken in later. Nothing that was acknowledged hangs on who was in view: see `branch_roles.may_adopt`.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from anabranch.broker.branch.heads import decode_told
from anabranch.broker.branch.lanes.copying import Copying
from anabranch.broker.branch.lanes.reads import LaneReading
from anabranch.broker.branch.merging import Merging, MissingRecordsError
from anabranch.broker.branch.offsets import Commits
from anabranch.broker.peers.messages import BranchSealed, CloseBranch, SealBranch
from anabranch.broker.topics.topics import OFFSETS_TOPIC
from anabranch.broker.workers import in_heavy_worker
from anabranch.errors import (
    AnabranchError,
    NotOwnerError,
    PeerError,
    PeerProtocolError,
    PeerRefusedError,
)
from anabranch.modes.branch.lines import (
    Branches,
    Merge,
    Span,
    UnknownBranchError,
    behind,
    common_part,
    merge,
)
from anabranch.modes.branch.roles import may_adopt, must_hold
from anabranch.modes.branch.rows import NOWHERE, BranchRow, Lane, Tip, opened
from anabranch.values import BrokerId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from anabranch.broker.branch.partition import BranchPartition
    from anabranch.broker.branch.partition_role import BranchSeat
    from anabranch.broker.peers.peers import Peers
    from anabranch.broker.workers import Workers
    from anabranch.clock import Clock

SEAL_MS_MAX = 5000
AGAIN_MAX = 10_000
"""Records that may rather be written again than be gone on behind without knowing who wrote them."""
LACK_MS_MAX = 5000
"""So long it is tried to have all that others have before one's line goes on behind theirs."""

logger = logging.getLogger(__name__)


class NotNowError(Exception):
    """Somebody in view is against it, or in the middle of something: try again in a moment."""


class Reigning:
    def __init__(
        self,
        peers: "Peers",
        reading: LaneReading,
        workers: "Workers",
        clock: "Clock",
        *,
        lane_for: "Callable[[BranchSeat, Iterable[Lane]], Lane]",
        copies_for: "Callable[[BranchSeat], list[BrokerId]]",
    ) -> None:
        """`lane_for`: the next lane of this broker above others."""
        self._peers = peers
        self._reading = reading
        self._copying = Copying(reading, workers, clock)
        self._workers = workers
        self._clock = clock
        self._lane_for = lane_for
        self._copies_for = copies_for
        self.merges_total = 0
        self.records_again_total = 0

    async def become(self, seat: "BranchSeat", view: "Iterable[BrokerId]") -> None:
        """Raises NotNowError, MissingRecordsError, UnknownBranchError, AnabranchError; then the line is as before."""
        tips = await self._seal(seat, sorted(view))
        _check_welcome(seat)
        await self.take_in(seat, tips)

    # --- sealing -------------------------------------------------------------------------------------------------

    async def _seal(self, seat: "BranchSeat", brokers: list[BrokerId]) -> dict[BrokerId, Tip]:
        """Where the lines of those that answer end."""
        question = SealBranch(*seat.key, seat.partition.branched_view)
        answers = await asyncio.gather(*(self.ask_for_tip(seat, broker, question) for broker in brokers))
        return {broker: tip for broker, tip in zip(brokers, answers, strict=True) if tip is not None}

    async def ask_for_tip(
        self, seat: "BranchSeat", broker: BrokerId, question: SealBranch | CloseBranch
    ) -> Tip | None:
        """Where the line of a broker ends, which goes on no further; None: it does not say. Raises NotNowError,
        StorageError."""
        partition = seat.partition
        try:
            answer = await self._peers.ask(broker, question, SEAL_MS_MAX)
            if not isinstance(answer, BranchSealed):
                raise PeerProtocolError("an answer about a branch is of another kind")
            told = decode_told(answer.data)
        except PeerRefusedError as error:
            if error.kind == NotOwnerError.__name__:
                raise NotNowError(f"broker {broker}: {error}") from None
            return None  # It has not heard of the topic yet, or its disk does not let it say.
        except PeerError as error:
            logger.debug("%s: broker %d does not say where its line ends: %s", partition.id, broker, error)
            return None
        await partition.tube.add(row for row in told.rows if row.key == partition.key)
        return Tip(Lane(answer.lane), answer.end)

    # --- taking in -----------------------------------------------------------------------------------------------

    async def take_in(self, seat: "BranchSeat", tips: dict[BrokerId, Tip]) -> None:
        """Reign, with one more of these lines in one's own. Raises as `become` does."""
        partition, branches = seat.partition, seat.partition.branches
        others = [tip for tip in tips.values() if not branches.is_behind(partition.tip, tip)]
        if partition.reign is not None:
            if all(seat.is_put_off(tip, self._clock.monotonic_ms()) for tip in others):
                return
            await self._bring_near(seat, tips)
            if all(seat.is_put_off(tip, self._clock.monotonic_ms()) for tip in others):
                return  # What cannot be had now would end the reign for nothing, again and again.
            await partition.end_reign(NotOwnerError(f"{partition.id} is joined with another branch of it."))
        await self._sync_tip(partition)
        mine = base = partition.tip
        for broker, tip in sorted(tips.items(), key=lambda each: each[1], reverse=True):
            if branches.is_behind(base, tip):
                continue
            try:
                if not branches.is_behind(tip, base):
                    await self._switch(seat, await self._merge(seat, base, tip, broker, tips.values()))
                    seat.took_in(tip, self._clock.monotonic_ms())
                    return
                await self._catch_up(seat, tip, mine, broker)
            except MissingRecordsError as error:
                logger.warning("%s goes on without taking in %s: %s", partition.id, tip, error)
                seat.put_off(tip, self._clock.monotonic_ms())
            else:
                base = tip
        base = _with_heard(seat, base)
        row = opened(
            partition.key, base, self._lane_for(seat, _lanes(tips, base)), time_ms=self._clock.wall_ms()
        )
        await self._switch(seat, row)

    async def _bring_near(self, seat: "BranchSeat", tips: dict[BrokerId, Tip]) -> None:
        """While this broker still reigns: what it lacks of both lines, so that writes pause only for what has to be
        written again here."""
        branches, mine = seat.partition.branches, seat.partition.tip
        for broker, tip in tips.items():
            if not branches.is_behind(mine, tip):
                one, other = branches.line(mine), branches.line(tip)
                common = common_part(one, other)
                try:
                    for span in (*behind(other, common), *behind(one, common)):
                        await self._copying.copy(seat, span, broker)
                except MissingRecordsError as error:
                    logger.info("%s is not joined with %s yet: %s", seat.partition.id, tip, error)
                    seat.put_off(tip, self._clock.monotonic_ms())

    async def _sync_tip(self, partition: "BranchPartition") -> None:
        """Others are told of it, and go by it: it has to be there after a crash."""
        log = partition.lanes.get(partition.tip.lane)
        if log is not None:
            await in_heavy_worker(self._workers, log.sync)

    async def _catch_up(self, seat: "BranchSeat", tip: Tip, mine: Tip, broker: BrokerId) -> None:
        """Before this broker's line goes on behind another one. What it must have, it waits for; the rest it takes too,
        for else only one broker may have it, and who has written there is not known: a producer that sends again would
        be written twice. Of a little that cannot be had it goes on before, and takes it in later; much would take too
        long to be written again then, and it waits a while for that."""
        branches = seat.partition.branches
        for span in must_hold(branches, tip, mine):
            await self._copying.copy(seat, span, broker)
        line = branches.line(tip)
        rest = behind(line, common_part(line, branches.line(mine)))
        try:
            for span in rest:
                await self._copying.copy(seat, span, broker)
        except MissingRecordsError as error:
            missing = sum(span.count_max for span in rest if not seat.is_held(span))
            if mine != NOWHERE and missing <= AGAIN_MAX:
                raise
            now_ms = self._clock.monotonic_ms()
            if seat.lacks_since_ms is None:
                seat.lacks_since_ms = now_ms
            if now_ms - seat.lacks_since_ms < LACK_MS_MAX:
                raise NotNowError(f"broker {broker} has not given all it has: {error}") from error
            logger.warning("%s: %s; it goes on all the same", seat.partition.id, error)
        seat.lacks_since_ms = None

    async def _merge(
        self, seat: "BranchSeat", mine: Tip, other: Tip, broker: BrokerId, tips: "Iterable[Tip]"
    ) -> BranchRow:
        """Write the joined branch aside; the row is not said yet."""
        partition, branches = seat.partition, seat.partition.branches
        plan = merge(branches, mine, other)
        lane = self._lane_for(seat, [tip.lane for tip in (mine, other, *tips)])
        one, two = branches.line(mine), branches.line(other)
        removed = {**branches.removed_below(one), **branches.removed_below(two)}
        kept = _kept(branches, plan, one, two)
        for span in kept:
            await self._copying.copy(
                seat, span, broker
            )  # Who wrote there has to be known before anybody writes on.
        commits = _commits(partition, one, two)
        merging = Merging(partition, self._reading, self._workers, self._clock, broker, commits)
        sources = await merging.write_aside(lane, plan, kept, removed)
        self.merges_total += 1
        self.records_again_total += merging.records_again
        logger.info(
            "%s: branch %d joins %s and %s, with %d records again",
            partition.id,
            lane,
            mine,
            other,
            merging.records_again,
        )
        return opened(
            partition.key,
            plan.parent,
            lane,
            sources=sources,
            inputs=(mine, other),
            time_ms=self._clock.wall_ms(),
        )

    async def _switch(self, seat: "BranchSeat", row: BranchRow) -> None:
        partition = seat.partition
        try:
            _check_welcome(seat)
        except NotNowError:
            if row.new in partition.lanes:  # Nobody has heard of what was written aside.
                await in_heavy_worker(self._workers, partition.lanes.drop(row.new).delete)
            raise
        copies = self._copies_for(seat)
        seat.keeping.clear()
        try:
            await partition.begin_reign(row, copies)
        except AnabranchError:
            if row.new in partition.lanes and row.new not in partition.branches.opened:
                partition.lanes.drop(row.new)
            raise
        seat.ask_copies(copies, self._clock.monotonic_ms())


def _check_welcome(seat: "BranchSeat") -> None:
    if seat.is_unwelcome:
        raise NotNowError("another broker is about to reign")


def _kept(branches: Branches, plan: Merge, one: tuple[Span, ...], two: tuple[Span, ...]) -> tuple[Span, ...]:
    """What of both lines stays where it is, behind what they have in common."""
    if plan.parent == NOWHERE:
        return ()
    return behind(branches.line(plan.parent), common_part(one, two))


def _commits(partition: "BranchPartition", one: tuple[Span, ...], two: tuple[Span, ...]) -> Commits | None:
    """For the log of committed offsets: what each side has committed."""
    if partition.id.topic != OFFSETS_TOPIC:
        return None
    common = common_part(one, two)
    return Commits(behind(one, common), behind(two, common))


def _with_heard(seat: "BranchSeat", base: Tip) -> Tip:
    """A side of a split that has no copy of the end of the line goes on where it was last heard to be safe. With a part
    of that lane it goes on behind its own records: what it lacks comes when the sides are joined, and nothing twice."""
    branches = seat.partition.branches
    base = branches.behind_first(base)
    if seat.heard is None or seat.heard.lane == base.lane:
        return base
    try:
        return seat.heard if may_adopt(branches, seat.heard, base, seat.is_held) else base
    except UnknownBranchError:
        return base


def _lanes(tips: dict[BrokerId, Tip], base: Tip) -> list[Lane]:
    return [base.lane, *(tip.lane for tip in tips.values())]
