"""Partition: one Log, one Mode, the producers that write to it, and those who wait for it.

`write` is called by the single writer with the jobs of one turn: each is checked against the producer table,
given its offsets, stamped in place, and all go to the log in one append. What happens then is the mode's
decision: `Flush` asks the syncer, `Publish` moves the high watermark, answers producers that wait for safety
and wakes readers. A failed append keeps nothing and takes its producer entries back. Its `driver` carries out what the
mode decides besides; only a leader writes, and producers that wait when the leadership is lost are told so at once.

Whoever changes files of the log besides the writer (retention, the cleaner, deletion) holds `upkeep` meanwhile and
looks at `is_gone` first: the folder's name may belong to another topic by then.

All methods run on the loop's thread.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any
from uuid import UUID

from anabranch.broker.topics.archived_prefix import NOTHING_ARCHIVED
from anabranch.broker.topics.driver import Driver, SoloDriver
from anabranch.broker.write.append_queue import AppendJob
from anabranch.cluster.metadata.residence import KEPT
from anabranch.cluster.metadata.rows import Placement
from anabranch.config import TopicSettings
from anabranch.errors import (
    AnabranchError,
    FencedGenerationError,
    FencedLogError,
    NotOwnerError,
    RequestTimedOutError,
    StorageError,
    UnknownGenerationError,
)
from anabranch.log.disk.checkpoint import RecoveryMark
from anabranch.log.log import Log
from anabranch.log.segment.timestamps import Lookup, Moment
from anabranch.modes.mode import Effect, Mode, Publish
from anabranch.record.backend import COMPILED
from anabranch.record.batch import BatchHeader, stamp
from anabranch.record.producer_table import Producer, ProducerTable
from anabranch.values import LANE_BITS, Generation, Offset, TopicPartition, is_other_lane

if TYPE_CHECKING:
    from anabranch.broker.read.fetch_wait import WaitingFetch
    from anabranch.broker.read.reading import Reading
    from anabranch.broker.write.producer_limits import ProducerLimits
    from anabranch.log.segment.slice import Slice

Placed = tuple[memoryview | bytearray, Offset, Offset, int]
"""A batch with its offsets: bytes, first and last offset, newest timestamp."""
PlainLimits = tuple[int, int, int, bool]
OffsetAt = tuple[int, ...]
"""Offset, timestamp and generation of a record."""
Found = Moment | tuple[Offset, int] | None
Search = Callable[[Lookup], Awaitable[Moment | None]]

place_plain: Callable[[list[Any], int, int], list[tuple[memoryview, Any, Any, int]] | None] | None = None
finish_plain: Callable[[list[Any], int, int], tuple[int, list[Any]] | None] | None = None
PLAIN: tuple[type[Any], ...] = ()
if COMPILED:
    from anabranch.record._fast import PlainProduce, finish_plain, place_plain

    PLAIN = (PlainProduce,)


def _newest_first(moment: tuple[int, ...]) -> tuple[int, int]:
    """The newest, and of several the one that comes first."""
    return moment[1], -moment[0]


class Partition:
    """One partition of one topic on this broker."""

    residence = KEPT
    """Where its records are (`cluster/metadata/residence.py`)."""
    has_files = True
    """Its log lies in files of this broker."""
    switching: AbstractAsyncContextManager[Any] = nullcontext()
    """Held by whoever changes what its log is a view of."""
    keeps_producers = True
    """The table of producers is that of the log, now."""
    is_crowded = False
    """Whoever writes here is to wait for the answer before sending more."""
    ends_by_quorum = False
    """Any broker may move its start and its end, which only the metadata quorum knows."""
    start_is_in_file = True
    """Where it starts is in the broker's file of start offsets; else other brokers say it."""

    __slots__ = (
        "_awaiting",
        "_finish",
        "_finished",
        "_gone_because",
        "_is_writing",
        "_on_publish",
        "_request_sync",
        "_settings",
        "archived",
        "driver",
        "generation",
        "has_gaps",
        "high_watermark",
        "id",
        "log",
        "mode",
        "plain_limits",
        "producer_limits",
        "producers",
        "snapshot_offset",
        "topic_id",
        "upkeep",
        "waiting_fetches",
    )

    def __init__(
        self,
        partition_id: TopicPartition,
        topic_id: UUID,
        log: Log,
        mode: Mode,
        settings: TopicSettings,
        *,
        request_sync: "Callable[[Partition], None]",
        on_publish: "Callable[[Partition], None]",
        finish: Callable[[AppendJob], None],
        finished: Callable[[int], None],
    ) -> None:
        self.id = partition_id
        self.topic_id = topic_id
        self.log = log
        self.mode = mode
        self.generation = Generation(0)
        self.archived = NOTHING_ARCHIVED
        """Its records in the object store, if it came from there."""
        self.has_gaps = False
        """It is in branches, or was: between its records may lie billions of offsets, and behind the last one too."""
        self.driver: Driver = SoloDriver(self)
        self.high_watermark = mode.safe_offset()
        self.producers = ProducerTable()
        self.producer_limits: ProducerLimits | None = None
        """How many of them may be known; None: any number."""
        self.snapshot_offset = Offset(-1)
        self.waiting_fetches: dict[WaitingFetch, int] = {}
        self.upkeep = asyncio.Lock()
        self._gone_because: AnabranchError | None = None
        self._awaiting: deque[AppendJob] = deque()
        self._is_writing = False
        self._request_sync = request_sync
        self._on_publish = on_publish
        self._finish = finish
        self._finished = finished
        self._settings = settings
        self.plain_limits = plain_limits_of(settings)
        """What a plain produce request must keep to (see `plain_lane`); None: none may go that way. A mode that can
        lose the right to write has to see to it, for nobody asks `mode.writer()` there."""

    @property
    def snapshot_folder(self) -> str:
        """Where its producers are written down."""
        return self.log.folder

    @property
    def settings(self) -> TopicSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: TopicSettings) -> None:
        self._settings = settings
        self._renew_limits()

    def _renew_limits(self) -> None:
        limits = None if self.is_gone else plain_limits_of(self._settings)
        self.plain_limits = self.driver.plain_limits(limits) if limits is not None else None

    @property
    def start_offset(self) -> Offset:
        """Where it begins for its readers."""
        start, archived = self.log.start_offset, self.archived
        return start if start > archived.floor else archived.start_offset

    @property
    def copies(self) -> int:
        """On how many brokers a record is when it is safe."""
        return self.driver.copies

    @property
    def lag(self) -> int:
        """How many records are missing here that others keep safe, as far as is known. Beyond a gap between lanes only
        those of the last lane are."""
        lag = self.driver.lag
        safe = self.log.end_offset + lag
        is_gap = self.has_gaps and is_other_lane(self.log.end_offset, safe)
        return safe % (1 << LANE_BITS) if is_gap else lag

    @property
    def acks1_waits(self) -> bool:
        """Whether a producer that asks for the leader's word alone waits for that of a follower all the same."""
        return self.driver.acks1_waits

    @property
    def has_archived(self) -> bool:
        """Older records of it are in the object store, which this log alone knows nothing of."""
        return self.start_offset < self.archived.floor

    @property
    def leaves_for_store(self) -> bool:
        """It goes over to the object store, and is copied there."""
        return self.driver.leaves_for_store

    def check_writable(self) -> None:
        """Raises what a producer is to be told if nothing may be written here now."""
        refusal = self._refusal()
        if refusal is not None:
            raise refusal

    def check_leader(self) -> None:
        """Only the leader serves readers. Raises NotOwnerError."""
        if not self.driver.leads:
            raise NotOwnerError(f"This broker does not lead {self.id}.")

    @property
    def is_leader(self) -> bool:
        """Whether this broker serves those who read and write here."""
        return self.driver.leads

    @property
    def is_settled(self) -> bool:
        """Whether the high watermark is as far as it ever was: a new leader has to find out."""
        return self.driver.is_settled

    @property
    def readable_end(self) -> Offset:
        """Behind the last record that readers may see: what clients are told as the high watermark. While nothing was
        written behind a gap, that is where the gap begins: whoever has read that far has read everything."""
        if not self.has_gaps:
            return self.high_watermark
        return self._below_floor(self.log.readable_end(self.high_watermark))

    def _below_floor(self, end: Offset) -> Offset:
        """Where records end that do so at `end`, or before it in the object store."""
        return self.archived.readable_end if end == self.archived.floor else end

    def runs(self, start: Offset) -> list[tuple[Offset, Offset]]:
        """Where there are records that readers may see, without the gaps; of what lies in the object store, those from
        `start` on."""
        archived = self.archived.runs(start) if self.log.start_offset <= self.archived.floor else []
        return [*archived, *self.log.runs(self.high_watermark)]

    # --- reading -----------------------------------------------------------------------------------------------

    def read(self, start: Offset, bytes_max: int, upto: Offset, reading: "Reading") -> "Slice | None":
        """Batches from `start` on; None: they have to come from elsewhere first. Raises AnabranchError."""
        archived = self.archived
        if start < archived.floor:
            if not archived.is_read(start):
                return archived.read(start, bytes_max, min(upto, archived.floor), reading)
            start = archived.floor
        part = self.log.slice(start, bytes_max, upto, whole_first=reading.whole_first)
        limit = max(1, reading.memory_bytes_left)
        if part.is_warm and not part.verified and part.count > limit < bytes_max:
            part = self.log.slice(start, limit, upto, whole_first=reading.whole_first)
        return part

    def is_cut(self, start: Offset, part: "Slice", upto: Offset) -> bool:
        """Whether more can be read than `part`, which begins at `start`: a slice ends with its file."""
        if start < self.archived.floor < upto:
            return True
        return self.log.is_cut(start, part, upto) if part.is_cut is None else part.is_cut

    def may_come(self, offset: Offset, reading: "Reading") -> bool:
        """Whether an offset that is not here may exist all the same, or come to exist, at other brokers."""
        return False

    def is_kept_here(self, offset: Offset) -> bool:
        """Whether a record of that offset is, if at all, in files of this broker."""
        return offset >= self.archived.floor

    async def offset_for_time(self, timestamp_ms: int, search: Search) -> OffsetAt | None:
        """The first record of that time or later that readers may see. `search` carries out a lookup in a log. Raises
        AnabranchError."""
        found: Found = None
        if self.log.start_offset <= self.archived.floor:
            found = await self.archived.offset_for_time(timestamp_ms)
        if found is None:
            found = await search(self.log.offset_for_time(timestamp_ms))
        return self._seen(found)

    async def max_timestamp(self, search: Search) -> OffsetAt | None:
        """The first record of the newest time. As `offset_for_time`."""
        found: list[Found] = []
        if self.log.start_offset <= self.archived.floor:
            found.append(await self.archived.max_timestamp())
        found.append(await search(self.log.max_timestamp()))
        moments = [each for each in found if each is not None]
        return self._seen(max(moments, key=_newest_first, default=None))

    def _seen(self, found: Found) -> OffsetAt | None:
        if found is None or found[0] >= self.high_watermark:
            return None
        return (*found, self.generation)[:3]

    def divergence(self, generation: int, offset: int) -> tuple[int, int] | None:
        """Where the log of a reader that is at `offset`, behind a record of `generation` (-1: it does not say), leaves
        ours: the generation up to which they agree, and its end. None: they agree up to there."""
        if generation < 0 or offset <= self.archived.floor:
            return None  # Nothing is ever cut from what is in the object store.
        return self.driver.divergence(generation, offset)

    def generation_end(self, generation: int) -> tuple[int, int] | None:
        """A generation and where it ended: that one, or if it is not known here the last one before. None: nobody
        knows."""
        return self.driver.generation_end(generation)

    def check_generation(self, generation: int) -> None:
        """A client that knows a generation of its partition must know the present one; -1: it knows none."""
        if generation < 0 or generation == self.generation:
            return
        if generation < self.generation:
            raise FencedGenerationError(f"{self.id} is at generation {self.generation}, not {generation}.")
        raise UnknownGenerationError(f"{self.id} is at generation {self.generation}, not yet {generation}.")

    # --- state -------------------------------------------------------------------------------------------------

    def is_placed_by(self, placement: Placement) -> bool:
        """Whether it is of this time, and not of one before its records were last elsewhere."""
        return self.driver.is_of_view(placement.since_view)

    def place(self, placement: Placement) -> None:
        """The agreed table has changed for it, or may have."""

    @property
    def needs_sync(self) -> bool:
        """Something was written that is not on the disk."""
        return self.log.synced_offset < self.log.end_offset

    @property
    def deletable_end(self) -> Offset:
        """Up to where DeleteRecords deletes if it is to delete everything."""
        return self.readable_end

    def records_from(self, offset: int) -> int:
        """How many records readers who are at that offset have yet to read."""
        if not self.has_gaps:
            return max(0, self.high_watermark - offset)
        return sum(max(0, end - max(start, offset)) for start, end in self.runs(Offset(offset)))

    def check_producer(self, header: BatchHeader, now_ms: int) -> None:
        """Before a batch is unpacked: whether its producer may be remembered, if that is not found out when the batch
        is written here. Raises what the producer is told."""

    @property
    def is_gone(self) -> bool:
        """Abandoned: nothing is written any more."""
        return self._gone_because is not None

    @property
    def is_awaited(self) -> bool:
        """Some producer waits for a sync."""
        return bool(self._awaiting)

    @property
    def recovery_mark(self) -> RecoveryMark:
        """What a recovery need not read again. A record that still waits for its sync is not among it: were the
        sync to fail, the repeat of the record would be taken for safe although the disk never got it."""
        mark = self.log.recovery_mark
        return RecoveryMark(mark.synced, max(mark.synced, min(mark.written, self.high_watermark)))

    def recovery_marks(self, key: str) -> dict[str, RecoveryMark]:
        """For the recovery points, by what each log of the partition is called there."""
        return {key: self.recovery_mark}

    def write(self, jobs: list[AppendJob], now_ms: int) -> None:
        """Append the jobs of one turn. Every job is answered, now or when it is safe."""
        log, driver = self.log, self.driver
        refusal = self._refusal()
        if refusal is not None:
            self._fail(jobs, refusal)
            return
        if driver.acks1_waits:
            let_wait(jobs, driver.monotonic_ms())
        batches, accepted, noted = self._place(jobs, now_ms)
        if batches:
            try:
                log.append(batches, now_ms)
            except Exception as error:
                for entry in reversed(noted):
                    self.producers.undo(entry)
                if not isinstance(error, StorageError):
                    raise
                self._not_written(accepted, error)
                return
        if not batches:
            self._answer_or_await(accepted)
            return
        records = driver.copied(batches)  # Now: the buffers are used again from here on.
        self._answer_or_await(accepted)
        self._is_writing = True  # The syncs of a turn begin together.
        try:
            driver.appended(batches[0][1], log.end_offset, records, now_ms)
        finally:
            self._is_writing = False

    def _not_written(self, jobs: list[AppendJob], error: StorageError) -> None:
        self._fail(jobs, error)
        self.driver.refused()

    def _refusal(self) -> AnabranchError | None:
        """Why nothing can be written. A job may have been queued before its topic went, its log was fenced, or another
        broker took over."""
        if self._gone_because is not None:
            return self._gone_because
        if self.log.fenced:
            # A repeat of a batch would be written nowhere and wait for a sync that never comes.
            return FencedLogError(f"{self.id} takes no writes until a restart: a sync failed.")
        return self.driver.refusal()

    def _place(
        self, jobs: list[AppendJob], now_ms: int
    ) -> tuple[
        Sequence[Placed],
        list[AppendJob],
        list[tuple[int, Producer | None]],
    ]:
        end = self.log.end_offset
        if place_plain is not None and (placed := place_plain(jobs, end, self.generation)) is not None:
            return placed, jobs, []
        batches = []
        accepted = []
        noted = []
        for job in jobs:
            header = job.header
            if header.producer_id >= 0:
                try:
                    original = self.producers.original_of(header)
                    if original is None and self.producer_limits is not None:
                        self.producer_limits.admit(self, header, now_ms)
                except AnabranchError as error:
                    self._fail([job], error)
                    continue
                if original is not None:
                    job.place(original)
                    accepted.append(job)
                    continue
                noted.append(self.producers.note(header, end, now_ms))
            assert job.batch is not None, "a batch is written once"
            job.place(end)
            stamp(job.batch, 0, end, self.generation)
            batches.append((job.batch, end, Offset(job.end_offset - 1), header.max_timestamp))
            accepted.append(job)
            end = job.end_offset
        return batches, accepted, noted

    def _answer_or_await(self, jobs: list[AppendJob]) -> None:
        if self._answer_plain(jobs):
            return
        safe = self.high_watermark
        for job in jobs:
            job.batch = None  # The bytes live in the connection's buffer, which is used again from here on.
            if job.wait_safe and job.end_offset > safe:
                self._awaiting.append(job)
            else:
                self._finish(job)

    def _answer_plain(self, jobs: list[AppendJob]) -> bool:
        """The short way, if all of the jobs came by it and none has to wait. False: nothing was answered."""
        answered = finish_plain(jobs, self.high_watermark, self.log.start_offset) if finish_plain else None
        if answered is None:
            return False
        size, clients = answered
        self._finished(size)
        for client in clients:
            client.settled()
        return True

    def synced(self, end: Offset, now_ms: int) -> None:
        self.driver.synced(end, now_ms)

    def sync_failed(self, error: StorageError) -> None:
        """The log has fenced itself; whoever waited for this sync must not believe in it."""
        awaiting, self._awaiting = self._awaiting, deque()
        self._fail(list(awaiting), error)
        if self.log.fenced:
            self.driver.fence()

    def time_out(self, now_ms: int) -> None:
        """Tell producers whose time is up that we do not know; their records stay, and may become safe later."""
        if not any(job.deadline_ms <= now_ms for job in self._awaiting):
            return
        late = [job for job in self._awaiting if job.deadline_ms <= now_ms]
        self._awaiting = deque(job for job in self._awaiting if job.deadline_ms > now_ms)
        self._fail(late, RequestTimedOutError(f"{self.id} was not synced within the request's timeout."))

    def carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Publish):
                self.publish(effect.end)
            else:
                self._request_sync(self)

    # --- what its driver has done ----------------------------------------------------------------------------------

    def request_sync(self) -> None:
        """Sync what is written: at the end of the turn if that writes, or else now."""
        if self._is_writing:
            self._request_sync(self)
        else:
            self.driver.sync_now()

    def lost_leadership(self, error: AnabranchError) -> None:
        """Whoever waits asks the new leader."""
        awaiting, self._awaiting = self._awaiting, deque()
        self._fail(list(awaiting), error)

    def role_changed(self, generation: Generation) -> None:
        self.generation = generation
        self._renew_limits()
        if self.waiting_fetches:
            self._on_publish(self)

    def cut_back(self, end: Offset) -> None:
        """Forget the records from `end` on. Raises StorageError."""
        log = self.log
        if log.firm_offset is not None:
            log.firm_offset = min(
                log.firm_offset, end
            )  # Only who is not trusted loses what it took for firm.
        log.cut_back(end)
        is_any_forgotten = self.producers.cut(end)
        if self.snapshot_offset > end:
            self.driver.drop_snapshot()
        elif is_any_forgotten:
            # The snapshot on the disk remembers more of them, and less than the log has below the cut.
            self.snapshot_offset = Offset(-1)
        self.high_watermark = min(self.high_watermark, end)

    def publish(self, end: Offset) -> None:
        assert end <= self.log.end_offset, "published beyond the end of the log"
        self.high_watermark = end
        self.driver.published(end)
        awaiting = self._awaiting
        if awaiting and awaiting[0].end_offset <= end:
            safe = []
            while awaiting and awaiting[0].end_offset <= end:
                safe.append(awaiting.popleft())
            if not self._answer_plain(safe):
                for job in safe:
                    self._finish(job)
        if self.waiting_fetches:
            self._on_publish(self)

    def _fail(self, jobs: list[AppendJob], error: AnabranchError) -> None:
        for job in jobs:
            job.error = error
            job.batch = None
            self._finish(job)

    def abandon(self, error: AnabranchError) -> None:
        """The partition goes away (its topic is deleted, or the node stops): nobody may wait for it any longer."""
        self._gone_because = error
        self._renew_limits()
        awaiting, self._awaiting = self._awaiting, deque()
        self._fail(list(awaiting), error)
        if self.waiting_fetches:
            self._on_publish(self)


def let_wait(jobs: list[AppendJob], now_ms: int) -> None:
    """Of the jobs that came by the plain lane, those with acks=1 wait for safety too."""
    for job in jobs:
        if not job.wait_safe and isinstance(job, PLAIN):
            lead: Any = job.lead or job
            job.wait_safe = True
            job.deadline_ms = now_ms + max(0, lead.timeout_ms)


def plain_limits_of(settings: TopicSettings) -> PlainLimits | None:
    """The largest batch, how far ahead of us a record's time may be, how many copies acks=all needs, and whether
    compressed batches are kept as they come."""
    if not settings.keeps_plain_batches:
        return None
    return (
        settings.max_message_bytes,
        settings.message_timestamp_after_max_ms,
        settings.min_insync_replicas,
        settings.compression_type == "producer",
    )
