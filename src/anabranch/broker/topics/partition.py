"""Partition: one Log, one Mode, the producers that write to it, and those who wait for it.

`write` is called by the single writer with the jobs of one turn: each is checked against the producer table,
given its offsets, stamped in place, and all go to the log in one append. What happens then is the mode's
decision: `Flush` asks the syncer, `Publish` moves the high watermark, answers producers that wait for safety
and wakes readers. A failed append keeps nothing and takes its producer entries back. A partition that several brokers
keep has `ring`, which carries out what its mode decides (effects.py); only its leader writes, and producers that wait
when the leadership is lost are told so at once.

Whoever changes files of the log besides the writer (retention, the cleaner, deletion) holds `upkeep` meanwhile and
looks at `is_gone` first: the folder's name may belong to another topic by then.

All methods run on the loop's thread.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any
from uuid import UUID

from anabranch.broker.write.append_queue import AppendJob
from anabranch.config import TopicSettings
from anabranch.errors import AnabranchError, FencedLogError, NotOwnerError, RequestTimedOutError, StorageError
from anabranch.log.disk.checkpoint import RecoveryMark
from anabranch.log.log import Log
from anabranch.modes.generations import Generations, Row
from anabranch.modes.mode import Appended, Effect, FlushFinished, Mode, Publish
from anabranch.record.backend import COMPILED
from anabranch.record.batch import stamp
from anabranch.record.producer_table import Producer, ProducerTable
from anabranch.values import LANE_BITS, Generation, Offset, TopicPartition, is_other_lane

if TYPE_CHECKING:
    from anabranch.broker.object.archived_prefix import Past
    from anabranch.broker.read.fetch_wait import WaitingFetch
    from anabranch.broker.ring.driver import Effects
    from anabranch.broker.write.producer_limits import ProducerLimits

place_plain: Callable[[list[Any], int, int], list[tuple[memoryview, Any, Any, int]] | None] | None = None
finish_plain: Callable[[list[Any], int, int], tuple[int, list[Any]] | None] | None = None
PLAIN: tuple[type[Any], ...] = ()
if COMPILED:
    from anabranch.record._fast import PlainProduce, finish_plain, place_plain

    PLAIN = (PlainProduce,)


class Partition:
    """One partition of one topic on this broker."""

    is_object = False
    """Its records are in the object store; its log has no files (`object/partition.py`)."""
    is_branch = False
    branched_view = -1
    """In which view it went over to branches."""
    """Its log is a line through lanes (`branch/partition.py`)."""
    switching: AbstractAsyncContextManager[Any] = nullcontext()
    """Held by whoever changes what its log is a view of."""
    keeps_producers = True
    """The table of producers is that of the log, now."""
    is_crowded = False
    """Whoever writes here is to wait for the answer before sending more."""

    __slots__ = (
        "_awaiting",
        "_finish",
        "_finished",
        "_gone_because",
        "_is_writing",
        "_on_publish",
        "_request_sync",
        "_settings",
        "generation",
        "has_gaps",
        "high_watermark",
        "id",
        "log",
        "mode",
        "past",
        "plain_limits",
        "producer_limits",
        "producers",
        "ring",
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
        self.past: Past | None = None
        """What of it is in the object store, since it came from there."""
        self.has_gaps = False
        """It is in branches, or was: between its records may lie billions of offsets, and behind the last one too."""
        self.ring: Effects | None = None
        """Which set of replicas keeps it, counted from 0."""
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
        if self.ring is not None and limits is not None:
            may_write = self.ring.mode.may_write and self._settings.min_insync_replicas <= self.copies
            limits = (*limits[:2], 1, limits[3]) if may_write else None
        self.plain_limits = limits

    @property
    def start_offset(self) -> Offset:
        """Where it begins for its readers."""
        start, past = self.log.start_offset, self.past
        return start if past is None or start > past.floor else past.start_offset

    @property
    def copies(self) -> int:
        """On how many brokers a record is when it is safe."""
        return self.ring.mode.copies if self.ring is not None else 1

    @property
    def lag(self) -> int:
        """How many records are missing here that others keep safe, as far as is known. Beyond a gap between lanes only
        those of the last lane are."""
        if self.ring is None:
            return 0
        lag = self.ring.mode.replica.lag
        safe = self.log.end_offset + lag
        is_gap = self.has_gaps and is_other_lane(self.log.end_offset, safe)
        return safe % (1 << LANE_BITS) if is_gap else lag

    @property
    def acks1_waits(self) -> bool:
        """Whether a producer that asks for the leader's word alone waits for that of a follower all the same."""
        return self.ring is not None and self.ring.acks1_waits

    @property
    def has_past(self) -> bool:
        """Older records of it are in the object store, which this log alone knows nothing of."""
        return self.past is not None and self.start_offset < self.past.floor

    @property
    def leaves_for_store(self) -> bool:
        """It goes over to the object store, and is copied there."""
        return self.ring is not None and self.ring.mode.replica.target == ()

    def check_writable(self) -> None:
        """Raises what a producer is to be told if nothing may be written here now."""
        refusal = self._refusal()
        if refusal is not None:
            raise refusal

    def check_leader(self) -> None:
        """Only the leader serves readers. Raises NotOwnerError."""
        if self.ring is not None and not self.ring.mode.leads:
            raise NotOwnerError(f"This broker does not lead {self.id}.")

    @property
    def is_leader(self) -> bool:
        """Whether this broker serves those who read and write here."""
        return self.ring is None or self.ring.mode.leads

    @property
    def generations(self) -> Generations:
        """Which leadership wrote which records."""
        if self.ring is not None:
            return self.ring.mode.generations
        return Generations([Row(self.generation, Offset(0))])

    @property
    def is_settled(self) -> bool:
        """Whether the high watermark is as far as it ever was: a new leader has to find out."""
        return self.ring is None or self.ring.mode.is_settled

    @property
    def readable_end(self) -> Offset:
        """Behind the last record that readers may see: what clients are told as the high watermark. While nothing was
        written behind a gap, that is where the gap begins: whoever has read that far has read everything."""
        if not self.has_gaps:
            return self.high_watermark
        return self._below_floor(self.log.readable_end(self.high_watermark))

    def _below_floor(self, end: Offset) -> Offset:
        """Where records end that do so at `end`, or before it in the object store."""
        return self.past.readable_end if self.past is not None and end == self.past.floor else end

    def runs(self, start: Offset) -> list[tuple[Offset, Offset]]:
        """Where there are records that readers may see, without the gaps; of what lies in the object store, those from
        `start` on."""
        stored = (
            self.past.runs(start)
            if self.past is not None and self.log.start_offset <= self.past.floor
            else []
        )
        return [*stored, *self.log.runs(self.high_watermark)]

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
        log, ring = self.log, self.ring
        if self._gone_because is not None or log.fenced or ring is not None:
            refusal = self._refusal()
            if refusal is not None:
                self._fail(jobs, refusal)
                return
        if ring is not None and ring.acks1_waits:
            let_wait(jobs, ring.monotonic_ms())
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
        if ring is None or not batches:
            self._answer_or_await(accepted)
            if batches:
                self._carry_out(self.mode.step(Appended(log.end_offset), now_ms))
            return
        records = b"".join([batch[0] for batch in batches])  # Now: the buffers are used again from here on.
        self._answer_or_await(accepted)
        self._replicate(ring, batches[0][1], records)

    def _not_written(self, jobs: list[AppendJob], error: StorageError) -> None:
        self._fail(jobs, error)
        if self.ring is not None:
            self.ring.refused()

    def _refusal(self) -> AnabranchError | None:
        """Why nothing can be written. A job may have been queued before its topic went, its log was fenced, or another
        broker took over."""
        if self._gone_because is not None:
            return self._gone_because
        if self.log.fenced:
            # A repeat of a batch would be written nowhere and wait for a sync that never comes.
            return FencedLogError(f"{self.id} takes no writes until a restart: a sync failed.")
        return self.ring.refusal() if self.ring is not None else None

    def _replicate(self, ring: "Effects", start: Offset, records: bytes) -> None:
        self._is_writing = True  # The syncs of a turn begin together.
        try:
            ring.appended(start, self.log.end_offset, records)
        finally:
            self._is_writing = False

    def _place(
        self, jobs: list[AppendJob], now_ms: int
    ) -> tuple[
        Sequence[tuple[memoryview | bytearray, Offset, Offset, int]],
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
        if self.ring is None:
            self._carry_out(self.mode.step(FlushFinished(end), now_ms))
        elif not self.is_gone:
            self.ring.do(FlushFinished(end))

    def sync_failed(self, error: StorageError) -> None:
        """The log has fenced itself; whoever waited for this sync must not believe in it."""
        awaiting, self._awaiting = self._awaiting, deque()
        self._fail(list(awaiting), error)
        if self.ring is not None and self.log.fenced:
            self.ring.fence()

    def time_out(self, now_ms: int) -> None:
        """Tell producers whose time is up that we do not know; their records stay, and may become safe later."""
        if not any(job.deadline_ms <= now_ms for job in self._awaiting):
            return
        late = [job for job in self._awaiting if job.deadline_ms <= now_ms]
        self._awaiting = deque(job for job in self._awaiting if job.deadline_ms > now_ms)
        self._fail(late, RequestTimedOutError(f"{self.id} was not synced within the request's timeout."))

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Publish):
                self.publish(effect.end)
            else:
                self._request_sync(self)

    # --- what a ring has done ----------------------------------------------------------------------------------

    def request_sync(self) -> None:
        """Sync what is written: at the end of the turn if that writes, or else now."""
        if self._is_writing:
            self._request_sync(self)
        elif self.ring is not None:
            self.ring.sync_now(self)

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
            assert self.ring is not None
            self.ring.drop_snapshot(self)
        elif is_any_forgotten:
            # The snapshot on the disk remembers more of them, and less than the log has below the cut.
            self.snapshot_offset = Offset(-1)
        self.high_watermark = min(self.high_watermark, end)

    def publish(self, end: Offset) -> None:
        assert end <= self.log.end_offset, "published beyond the end of the log"
        self.high_watermark = end
        if self.ring is not None:
            self.log.firm_offset = max(end, self.log.firm_offset or end)
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


def plain_limits_of(settings: TopicSettings) -> tuple[int, int, int, bool] | None:
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
