"""Writing records of two lines again, aside: into a lane that no row names yet.

Batches are copied whole, each with its old offset plus one number for its span, so that a row can say where they were
first. Left out are those that somebody removed, and those that are there already because a producer sent them to both
sides. A crash leaves a folder that nobody names.
"""

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from anabranch.broker.branch.lanes.reads import LaneReading
from anabranch.broker.branch.line_view import NO_GENERATION
from anabranch.broker.branch.offsets import batch_of
from anabranch.broker.workers import in_heavy_worker
from anabranch.errors import AnabranchError
from anabranch.modes.branch.lines import Merge, Span
from anabranch.modes.branch.rows import Lane, Source, first_offset
from anabranch.record.batch import BatchHeader, batch_spans, read_header, stamp
from anabranch.record.compaction.batches import without_below
from anabranch.values import BrokerId, Offset

if TYPE_CHECKING:
    from anabranch.broker.branch.offsets import Commits
    from anabranch.broker.branch.partition import BranchPartition
    from anabranch.broker.workers import Workers
    from anabranch.clock import Clock
    from anabranch.log.log import Log

Identity = tuple[int, int, int, int]

logger = logging.getLogger(__name__)


class MissingRecordsError(Exception):
    """Nobody in view holds the records that have to be written again: later perhaps somebody does."""


class Merging:
    """One merge of one partition."""

    def __init__(
        self,
        partition: "BranchPartition",
        reading: LaneReading,
        workers: "Workers",
        clock: "Clock",
        source: BrokerId | None,
        commits: "Commits | None" = None,
    ) -> None:
        """`source`: who has most of what is not here. `commits`: of groups, if that is what the records are."""
        self._commits = commits
        self._partition = partition
        self._reading = reading
        self._workers = workers
        self._clock = clock
        self._source = source
        self._there: set[Identity] = set()
        self.records_again = 0

    async def write_aside(
        self, lane: Lane, plan: Merge, kept: Iterable[Span], removed: Mapping[Lane, Offset]
    ) -> tuple[Source, ...]:
        """Into a new lane, synced. `kept`: what stays of the lines behind what they have in common. Raises
        MissingRecordsError, AnabranchError; then the lane is dropped."""
        partition = self._partition
        lanes = partition.lanes
        log = await in_heavy_worker(self._workers, lambda: lanes.make(lane, first_offset(lane)))
        try:
            for span in kept:
                await self._note(_without(span, removed))
            sources = [await self._copy(log, _without(span, removed)) for span in plan.again]
            self._write_commits(log)
            await in_heavy_worker(self._workers, log.sync)
        except (AnabranchError, MissingRecordsError):
            dropped = partition.lanes.drop(lane)
            await in_heavy_worker(self._workers, dropped.delete)
            raise
        return tuple(source for source in sources if source is not None)

    def _write_commits(self, log: "Log") -> None:
        """Behind all else: they are what counts."""
        records = self._commits.lesser() if self._commits is not None else []
        if records:
            now_ms, start = self._clock.wall_ms(), log.end_offset
            batch = batch_of(records, start, now_ms)
            stamp(batch, 0, start, NO_GENERATION)
            log.append([(batch, start, Offset(start + len(records) - 1), now_ms)], now_ms)

    async def _note(self, span: Span) -> None:
        """Who wrote what stays."""
        async for data in self._pieces(span):
            for first, _ in batch_spans(data):
                self._is_there(read_header(data, first))

    async def _copy(self, log: "Log", span: Span) -> Source | None:
        new_start, begin = log.end_offset, span.start
        end = begin
        async for data in self._pieces(span):
            copied = bytearray(data)
            first_header = read_header(copied)
            is_cut = first_header.base_offset < begin
            if is_cut:
                copied = await in_heavy_worker(self._workers, partial(_first_cut, copied, begin))
                begin = end = first_header.base_offset
            shift = new_start - begin
            batches = []
            for first, last in batch_spans(copied):
                header = read_header(copied, first)
                # What is left of a batch has another checksum; the whole one may be there, or come yet.
                if self._is_there(first_header if is_cut and first == 0 else header):
                    continue
                base = Offset(header.base_offset + shift)
                stamp(copied, first, base, NO_GENERATION)
                batch = memoryview(copied)[first:last]
                batches.append((batch, base, Offset(header.last_offset + shift), header.max_timestamp))
                end = header.next_offset
                self.records_again += header.record_count
            log.append(batches, self._clock.wall_ms())
        return Source(span.lane, begin, end, new_start) if end > begin else None

    async def _pieces(self, span: Span):  # type: ignore[no-untyped-def]
        position = span.start
        while position < span.end:
            piece = await self._reading.read(
                self._partition, Span(span.lane, position, span.end), self._source
            )
            if piece is None:
                raise MissingRecordsError(f"nobody in view holds {span.lane} from {position} on")
            if piece.data and self._commits is not None:
                self._commits.see(span.lane, piece.data)
            if piece.data:
                yield piece.data
            position = piece.end

    def _is_there(self, header: BatchHeader) -> bool:
        """Whether this batch of a producer that numbers them has come before."""
        if header.producer_id < 0:
            return False
        identity = (header.producer_id, header.producer_epoch, header.base_sequence, header.crc)
        if identity in self._there:
            return True
        self._there.add(identity)
        return False


def _first_cut(data: bytearray, start: Offset) -> bytearray:
    """In a worker: without the records below `start`, which were removed. What nobody can unpack stays as it is."""
    first, last = next(batch_spans(data))
    try:
        return without_below(memoryview(data)[first:last], start) + data[last:]
    except AnabranchError as error:
        logger.warning("records below %d come again, as their batch cannot be unpacked: %s", start, error)
        return data


def _without(span: Span, removed: Mapping[Lane, Offset]) -> Span:
    start = min(span.end, max(span.start, removed.get(span.lane, span.start)))
    return Span(span.lane, start, span.end)
