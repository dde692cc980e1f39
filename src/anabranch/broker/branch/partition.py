"""BranchPartition: a partition in mode branch, as this broker sees it. Every broker has it open, with or without lanes.

Its log is a view (`branch_log.py`): the line that ends in the lane this broker has *adopted*, as far as it holds that.
While it reigns, it writes to a lane of its own, begun with this reign: `begin_reign`, `end_reign`. While another does,
it may copy what that one writes (`lanes`) and goes over to its line with `adopt`.

What it has adopted is in the file `branch` of its folder. Before a reign the file names the lane that is to come, too:
that one counts from the moment the branch log has its row. So one synced row is the switch, whatever was written aside
before; a crash before it leaves the line as it was.

All methods run on the loop's thread, but for `prepare_reign`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, cast
from uuid import UUID

from anabranch.broker.branch.branch_log import BranchTube
from anabranch.broker.branch.lanes.log_to_lanes import CLOSING_FILE
from anabranch.broker.branch.lanes.logs import LaneLogs
from anabranch.broker.branch.lanes.snapshots import LaneSnapshots
from anabranch.broker.branch.line_view import NO_GENERATION, BranchLog, headers_of
from anabranch.broker.branch.served_records import records_behind
from anabranch.broker.topics.partition import Partition, let_wait, plain_limits_of
from anabranch.broker.topics.partition_opener import write_producers
from anabranch.broker.topics.topic_folders import BRANCH_FILE
from anabranch.broker.workers import Workers, in_heavy_worker, to_its_end
from anabranch.broker.write.append_queue import AppendJob
from anabranch.clock import Clock
from anabranch.cluster.metadata.residence import BRANCHED
from anabranch.cluster.metadata.rows import Placement
from anabranch.config import TopicSettings
from anabranch.errors import AnabranchError, NotOwnerError, StorageError
from anabranch.log.disk.checkpoint import RecoveryMark, read_checkpoint, write_checkpoint
from anabranch.log.disk.files import Files
from anabranch.modes.branch.lane_producers import LaneProducers
from anabranch.modes.branch.leaving import Promise
from anabranch.modes.branch.lines import Branches, Line, Span
from anabranch.modes.branch.mode import BranchMode
from anabranch.modes.branch.rows import NO_LANE, BranchRow, Lane, RowKind, Tip, lane_limit, sealed
from anabranch.modes.mode import FlushFinished
from anabranch.record.batch import BatchHeader
from anabranch.values import BrokerId, Offset, TopicPartition

if TYPE_CHECKING:
    from anabranch.broker.branch.lanes.gaps import LaneGaps
    from anabranch.broker.read.reading import Reading
    from anabranch.log.log import Log

logger = logging.getLogger(__name__)

ROOM_MIN = 2**28
"""More records than any one turn can bring: with fewer numbers left in its lane, a reign takes none."""
ROOM_SCARCE = 2**29
"""With fewer than these left it is time for another lane."""
NO_SNAPSHOT = Offset(-1)
NOTHING_CUT = 2**63 - 1
FOLLOWED_RECORDS = 10_000
"""So many more, and it is written down who has sent them: whoever takes over reads no more than about these."""


def _no_generation_before() -> int:
    """It has always had branches."""
    return -1


class BranchPartition(Partition):
    __slots__ = (
        "_clock",
        "_files",
        "_followed_end",
        "_generation_before",
        "_snapshots",
        "_workers",
        "branched_view",
        "branches",
        "gaps",
        "is_alone",
        "key",
        "lanes",
        "leader",
        "on_ended",
        "on_fenced",
        "on_scarce",
        "on_written",
        "promise",
        "reign",
        "switching",
        "tube",
    )

    residence = BRANCHED
    start_is_in_file = False
    mode: BranchMode

    def __init__(
        self,
        partition_id: TopicPartition,
        topic_id: UUID,
        lanes: LaneLogs,
        tube: BranchTube,
        gaps: "LaneGaps",
        settings: TopicSettings,
        *,
        broker_id: BrokerId,
        files: Files,
        clock: Clock,
        workers: Workers,
        sync_first: bool,
        is_alone: bool,
        branched_view: int = 0,
        generation_before: Callable[[], int] = _no_generation_before,
        request_sync: Callable[[Partition], None],
        on_publish: Callable[[Partition], None],
        finish: Callable[[AppendJob], None],
        finished: Callable[[int], None],
    ) -> None:
        """`is_alone`: there are no other brokers, so nobody else can have written or copied anything; `branched_view`:
        in which it went over to branches; `generation_before`: the last one of before that."""
        self.branched_view = branched_view
        self.key = topic_id, partition_id.partition
        self.lanes = lanes
        self.tube = tube
        self.gaps = gaps
        self.branches: Branches = tube.branches(self.key)
        self.reign: Lane | None = None
        """The lane that this broker writes to now; None: it does not reign."""
        self.leader: BrokerId | None = None
        """Who reigns, as far as is known here."""
        self.on_ended: Callable[[], None] = _nobody_copies
        """A reign is over."""
        self.on_written: Callable[[], None] = _nobody_copies
        """Somebody may wait for what was just written, to copy it."""
        self.is_alone = is_alone
        self.on_scarce: Callable[[BranchPartition], None] = _nobody_cares
        """Told when the lane of this reign is nearly full."""
        self.on_fenced: Callable[[BranchPartition], None] = _nobody_cares
        """Told when the disk has failed this reign: nothing can be written to its lane any more."""
        self.switching: asyncio.Lock = asyncio.Lock()
        """Held by whoever begins or ends a reign, or adopts another line."""
        self._generation_before = generation_before
        self._files = files
        self._snapshots = LaneSnapshots(files, lanes.folder)
        self._followed_end = NO_SNAPSHOT
        """Where the line ended when its producers were last written down."""
        self._clock = clock
        self._workers = workers
        self.promise = self._promised()
        """What this broker has promised last; whether it is bound by it is for the table to say."""
        log = BranchLog(str(partition_id), lanes, self.branches, skips_lost=is_alone)
        log.show(self._adopted())
        super().__init__(
            partition_id,
            topic_id,
            cast("Log", log),
            BranchMode(broker_id, log.end_offset if is_alone else log.start_offset, sync_first=sync_first),
            settings,
            request_sync=request_sync,
            on_publish=on_publish,
            finish=finish,
            finished=finished,
        )
        self.generation = NO_GENERATION
        self.has_gaps = True
        self.producers = LaneProducers(Offset(0))
        self._renew_limits()

    # --- what is adopted -----------------------------------------------------------------------------------------

    def _adopted(self) -> Lane:
        """In which lane the line ends, by the file of the last life."""
        path = self._branch_path
        state, reason = read_checkpoint(self._files, path)
        if state is None:
            if self.branches.opened and self.is_alone:
                logger.error("%s says where the line of this broker ends, but %s", path, reason)
                return self.branches.highest  # Every reign was its own, one behind the other.
            if self._files.exists(path):
                raise StorageError(
                    f"{path} says to which branch this broker's records belong, but {reason}: restore it from a backup."
                )
            return NO_LANE
        known = (state["next"], state["adopted"])
        return next((Lane(lane) for lane in known if Lane(lane) in self.branches.opened), NO_LANE)

    @property
    def _branch_path(self) -> str:
        return f"{self.lanes.folder}/{BRANCH_FILE}"

    def _write_adopted(self, adopted: Lane, following: Lane = NO_LANE) -> None:
        """Any thread. Raises StorageError."""
        try:
            state = {"adopted": adopted, "next": following, "view": self.branched_view}
            write_checkpoint(self._files, self._branch_path, state)
        except OSError as error:
            raise StorageError(
                f"{self._branch_path} cannot be written: {error.strerror or error}."
            ) from error

    def _promised(self) -> Promise | None:
        path = f"{self.lanes.folder}/{CLOSING_FILE}"
        state, reason = read_checkpoint(self._files, path)
        if state is not None:
            return Promise(state["move"], BrokerId(state["to"]))
        if self._files.exists(path):
            raise StorageError(
                f"{path} says what this broker has promised, but {reason}: restore it from a backup."
            )
        return None

    async def give_promise(self, promise: Promise) -> None:
        """It binds from now on, and is on the disk when this returns. Raises StorageError; then it binds all the same,
        as long as this process lives."""
        self.promise = promise
        await in_heavy_worker(self._workers, lambda: self._write_promise(promise))

    def _write_promise(self, promise: Promise) -> None:
        path = f"{self.lanes.folder}/{CLOSING_FILE}"
        try:
            write_checkpoint(self._files, path, {"move": promise.move, "to": promise.to})
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror or error}.") from error

    @property
    def view(self) -> BranchLog:
        """`log` by its own type."""
        return cast(BranchLog, self.log)

    @property
    def tip(self) -> Tip:
        """Where the line of this broker ends: its records are on this side of it, here or at others."""
        return self.view.tip

    @property
    def line(self) -> Line:
        return self.view.line

    @property
    def lag(self) -> int:
        """How many records of its line are not here; others may have them."""
        return sum(self._missing(span) for span in self.line[:-1])

    def _missing(self, span: Span) -> int:
        start = max(span.start, self.branches.removed.get(span.lane, Offset(0)))
        log = self.lanes.get(span.lane)
        held = 0 if log is None else min(log.end_offset, span.end) - max(log.start_offset, start)
        return max(0, span.end - start - max(0, held))

    async def adopt(self, lane: Lane, safe: Offset) -> None:
        """Go over to the line that ends in this lane, up to where that is held here; below `safe` others have it too.
        Whether that may be is the caller's to know. Raises StorageError, UnknownBranchError; then nothing changes."""
        await to_its_end(self._adopt(lane, safe))

    async def _adopt(self, lane: Lane, safe: Offset) -> None:
        async with self.switching:
            assert self.reign is None, "whoever reigns ends that first"
            self.branches.line(Tip(lane, Offset(0)))
            await in_heavy_worker(self._workers, lambda: self._write_adopted(lane))
            self.view.show(lane)
            self.follow(safe)

    def follow(self, safe: Offset) -> None:
        """Another broker reigns, and says what is safe of its line, which is ours."""
        self.carry_out(self.mode.follow(min(safe, self.log.end_offset)))

    def refresh(self, rows: Sequence[BranchRow]) -> None:
        """Rows of this partition have come."""
        if any(row.kind in (RowKind.STARTED, RowKind.OPENED) for row in rows):
            self.view.refresh()

    @property
    def readable_end(self) -> Offset:
        return self._below_floor(self.view.readable_end(self.high_watermark))

    def is_placed_by(self, placement: Placement) -> bool:
        return self.branched_view == placement.view

    @property
    def base(self) -> "BranchPartition":
        """The partition whose lanes it reads; of a view that is another one."""
        return self

    @property
    def deletable_end(self) -> Offset:
        return self.high_watermark

    def records_from(self, offset: int) -> int:
        return records_behind(self.gaps, self, offset)

    def may_come(self, offset: Offset, reading: "Reading") -> bool:
        """Nobody here knows what comes on other sides of a split: what lies beyond the line is waited for."""
        return offset > self.log.end_offset

    def generation_end(self, generation: int) -> tuple[int, int] | None:
        """What was read before the topic had branches was never cut."""
        if 0 <= generation <= self._generation_before():
            return generation, NOTHING_CUT
        return super().generation_end(generation)

    def check_generation(self, generation: int) -> None:
        """There is none, and whatever a client says (librdkafka: 0) is right."""

    # --- reigns --------------------------------------------------------------------------------------------------

    async def begin_reign(self, row: BranchRow, copies: Sequence[BrokerId] = ()) -> None:
        """Write to the lane that `row` opens, from now on. Its parent is the tip that this broker has adopted, or one
        that a merge has found; what the row names as sources is in the lane already. `copies`: who is to have a record
        before it is safe. Raises StorageError; then nobody has heard of the row, and nothing changes."""
        await to_its_end(self._begin_reign(row, copies))

    async def _begin_reign(self, row: BranchRow, copies: Sequence[BrokerId]) -> None:
        async with self.switching:
            producers = await in_heavy_worker(self._workers, lambda: self.prepare_reign(row))
            await self.tube.add([row])
            self.enter_reign(row, producers, copies)

    def prepare_reign(self, row: BranchRow) -> LaneProducers:
        """In a worker, or at a start: all that has to be on the disk before the row is. The answer is the table of
        producers of the new line. Raises StorageError."""
        assert row.kind is RowKind.OPENED
        assert self.reign is None, "a reign has one lane"
        lanes = self.lanes
        if row.new not in lanes:
            assert not row.sources, "what a branch begins with is written before it is opened"
            lanes.make(row.new, row.new_start)
        assert lanes.held(row.new) is not None
        if row.old in lanes:
            lanes.sync(row.old)  # Where the row says that the branch before ends, it ends for ever.
        lanes.extend(row.new, row.sources_end)
        lanes.sync(row.new)
        self._write_adopted(self.view.lane, row.new)
        return self._producers_of(row)

    def enter_reign(self, row: BranchRow, producers: LaneProducers, copies: Sequence[BrokerId] = ()) -> None:
        """The row is on the disk: this is the line now."""
        assert row.new in self.branches.opened, "the row is the switch"
        view, log = self.view, self.lanes.get(row.new)
        assert log is not None
        view.show(row.new)
        view.writing = log
        self.reign = row.new
        self.producers = producers
        if self.producer_limits is not None:
            self.producer_limits.shorten(self)
        self.carry_out(self.mode.begin(row.new_start, log.end_offset, copies))
        self._renew_limits()
        self.wake()

    async def end_reign(self, error: AnabranchError) -> Tip:
        """Take no more; whoever waits is told `error`, unless its records are safe once all is synced. Where the lane
        ends is a synced row when this returns, and the answer. Raises StorageError; the reign is over all the same."""
        return await to_its_end(self._end_reign(error))

    async def _end_reign(self, error: AnabranchError) -> Tip:
        async with self.switching:
            if self.reign is None:
                return self.tip
            lane, log = self.reign, self.view.writing
            assert log is not None
            self.reign = None
            self._renew_limits()
            try:
                end = await in_heavy_worker(self._workers, log.sync)
                self.carry_out(self.mode.step(FlushFinished(end), self._clock.wall_ms()))
                await self.tube.add([sealed(self.key, Tip(lane, end), self._clock.wall_ms())])
            finally:
                self.mode.end()
                self.view.writing = None
                self.lost_leadership(error)
                self.on_ended()
                self.wake()
            return self.tip

    def wake(self) -> None:
        """Whoever waits to read finds another line, or nobody who reigns."""
        if self.waiting_fetches:
            self._on_publish(self)

    @property
    def is_lane_scarce(self) -> bool:
        """The lane of this reign is nearly full: it is time for another."""
        return self.reign is not None and lane_limit(self.reign) - self.log.end_offset < ROOM_SCARCE

    # --- producers -----------------------------------------------------------------------------------------------

    def _producers_of(self, row: BranchRow) -> LaneProducers:
        """Who has written to the line that `row` goes on from, and to what it begins with."""
        parent = Tip(row.old, row.old_end)
        line = (*self.branches.line(parent), self.lanes.held(row.new))
        spans = [span for span in line if span is not None]
        table, self.snapshot_offset = self._table_of(spans, row, self._clock.wall_ms())
        return table

    def _table_of(
        self, line: Sequence[Span], last: BranchRow, now_ms: int | None = None
    ) -> tuple[LaneProducers, Offset]:
        """Of a line that ends in the lane of `last`, and from where on it had to be read. `now_ms`: it is going to be
        written to, and its producers count as silent from now on. Any thread."""
        seams = [seam for each in (*self.branches.opened.values(), last) for seam in each.seams]
        table = LaneProducers(
            last.sources_end, self._clock.monotonic_ms, seams=sorted(seams), is_alone=self.is_alone
        )
        table.producers.update(self.archived.producers_below())
        snapshot, start = self._snapshots.newest(line), NO_SNAPSHOT
        if snapshot is not None:
            table.restore(snapshot, now_ms)
            start = Offset(snapshot["offset"])
        table.replay_all(self._headers(line, start), now_ms)
        return table, start

    def _headers(self, line: Sequence[Span], start: Offset) -> Iterator[BatchHeader]:
        for span in line:
            log = self.lanes.get(span.lane)
            if log is not None and span.end > start:
                yield from headers_of(log, span._replace(start=max(span.start, start)))

    async def save_followed(self, silent_since_ms: int) -> None:
        """Write down who has written to the line of another's reign, if that has grown much: whoever begins to reign
        reads only the rest. Raises StorageError."""
        lane = self.view.lane
        held, row = self.lanes.held(lane), self.branches.opened.get(lane)
        if self.reign is not None or held is None or row is None or self.lag:
            return
        if abs(held.end - self._followed_end) < FOLLOWED_RECORDS:
            return
        line = self.branches.line(Tip(lane, held.end))
        folder = self._snapshots.folder_of(lane)

        def task() -> None:
            table, _ = self._table_of(line, row)
            table.expire(silent_since_ms)
            snapshot = {"offset": held.end, "producers": table.snapshot(held.end)}
            write_producers(self._files, folder, snapshot)

        await in_heavy_worker(self._workers, task)
        self._followed_end = held.end

    @property
    def snapshot_folder(self) -> str:
        return self.log.folder if self.reign is None else self._snapshots.folder_of(self.reign)

    @property
    def keeps_producers(self) -> bool:  # type: ignore[override]  # Elsewhere, always.
        return self.reign is not None

    def recovery_marks(self, key: str) -> dict[str, RecoveryMark]:
        return {lane_key(key, lane): mark for lane, mark in self.lanes.recovery_marks().items()}

    # --- what is promised ----------------------------------------------------------------------------------------

    @property
    def copies(self) -> int:
        return 1 + len(self.mode.copies)

    @property
    def acks1_waits(self) -> bool:
        return True

    @property
    def is_leader(self) -> bool:
        return self.reign is not None

    @property
    def is_settled(self) -> bool:
        return self.is_alone or self.mode.is_settled

    def check_leader(self) -> None:
        """Only the primary serves readers, if there may be another."""
        if self.reign is None and not self.is_alone:
            raise NotOwnerError(f"This broker does not reign over {self.id} now.")

    def _refusal(self) -> AnabranchError | None:
        if self._gone_because is not None or self.view.fenced:
            return super()._refusal()
        if self.reign is None:
            return NotOwnerError(f"This broker does not reign over {self.id} now.")
        if lane_limit(self.reign) - self.log.end_offset < ROOM_MIN:
            return NotOwnerError(f"The lane of {self.id} is full, and another comes in a moment.")
        return None

    def _renew_limits(self) -> None:
        limits = plain_limits_of(self._settings) if self.reign is not None and not self.is_gone else None
        if limits is not None:
            limits = (
                (*limits[:2], 1, limits[3]) if self._settings.min_insync_replicas <= self.copies else None
            )
        self.plain_limits = limits

    # --- writing -------------------------------------------------------------------------------------------------

    def write(self, jobs: list[AppendJob], now_ms: int) -> None:
        refusal = self._refusal()
        if refusal is not None:
            self._fail(jobs, refusal)
            return
        let_wait(jobs, self._clock.monotonic_ms())
        super().write(jobs, now_ms)
        self.on_written()
        if self.is_lane_scarce:
            self.on_scarce(self)

    def sync_failed(self, error: StorageError) -> None:
        super().sync_failed(error)
        if self.view.fenced:
            self.on_fenced(self)

    def count_copies(self, copies: Sequence[BrokerId]) -> None:
        """Who is to have a record before it is safe, besides this broker."""
        self.carry_out(self.mode.count(copies))
        self._renew_limits()

    def copy_synced(self, broker: BrokerId, end: Offset) -> None:
        """A copy has the line of this reign on its disk up to `end`."""
        self.carry_out(self.mode.heard(broker, end))

    def synced(self, end: Offset, now_ms: int) -> None:
        """The sync of an earlier reign says nothing of this one; it lies below its lane."""
        if self.reign is not None:
            super().synced(end, now_ms)


def _nobody_copies() -> None:
    """On a node without others."""


def _nobody_cares(partition: BranchPartition) -> None:
    """Until somebody does."""


def lane_key(key: str, lane: Lane) -> str:
    """What a lane is called among the recovery points."""
    return f"{key}/{lane}"
