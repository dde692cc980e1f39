"""Copying: spans of lanes from other brokers into lanes here, each from its beginning on and always in order."""

from typing import TYPE_CHECKING

from anabranch.broker.branch.lanes.reads import LaneReading, Piece
from anabranch.broker.branch.merging import MissingRecordsError
from anabranch.broker.workers import in_heavy_worker
from anabranch.modes.branch.lines import Span
from anabranch.modes.branch.rows import Lane
from anabranch.record.batch import read_header
from anabranch.values import BrokerId, Offset

if TYPE_CHECKING:
    from anabranch.broker.branch.partition_role import BranchSeat
    from anabranch.broker.workers import Workers
    from anabranch.clock import Clock


class Copying:
    def __init__(self, reading: LaneReading, workers: "Workers", clock: "Clock") -> None:
        self._reading = reading
        self._workers = workers
        self._clock = clock

    async def copy(self, seat: "BranchSeat", span: Span, source: BrokerId | None = None) -> None:
        """Have everything of a lane up to the end of the span here, synced. Raises MissingRecordsError, StorageError,
        CorruptDataError."""
        position = self.position(seat, span)
        while position < span.end:
            rest = Span(span.lane, position, span.end)
            piece = await self._reading.read_elsewhere(seat.partition, rest, source)
            if piece is None:
                raise MissingRecordsError(f"nobody in view holds lane {span.lane} from {position} on")
            position = await self.put(seat, rest, piece)
        log = seat.partition.lanes.get(span.lane)
        if log is not None and not seat.is_held(span):
            await in_heavy_worker(self._workers, log.sync)

    def position(self, seat: "BranchSeat", span: Span) -> Offset:
        """From where on records of this lane are missing here."""
        log = seat.partition.lanes.get(span.lane)
        start = seat.partition.branches.opened[span.lane].new_start
        wanted = max(start, seat.removed(span.lane))
        return Offset(wanted if log is None else max(wanted, log.end_offset))

    async def put(self, seat: "BranchSeat", span: Span, piece: Piece) -> Offset:
        """Write what came for a span that begins where the copy here ends; the answer is where it ends now. Raises
        StorageError, CorruptDataError."""
        lanes = seat.partition.lanes
        begin = min(span.start, read_header(piece.data).base_offset) if piece.data else span.start
        await self.make(seat, span.lane, Offset(begin))
        if piece.data:
            lanes.append_copied(span.lane, piece.data, self._clock.wall_ms())
        lanes.extend(span.lane, piece.end)
        return piece.end

    async def make(self, seat: "BranchSeat", lane: Lane, start: Offset) -> None:
        """Have a lane here to copy to, if there is none. Raises StorageError."""
        lanes = seat.partition.lanes
        async with seat.making:
            if lane not in lanes:
                await in_heavy_worker(self._workers, lambda: lanes.make(lane, start))
