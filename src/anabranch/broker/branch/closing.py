"""Closing: how a partition comes out of branches (`modes/branch/leaving.py`), at the broker that closes it and at
those it asks.

The order makes it safe. Everybody's promise is on its disk before the closer looks where the lines end; the closer's
own, before it asks anybody. All lines are in one before that one ends; all of that is on the disks of those who are to
keep it, with the file that says so, before it is agreed on that they do. From the moment that was asked for the closer
is bound like everybody else: it does not know what becomes of it.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from anabranch.broker.branch.lanes.copying import Copying
from anabranch.broker.branch.lanes.lanes_to_log import LastLine, last_line, write_leaving
from anabranch.broker.branch.merging import MissingRecordsError
from anabranch.broker.branch.takeover import NotNowError, Reigning
from anabranch.broker.metadata.proposals import Proposals
from anabranch.broker.peers.messages import BranchSealed, CloseBranch, HoldLine, LineHeld
from anabranch.broker.workers import in_heavy_worker
from anabranch.cluster.metadata.entries import Entry, leave_entry, left_entry
from anabranch.cluster.metadata.rows import NO_MOVE, Placement
from anabranch.errors import (
    NotControllerError,
    NotOwnerError,
    PeerError,
    QuorumBusyError,
)
from anabranch.modes.branch.leaving import (
    LeaveSight,
    LeaveStep,
    Promise,
    holds,
    next_leave_step,
)
from anabranch.modes.branch.lines import Span, UnknownBranchError
from anabranch.modes.branch.rows import Lane, Tip, first_offset
from anabranch.values import BrokerId, Offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from anabranch.broker.branch.partition import BranchPartition
    from anabranch.broker.branch.partition_role import BranchSeat
    from anabranch.broker.broker import Broker
    from anabranch.broker.peers.peers import Peers

ASK_MS_MAX = 5000
AGAIN_MS = 250

logger = logging.getLogger(__name__)


class Closing:
    def __init__(
        self,
        broker: "Broker",
        peers: "Peers",
        reigning: Reigning,
        copying: Copying,
        *,
        lane_for: "Callable[[BranchSeat, Iterable[Lane]], Lane]",
        copies_for: "Callable[[BranchSeat], list[BrokerId]]",
        sealed_of: "Callable[[BranchSeat, Tip], BranchSealed]",
    ) -> None:
        """`sealed_of`: the answer that says where a line ends, with all rows of its partition."""
        self._broker = broker
        self._me = BrokerId(broker.id)
        self._peers = peers
        self._reigning = reigning
        self._copying = copying
        self._lane_for = lane_for
        self._copies_for = copies_for
        self._sealed_of = sealed_of
        self._proposals = Proposals(broker.metadata, peers)

    # --- what is decided -----------------------------------------------------------------------------------------

    def _placement(self, seat: "BranchSeat") -> Placement | None:
        table, (topic_id, index) = self._broker.metadata.table, seat.key
        topic = table.topics_by_id.get(topic_id)
        return table.placement(topic, index) if topic is not None else None

    def decision(self, seat: "BranchSeat") -> Placement | None:
        """Of a partition that shall come out of branches."""
        topic = self._broker.metadata.table.topics_by_id.get(seat.key[0])
        return None if topic is None or topic.is_branch else self._placement(seat)

    def is_bound(self, seat: "BranchSeat") -> bool:
        """It may open no branch now."""
        promise, placement = seat.partition.promise, self._placement(seat)
        if promise is None or seat.closes == promise.move:
            return False
        return holds(promise, placement.move if placement is not None else NO_MOVE)

    def next_step(
        self, seat: "BranchSeat", decision: Placement, now_ms: int, *, is_primary: bool, sees_all: bool
    ) -> LeaveStep:
        if seat.decided is None or seat.decided[0] != decision.move:
            seat.decided = decision.move, now_ms
        if now_ms < seat.close_again_ms:
            return LeaveStep.WAIT
        has_asked = seat.asked_under == decision.move
        return next_leave_step(
            LeaveSight(self._me, decision.closer, is_primary, sees_all, has_asked, now_ms - seat.decided[1])
        )

    async def carry_out(self, step: LeaveStep, seat: "BranchSeat", decision: Placement) -> None:
        """Raises AnabranchError. What does not come about now is tried again."""
        seat.close_again_ms = self._broker.clock.monotonic_ms() + AGAIN_MS
        seat.is_unwelcome = False
        try:
            await self._carry_out(step, seat, decision)
        except (NotNowError, PeerError, UnknownBranchError, MissingRecordsError) as error:
            if str(error) != seat.waits_because:
                logger.info("%s does not come out of mode branch yet: %s", seat.partition.id, error)
            seat.waits_because = str(error)

    async def _carry_out(self, step: LeaveStep, seat: "BranchSeat", decision: Placement) -> None:
        match step:
            case LeaveStep.CALL_OFF:
                await self._propose(leave_entry(*seat.key, None, decision.move))
            case LeaveStep.BEGIN:
                await self._check_copies(seat)
                await self._propose(leave_entry(*seat.key, self._me, decision.move))
                seat.close_again_ms = 0
            case LeaveStep.CLOSE:
                await self._close(seat, decision)

    async def _propose(self, entry: Entry) -> None:
        try:
            await self._proposals.propose(entry)
            await self._broker.metadata.caught_up()
        except (NotControllerError, QuorumBusyError, PeerError) as error:
            raise NotNowError(f"nobody knows whether that is agreed on: {error}") from error

    # --- the one who closes --------------------------------------------------------------------------------------

    async def _check_copies(self, seat: "BranchSeat") -> None:
        """Whether those who are to keep it have nearly all of it: until then everybody goes on as before."""
        partition = seat.partition
        if partition.reign is None:
            return
        tip = partition.tip
        await self._sync(partition, tip)
        if _lacks_lanes(partition, tip):
            raise NotNowError("this broker lacks records of its own line")
        question = HoldLine(*seat.key, NO_MOVE, tip.lane, tip.end, Offset(0), Offset(0))
        await self._ask_to_hold(self._copies_for(seat), question)

    async def _close(self, seat: "BranchSeat", decision: Placement) -> None:
        partition, move = seat.partition, decision.move
        assert decision.target is not None
        seat.closes = move
        try:
            await partition.give_promise(Promise(move, self._me))
            tips = await self._ask_to_close(seat, decision.target[1:], move)
            await self._take_in(seat, tips)
            await self._check_copies(seat)
            copies = self._copies_for(seat)
            tip = await partition.end_reign(
                NotOwnerError(f"{partition.id} is kept in another way in a moment: ask again.")
            )
            start = first_offset(self._lane_for(seat, ())) + 1
            branches, begin = partition.branches, partition.log.start_offset
            last = last_line(branches, tip, move=move, start=begin, end=Offset(start))
            question = HoldLine(*seat.key, move, tip.lane, tip.end, last.start, last.end)
            # Once only: of two ends under one decision somebody may have the first on its disk, or write it last.
            seat.asked_under = move
            await self._ask_to_hold(copies, question)
            await self._write(partition, last)
        finally:
            seat.closes = None
        logger.info("%s comes out of mode branch at %d", partition.id, start)
        await self._propose(left_entry(*seat.key, last.end, (self._me, *copies), move))

    async def _ask_to_close(
        self, seat: "BranchSeat", brokers: "Sequence[BrokerId]", move: int
    ) -> dict[BrokerId, Tip]:
        question = CloseBranch(*seat.key, move)
        asked = (self._reigning.ask_for_tip(seat, broker, question) for broker in brokers)
        tips = dict(zip(brokers, await asyncio.gather(*asked), strict=True))
        silent = [broker for broker, tip in tips.items() if tip is None]
        if silent:
            raise NotNowError(f"broker {silent[0]} does not promise")
        return {broker: tip for broker, tip in tips.items() if tip is not None}

    async def _take_in(self, seat: "BranchSeat", tips: dict[BrokerId, Tip]) -> None:
        """All lines in one, and that one of this broker's."""
        partition = seat.partition
        for _ in range(len(tips) + 1):
            is_all = all(partition.branches.is_behind(partition.tip, tip) for tip in tips.values())
            if is_all and partition.reign is not None:
                return
            await self._reigning.take_in(seat, tips)
        raise NotNowError("some branches cannot be joined now")

    async def _ask_to_hold(self, brokers: "Iterable[BrokerId]", question: HoldLine) -> None:
        try:
            await asyncio.gather(*(self._peers.ask(broker, question, ASK_MS_MAX) for broker in brokers))
        except PeerError as error:
            raise NotNowError(f"somebody does not have all of it: {error}") from error

    # --- those who are asked -------------------------------------------------------------------------------------

    async def asked_to_close(
        self, seat: "BranchSeat", sender: BrokerId, question: CloseBranch
    ) -> BranchSealed:
        """Raises NotOwnerError, StorageError."""
        self._check_decision(seat, sender, question.move)
        partition = seat.partition
        if seat.is_becoming:
            seat.is_unwelcome = True
            raise NotOwnerError(f"Broker {self._me} is in the middle of becoming primary.")
        await partition.give_promise(Promise(question.move, sender))
        if partition.reign is not None:
            tip = await partition.end_reign(
                NotOwnerError(f"Broker {sender} brings {partition.id} out of branches.")
            )
        else:
            tip = partition.tip
            log = partition.lanes.get(tip.lane)
            if log is not None:
                await in_heavy_worker(self._broker.workers, log.sync)
        return self._sealed_of(seat, tip)

    async def asked_to_hold(self, seat: "BranchSeat", sender: BrokerId, question: HoldLine) -> LineHeld:
        """Raises NotOwnerError, StorageError."""
        partition, tip = seat.partition, Tip(Lane(question.lane), question.end)
        try:
            await self._sync(partition, tip)
            if question.move == NO_MOVE:
                if _lacks_lanes(partition, tip):
                    raise NotOwnerError(f"Broker {self._me} does not have all of {partition.id} yet.")
                return LineHeld()
            self._check_decision(seat, sender, question.move)
            if partition.promise != Promise(question.move, sender):
                raise NotOwnerError(f"Broker {self._me} has promised nothing under {question.move}.")
            for span in _missing(partition, tip):
                await self._copying.copy(seat, span, sender)
            if _missing(partition, tip):
                raise NotOwnerError(f"Broker {self._me} does not have all of {partition.id}.")
        except (UnknownBranchError, MissingRecordsError) as error:
            raise NotOwnerError(f"Broker {self._me} cannot say what {partition.id} is: {error}.") from error
        move, start, end = question.move, question.start, question.kept_start
        await self._write(partition, last_line(partition.branches, tip, move=move, start=start, end=end))
        return LineHeld()

    def _check_decision(self, seat: "BranchSeat", sender: BrokerId, move: int) -> None:
        decision = self.decision(seat)
        if decision is None or decision.closer != sender or decision.move != move:
            raise NotOwnerError(
                f"Broker {self._me} does not know that broker {sender} closes {seat.partition.id}."
            )

    async def _sync(self, partition: "BranchPartition", tip: Tip) -> None:
        """What is here of a line may be in the page cache only. Raises UnknownBranchError, StorageError."""
        for span in _missing(partition, tip):
            log = partition.lanes.get(span.lane)
            if log is not None and not log.is_synced:
                await in_heavy_worker(self._broker.workers, log.sync)

    async def _write(self, partition: "BranchPartition", last: LastLine) -> None:
        files, folder = self._broker.files, partition.lanes.folder
        await in_heavy_worker(self._broker.workers, lambda: write_leaving(files, folder, last))


def _missing(partition: "BranchPartition", tip: Tip) -> list[Span]:
    """What of the line that ends there is not here, synced. Raises UnknownBranchError."""
    line = partition.branches.line(tip)
    removed = partition.branches.removed_below(line)
    return [span for span in line if not _is_held(partition, span, removed.get(span.lane, Offset(0)))]


def _lacks_lanes(partition: "BranchPartition", tip: Tip) -> bool:
    """Whether any but the last lane is not all here: that one is still written to. Raises UnknownBranchError."""
    return any(span.lane != tip.lane for span in _missing(partition, tip))


def _is_held(partition: "BranchPartition", span: Span, removed: Offset) -> bool:
    start = max(span.start, removed)
    if start >= span.end:
        return True
    log = partition.lanes.get(span.lane)
    if log is None:
        return False
    return log.start_offset <= start and min(log.synced_offset, log.end_offset) >= span.end
