"""RingDriver: carries out what the mode of one ring partition decides, strictly in order.

    Remember    the file `ring` in the partition's folder, written and synced in a worker; all else waits for it
    Tell        a letter to another broker; the records of a push are read from the log when it leaves
    Take        checked, appended as they are, and entered into the table of producers
    CutBack     the log and the table of producers forget what comes after
    Sync        fdatasync by the syncer, or said to be done at once where written is as good as synced
    Publish     the high watermark moves

Events wait too while something is being remembered, so that nothing is decided on what is not on the disk yet. Letters
may be lost at any time, so when too many wait, they are. A push that is spoiled, or that the disk refuses, is not
taken; whatever was to follow it is left undone. Everything runs on the loop's thread.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from anabranch.broker.ring.replication_chunks import Pieces, check_piece
from anabranch.broker.topics.topic_folders import RING_FILE
from anabranch.broker.workers import Workers
from anabranch.clock import Clock
from anabranch.errors import (
    AnabranchError,
    FencedLogError,
    NotEnoughCopiesError,
    NotOwnerError,
    OffsetOutOfRangeError,
    StorageError,
)
from anabranch.log.disk.checkpoint import write_checkpoint
from anabranch.log.disk.files import Files
from anabranch.modes.mode import Appended, Event, FlushFinished, Publish
from anabranch.modes.ring.effects import (
    AskForDisk,
    CutBack,
    Effect,
    EndView,
    Kept,
    Remember,
    Sync,
    Take,
    Tell,
    Unseal,
)
from anabranch.modes.ring.events import Heard, NotSent, NotTaken, Refused, Stored
from anabranch.modes.ring.messages import Beat, Message, Push
from anabranch.modes.ring.mode import RingMode
from anabranch.values import BrokerId, Generation, Offset

if TYPE_CHECKING:
    from anabranch.broker.topics.partition import Partition, Placed, PlainLimits

logger = logging.getLogger(__name__)

REMEMBER_AGAIN_SECONDS = 1.0
EVENTS_WAITING_MAX = 64
LETTER_BYTES = 256
"""More than a letter needs besides its records."""

Role = tuple[bool, Generation, bool, tuple[BrokerId, ...]]


class Carrier(Protocol):
    """Where letters go, and who hears of changes."""

    def room(self, to: BrokerId) -> int: ...

    def tell(self, partition: "Partition", to: BrokerId, message: Message) -> None: ...

    def changed(self, partition: "Partition") -> None:
        """Who leads it, or who follows, is not what it was."""
        ...

    def spoiled(self, partition: "Partition", error: AnabranchError) -> None:
        """A push came that was not what it should be."""
        ...

    def settle(self, partition: "Partition", effect: EndView | Unseal | AskForDisk) -> None:
        """Somebody must agree that a view ends, or that it goes on; or on which disk a replica is."""
        ...

    def unreadable(self, partition: "Partition", start: Offset, error: AnabranchError) -> None:
        """Our own log could not be read from there on for somebody else."""
        ...


class RingDriver:
    def __init__(
        self,
        partition: "Partition",
        mode: RingMode,
        clock: Clock,
        workers: Workers,
        files: Files,
        boot: str,
        *,
        pieces: Pieces,
        sync_now: "Callable[[Partition], None]",
        drop_snapshot: "Callable[[Partition], None]",
        acks1_waits: bool,
    ) -> None:
        self.mode = mode
        self._sync_now = sync_now
        self._drop_snapshot = drop_snapshot
        self.acks1_waits = acks1_waits
        """A producer that asks for the leader's word alone waits for that of a follower all the same."""
        self.carrier: Carrier | None = None
        self.letters_dropped = 0
        self._partition = partition
        self._clock = clock
        self._workers = workers
        self._files = files
        self._boot = boot
        self._pieces = pieces
        self._effects: deque[Effect] = deque()
        self._events: deque[Event] = deque()
        self._full: set[BrokerId] = set()
        """Links that had no room for a push: those behind it do not leave either."""
        self._is_running = False
        self._is_waiting = False
        """For what is being remembered."""
        self._role: Role = (False, mode.generation, False, ())

    # --- events ------------------------------------------------------------------------------------------------

    def do(self, event: Event) -> None:
        """Have the mode decide, and carry it out; after what came before."""
        if self._is_running or self._is_waiting:
            self._wait(event)
            return
        self._events.append(event)
        self._run()

    def copied(self, batches: "Sequence[Placed]") -> bytes:
        return b"".join([batch[0] for batch in batches])

    def appended(self, start: Offset, end: Offset, records: bytes, now_ms: int) -> None:
        """They are at hand for the followers that have all before them."""
        if not self._is_running and not self._is_waiting:
            self._pieces.offer(start, end, records)
        self.do(Appended(end))

    def synced(self, end: Offset, now_ms: int) -> None:
        if not self._partition.is_gone:
            self.do(FlushFinished(end))

    def stored(self, end: Offset) -> None:
        self.do(Stored(end))

    def refused(self) -> None:
        self.do(Refused())

    def published(self, end: Offset) -> None:
        log = self._partition.log
        log.firm_offset = max(end, log.firm_offset or end)

    def sync_now(self) -> None:
        self._sync_now(self._partition)

    def drop_snapshot(self) -> None:
        self._drop_snapshot(self._partition)

    def _wait(self, event: Event) -> None:
        if isinstance(event, Heard):
            if len(self._events) >= EVENTS_WAITING_MAX:
                self.letters_dropped += 1
                return
            message = event.message
            if isinstance(message, Push) and isinstance(message.records, memoryview):
                message.records = bytes(message.records)  # The buffer it came in is used again.
        self._events.append(event)

    @property
    def is_busy(self) -> bool:
        """What happens now has to wait."""
        return self._is_waiting

    def _run(self) -> None:
        self._is_running = True
        effects, events, partition = self._effects, self._events, self._partition
        try:
            while not self._is_waiting and not partition.is_gone:
                if effects:
                    self._carry_out(effects.popleft())
                elif events:
                    self._decide(events.popleft())
                else:
                    break
        finally:
            self._is_running = False
            self._pieces.forget()

    def _decide(self, event: Event) -> None:
        if self._full:
            self._full.clear()
        if not isinstance(event, Appended):
            self._pieces.forget()
        if isinstance(event, FlushFinished):
            # Since that was said the log may have been cut, and have grown again; what it has now it knows best.
            log = self._partition.log
            event = FlushFinished(log.synced_offset if self.mode.sync_first else log.end_offset)
        self._effects.extend(self.mode.step(event, self._clock.monotonic_ms()))
        self._note_remembering()
        if isinstance(event, Heard) and isinstance(event.message, Beat):
            self._follow_start(event.message)
        self._note_role()

    def _note_remembering(self) -> None:
        for effect in self._effects:
            if isinstance(effect, Remember):
                self.mode.is_remembering = True
                return
        self.mode.is_remembering = False

    def _follow_start(self, beat: Beat) -> None:
        """What the leader has deleted is deleted here too."""
        log = self._partition.log
        start = min(beat.log_start, self._partition.high_watermark)
        if self.mode.leader() == beat.sender and log.start_offset < start <= log.end_offset:
            log.advance_start(start)

    # --- what is promised ----------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self.mode.leads

    @property
    def leads_replicas(self) -> bool:
        return self.mode.leads

    @property
    def copies(self) -> int:
        return self.mode.copies

    @property
    def lag(self) -> int:
        return self.mode.replica.lag

    @property
    def is_settled(self) -> bool:
        return self.mode.is_settled

    @property
    def leaves_for_store(self) -> bool:
        return self.mode.replica.target == ()

    def is_of_view(self, view: int) -> bool:
        return self.mode.view >= view

    def plain_limits(self, limits: "PlainLimits") -> "PlainLimits | None":
        partition = self._partition
        may_write = self.mode.may_write and partition.settings.min_insync_replicas <= self.copies
        return (*limits[:2], 1, limits[3]) if may_write else None

    def divergence(self, generation: int, offset: int) -> tuple[int, int] | None:
        common, end = self.mode.generations.end_of(Generation(generation), self._partition.log.end_offset)
        return None if common == generation and end >= offset else (common, end)

    def generation_end(self, generation: int) -> tuple[int, int] | None:
        known = self.mode.generations
        if not 0 <= generation <= known.last:
            return None
        # Not the high watermark: that of a new leader may still lie below what the client has read.
        return known.end_of(Generation(generation), self._partition.log.end_offset)

    # --- who leads -----------------------------------------------------------------------------------------------

    def _note_role(self) -> None:
        mode, before = self.mode, self._role
        if mode.replica.leader is None and not before[0] and mode.generation == before[1]:
            return  # It does not lead, as before.
        role = (mode.leads, mode.generation, mode.may_write, mode.replica.in_sync)
        if role == before:
            return
        self._role = role
        partition = self._partition
        assert not mode.leads or partition.log.end_offset == mode.replica.end, "offsets are given once"
        if before[0] and before[:2] != role[:2]:
            partition.lost_leadership(NotOwnerError(f"This broker leads {partition.id} no longer."))
        partition.role_changed(mode.generation)
        if self.carrier is not None and (before[0] or role[0]):
            self.carrier.changed(partition)

    def refusal(self) -> AnabranchError | None:
        """Why nobody may write here now."""
        mode = self.mode
        if mode.may_write:
            return None
        if mode.leads:
            return NotEnoughCopiesError(f"No other broker that keeps {self._partition.id} is heard.")
        return NotOwnerError(f"This broker does not lead {self._partition.id}.")

    def fence(self) -> None:
        """The disk cannot be believed: stop leading, following and promising until a restart."""
        self.mode.fence()
        self._effects.clear()
        self._events.clear()
        self._note_role()

    # --- effects -------------------------------------------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Tell(to, message):
                self._tell(to, message)
            case Publish(end):
                self._partition.publish(end)
            case Sync(end):
                if self.mode.sync_first:
                    self._partition.request_sync()
                else:
                    self._events.appendleft(FlushFinished(end))
            case Take(push):
                self._take(push)
            case Remember(kept):
                self._remember(kept)
            case CutBack(end):
                self._cut_back(end)
            case EndView() | Unseal() | AskForDisk():
                if self.carrier is not None:
                    self.carrier.settle(self._partition, effect)

    def _tell(self, to: BrokerId, message: Message) -> None:
        carrier, partition = self.carrier, self._partition
        if carrier is None:
            return
        if isinstance(message, Push):
            room = carrier.room(to)
            if not room or to in self._full:
                return  # Where there is no link, a new one begins with where the other is.
            try:
                records = self._pieces.read(message.start, message.end)
            except AnabranchError as error:
                carrier.unreadable(partition, message.start, error)
                return
            if sum(map(len, records)) + LETTER_BYTES > room:
                self._full.add(to)
                self._events.append(NotSent(to, message.start))
                return
            message.records = records
        elif isinstance(message, Beat):
            message.log_start = partition.log.start_offset
        carrier.tell(partition, to, message)

    def _take(self, push: Push) -> None:
        partition = self._partition
        log = partition.log
        assert log.end_offset == push.start, f"{partition.id} ends at {log.end_offset}, not at {push.start}"
        try:
            batches, known = check_piece(_joined(push.records), push.start, push.end, push.written_in)
        except AnabranchError as error:
            if self.carrier is not None:
                self.carrier.spoiled(partition, error)
            self._leave_undone(is_refused=False)
            return
        try:
            now_ms, count = self._clock.wall_ms(), len(partition.producers.producers)
            log.append(batches, now_ms)
            for header in known:
                partition.producers.replay(header, now_ms)
            new = len(partition.producers.producers) - count
            if new and partition.producer_limits is not None:
                partition.producer_limits.followed(partition, new, now_ms)
            if log.end_offset < push.end:
                log.advance_end(push.end)
        except FencedLogError:
            self.fence()
        except StorageError as error:
            logger.error("%s cannot follow: %s", partition.id, error)
            self._leave_undone(is_refused=True)

    def _leave_undone(self, *, is_refused: bool) -> None:
        self._effects.clear()
        log, published = self._partition.log, self._partition.high_watermark
        self._events.appendleft(NotTaken(log.end_offset, published, is_refused))

    def _cut_back(self, end: Offset) -> None:
        partition = self._partition
        logger.info("%s forgets what lies beyond %d: its leader has other records there", partition.id, end)
        try:
            partition.cut_back(end)
        except (StorageError, OffsetOutOfRangeError, OSError) as error:
            logger.error("%s cannot be cut back, and waits for a restart: %s", partition.id, error)
            self.fence()

    # --- remembering -----------------------------------------------------------------------------------------------

    def _remember(self, kept: Kept) -> None:
        self._is_waiting = self.mode.is_remembering = True
        files, path = self._files, f"{self._partition.log.folder}/{RING_FILE}"
        state = ring_state(kept, self._boot, sync_first=self.mode.sync_first)

        def task() -> None:
            write_checkpoint(files, path, state)

        def done(_: None, error: BaseException | None) -> None:
            if self._partition.is_gone:
                return
            if error is None:
                self._is_waiting = False
                self._note_remembering()
                self._note_role()
                self._run()
            elif isinstance(error, OSError):
                # Nobody is told, nobody may write, and others take over: until the disk takes it.
                logger.error("%s cannot be written, and is tried again: %s", path, error)
                self._tell_unfit()
                asyncio.get_running_loop().call_later(REMEMBER_AGAIN_SECONDS, self._remember_again, kept)
            else:
                raise error

        self._workers.sync(task, done)

    def _tell_unfit(self) -> None:
        for broker in self.mode.replica.others:
            self._tell(broker, self.mode.unfit)

    def _remember_again(self, kept: Kept) -> None:
        if not self._partition.is_gone:
            self._remember(kept)

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()


def ring_driver(partition: "Partition") -> RingDriver | None:
    """None: no other broker keeps it."""
    driver = partition.driver
    return driver if isinstance(driver, RingDriver) else None


def ring_state(kept: Kept, boot: str, *, sync_first: bool) -> dict[str, Any]:
    """What the file `ring` holds. After the end of this boot what was written and not synced may be missing: unless
    records are synced before anybody counts on them, whatever the next start is told to do."""
    return {**kept.as_state(), "boot": boot, "sync_first": sync_first}


def _joined(records: object) -> bytes | bytearray | memoryview:
    if isinstance(records, bytes | bytearray | memoryview):
        return records
    if isinstance(records, list):
        return b"".join(records)
    return b""
