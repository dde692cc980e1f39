"""LaneReading: the bytes of lanes, from this broker's disk or from whoever in view holds them (reads follow the rows).

What another broker sends is checked like anything from outside: whole batches whose CRC holds, of the lane and the
range that were asked for.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from anabranch.broker.peers.messages import LaneRecords, ReadLane
from anabranch.broker.workers import in_heavy_worker
from anabranch.errors import CorruptDataError, PeerError, PeerProtocolError
from anabranch.modes.branch.lines import Span
from anabranch.modes.branch.rows import first_offset
from anabranch.record.batch import batch_spans, check_batch
from anabranch.values import BrokerId, Offset

if TYPE_CHECKING:
    from anabranch.broker.branch.partition import BranchPartition
    from anabranch.broker.peers.peers import Peers
    from anabranch.broker.workers import Workers
    from anabranch.log.segment.slice import Slice

PIECE_BYTES_MAX = 4 * 2**20
ANSWER_MS_MAX = 5000
"""For the records themselves: on top of what the other broker waits for them."""


class Piece(NamedTuple):
    """Whole batches from some offset on, and where what follows them begins. The first may begin before that offset,
    if somebody has removed only some of its records."""

    data: bytes
    end: Offset


class LaneReading:
    def __init__(self, peers: "Peers", workers: "Workers", view: Callable[[], Iterable[BrokerId]]) -> None:
        self._peers = peers
        self._workers = workers
        self._view = view

    async def read(
        self, partition: "BranchPartition", span: Span, first_ask: BrokerId | None = None
    ) -> Piece | None:
        """The first batches of a span; None: nobody in view has them, as far as anybody answers. An empty piece: there
        is no record up to its end. Raises StorageError, CorruptDataError."""
        log = partition.lanes.get(span.lane)
        if log is not None and log.start_offset <= span.start < log.end_offset:
            end = Offset(min(span.end, log.end_offset))
            found = log.slice(
                span.start, PIECE_BYTES_MAX, end
            )  # On the loop, which owns what a log remembers.
            return await in_heavy_worker(self._workers, lambda: read_slice(found, span, end))
        return await self.read_elsewhere(partition, span, first_ask)

    async def read_elsewhere(
        self, partition: "BranchPartition", span: Span, first_ask: BrokerId | None = None
    ) -> Piece | None:
        """`read` from another broker."""
        for broker in sorted(self._view(), key=lambda broker: (broker != first_ask, broker)):
            try:
                piece = await self.ask(partition, broker, span)
            except (PeerError, CorruptDataError):
                continue
            if piece is not None:
                return piece
        return None

    async def ask(self, partition: "BranchPartition", broker: BrokerId, span: Span) -> Piece | None:
        """None: it does not hold the beginning of the span. Raises PeerError, CorruptDataError."""
        answer = await self.ask_lane(partition, broker, span, wait_ms=0, is_copying=False)
        if not answer.start <= span.start < answer.end:
            return None
        return piece_of(answer, span)

    async def ask_lane(
        self, partition: "BranchPartition", broker: BrokerId, span: Span, *, wait_ms: int, is_copying: bool
    ) -> LaneRecords:
        """Raises PeerError."""
        question = ReadLane(
            *partition.key, span.lane, span.start, span.end, PIECE_BYTES_MAX, wait_ms, is_copying
        )
        answer = await self._peers.ask(broker, question, ANSWER_MS_MAX + wait_ms)
        if not isinstance(answer, LaneRecords):
            raise PeerProtocolError("an answer about a lane is of another kind")
        return answer


def read_slice(found: "Slice", span: Span, end: Offset) -> Piece:
    """In a worker: what a log has at the beginning of a span, none of it at `end` or beyond. Raises StorageError,
    CorruptDataError."""
    data = found.read()
    return Piece(data, _checked_end(data, span) or end)


def piece_of(answer: LaneRecords, span: Span) -> Piece:
    """Raises CorruptDataError."""
    data = bytes(answer.data)
    return Piece(data, _checked_end(data, span) or Offset(min(span.end, answer.end)))


def _checked_end(data: bytes, span: Span) -> Offset | None:
    """Where the last of these batches ends; None: there is none. Raises CorruptDataError."""
    end = span.start
    for first, last in batch_spans(data):
        header = check_batch(data, first, last, fresh=False)
        is_cut = first == 0 and first_offset(span.lane) <= header.base_offset < end < header.next_offset
        if (header.base_offset < end and not is_cut) or header.next_offset > span.end:
            raise CorruptDataError(
                f"A batch at {header.base_offset} came where offsets {end} to {span.end} were asked for."
            )
        end = header.next_offset
    return end if data else None


class Growth:
    """Wakes those who wait for a lane to grow."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            pass
        finally:
            self._waiting.pop(future, None)
