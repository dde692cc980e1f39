"""Repairs: what has rotted in one replica's log is fetched from another, and put back in its place.

Begun by whoever finds it: a reader, a push to another replica, the scrubber. The whole segment is looked at, in a
worker. Only what lies below the high watermark is asked for, since only that is the same everywhere, and it is put back
only if it is as long as what was there and its checksums hold (`log.repair`). Where no other broker has a healthy copy,
or the cleaner has been at work differently there, everything stays as it is, and readers are told so as before.

A lane of a branch is the same wherever it is held, to its end, so any broker in view is asked that holds it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from anabranch.broker.peers.messages import ReadRecords, Records
from anabranch.broker.peers.peers import Peers
from anabranch.broker.ring.driver import ring_driver
from anabranch.broker.ring.replication_chunks import PIECE_BYTES_MAX, check_batches
from anabranch.broker.topics.partition import Partition
from anabranch.broker.workers import Workers, in_heavy_worker
from anabranch.clock import Clock
from anabranch.cluster.metadata.residence import BRANCHED
from anabranch.errors import AnabranchError, CorruptDataError, InvalidRequestError
from anabranch.log.repair import Rotten, Suspect, put_back, rotten, suspect
from anabranch.log.segment.segment import Segment
from anabranch.modes.branch.lines import Span
from anabranch.values import BrokerId, Offset

if TYPE_CHECKING:
    from anabranch.broker.branch.lanes.reads import Piece
    from anabranch.broker.branch.partition import BranchPartition

logger = logging.getLogger(__name__)

ASK_MS = 5000
PAUSES_S = (0.1, 0.3, 1.0, 3.0)
"""Between the tries of one repair: what was written a moment ago may not be known to be safe everywhere yet, and a
broker may be on its way back."""
AGAIN_MS = 10_000
"""Before the next try at the same partition, if the last one could not repair everything."""


class Repairs:
    def __init__(self, peers: Peers, workers: Workers, clock: Clock) -> None:
        self._peers = peers
        self._workers = workers
        self._clock = clock
        self._begun_ms: dict[Partition, int] = {}
        """The tries that are under way, or failed lately."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.lane_holders: Callable[[], Iterable[BrokerId]] = tuple
        self.read_lane: Callable[[Any, BrokerId, Span], Awaitable[Piece | None]] | None = None
        """Set where there are branches: who may hold lanes, and how one is asked for records of one."""
        self.regions_repaired_total = 0
        self.regions_beyond_repair_total = 0

    def begin(self, partition: Partition, offset: Offset) -> None:
        """Records from this offset on cannot be read: see to it."""
        now_ms = self._clock.monotonic_ms()
        begun_ms = self._begun_ms.get(partition)
        if begun_ms is not None and now_ms - begun_ms < AGAIN_MS:
            return
        if ring_driver(partition) is None and partition.residence != BRANCHED:
            return
        self._begun_ms = {one: ms for one, ms in self._begun_ms.items() if now_ms - ms < AGAIN_MS}
        self._begun_ms[partition] = now_ms
        task = asyncio.get_running_loop().create_task(self._repair(partition, offset))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a repair failed: this is a defect", exc_info=error)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _repair(self, partition: Partition, offset: Offset) -> None:
        reason: AnabranchError | None = None
        for pause_s in (*PAUSES_S, None):
            async with partition.upkeep:
                if partition.is_gone:
                    return
                reason = await self._repair_segment(partition, _segment_at(partition, offset))
            if reason is None:
                self._begun_ms.pop(partition, None)
                return
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        assert reason is not None
        self._give_up(partition, reason)

    async def _repair_segment(self, partition: Partition, segment: Segment) -> AnabranchError | None:
        """Why not all of it is whole now."""
        found = suspect(segment)
        try:
            bad = await in_heavy_worker(self._workers, lambda: rotten(found))
        except AnabranchError as error:
            return error
        reasons = [await self._repair_one(partition, found, one) for one in bad]
        segment.note_repaired()
        return next((reason for reason in reasons if reason is not None), None)

    async def _repair_one(self, partition: Partition, found: Suspect, bad: Rotten) -> AnabranchError | None:
        ring = ring_driver(partition)
        if ring is not None and bad.end > partition.high_watermark:
            return CorruptDataError("it is not known to be safe anywhere")
        reason: AnabranchError = CorruptDataError("nobody else is heard")
        for broker in self._others(partition):
            if not self._peers.is_up(broker):
                continue
            try:
                if ring is not None:
                    data = await self._fetch(partition, ring.mode.view, broker, bad)
                else:
                    data = await self._fetch_lane(partition, broker, bad)
                await in_heavy_worker(self._workers, lambda data=data: put_back(found.file, bad, data))  # type: ignore[misc]
            except AnabranchError as error:
                reason = error
                continue
            self.regions_repaired_total += 1
            logger.warning(
                "%s: offsets %d to %d were repaired from broker %d", partition.id, *bad[1:], broker
            )
            return None
        return reason

    def _give_up(self, partition: Partition, reason: AnabranchError) -> None:
        self.regions_beyond_repair_total += 1
        logger.error("%s cannot be repaired from another broker: %s", partition.id, reason)

    def _others(self, partition: Partition) -> Iterable[BrokerId]:
        ring = ring_driver(partition)
        return ring.mode.replica.others if ring is not None else self.lane_holders()

    async def _fetch_lane(self, partition: Partition, broker: BrokerId, bad: Rotten) -> bytes:
        at, pieces, size = bad.start, [], 0
        branches = cast("BranchPartition", partition).branches
        while self.read_lane is not None and at < bad.end and size <= bad.size_bytes:
            piece = await self.read_lane(partition, broker, Span(branches.lane_at(at), at, bad.end))
            if piece is None or not piece.data:
                break
            at = piece.end
            pieces.append(piece.data)
            size += len(piece.data)
        return b"".join(pieces)

    async def _fetch(self, partition: Partition, view: int, broker: BrokerId, bad: Rotten) -> bytes:
        at, pieces, size = bad.start, [], 0
        while at < bad.end and size <= bad.size_bytes:
            question = ReadRecords(
                partition.topic_id,
                partition.id.partition,
                view,
                at,
                bad.end,
                PIECE_BYTES_MAX,
            )
            answer = await self._peers.ask(broker, question, ASK_MS)
            assert isinstance(answer, Records)
            data = bytes(answer.data)
            batches = check_batches(data)
            if not batches:
                break
            if any(not at <= header.base_offset <= header.last_offset < bad.end for _, header in batches):
                raise CorruptDataError(f"Broker {broker} sent other records than were asked for.")
            at = batches[-1][1].next_offset
            pieces.append(data)
            size += len(data)
        return b"".join(pieces)


def _segment_at(partition: Partition, offset: Offset) -> Segment:
    """The one with the first record from `offset` on."""
    segments = partition.log.segments
    filled = [one for one in segments if one.published_bytes and one.published_offset > offset]
    return filled[0] if filled else segments[-1]


def read_records(partition: Partition | None, question: ReadRecords) -> Records:
    """The other side: whole batches of our copy that are safe, and hold. Raises AnabranchError."""
    ring = ring_driver(partition) if partition is not None else None
    if partition is None or ring is None or ring.mode.view != question.view:
        raise InvalidRequestError("The partition is not kept here, or not with those.")
    if not question.start < question.end <= partition.high_watermark:
        raise InvalidRequestError(f"{question.end} lies beyond what is known to be safe here.")
    limit = min(question.bytes_max, PIECE_BYTES_MAX)
    data = partition.log.slice(question.start, limit, question.end).read()
    check_batches(data)
    return Records(data)
