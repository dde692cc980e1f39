"""ObjectWriting: carries out what the ObjectWriter decides. Holds the bytes of what is gathered, puts them into the
object store, has them committed, and answers producers when the commit is applied here.

`take` is given the jobs of one turn and copies their batches: the buffers they lie in are used again afterwards. From
then on their bytes count here and no longer in the append queue, which other topics need while the store is away. A job
is answered once: when its commit is applied on this broker (whoever has proposed it), when its segment fails, or when
its time is up; then its batch stays in the segment and may still be kept, as an idempotent producer that sends it again
will find. `follow` is called for every change of the agreed table, after the partitions have seen it.

After a crash there may be objects that nobody has agreed on: the next start has another registration and never uses
their names, and upkeep collects them.

All methods run on the loop's thread.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import NamedTuple

from anabranch.broker.object.holding import Holding
from anabranch.broker.object.partition import ObjectPartition
from anabranch.broker.write.append_queue import AppendJob
from anabranch.broker.write.core import BrokerCore
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.cluster.objects.entries import Commit, Entry, commit_entry, incarnation_entry
from anabranch.cluster.objects.table import Result
from anabranch.config import NodeSettings
from anabranch.errors import (
    AnabranchError,
    NotOwnerError,
    ObjectExistsError,
    ObjectGoneError,
    RequestTimedOutError,
    StoreError,
    StoreUnavailableError,
)
from anabranch.modes.object.events import (
    Answer,
    Applied,
    Arrived,
    Effect,
    Event,
    Fail,
    Jumped,
    NameTaken,
    ProposalEnded,
    Propose,
    Reason,
    Refuse,
    Registered,
    Stop,
    Store,
    StoreAnswers,
    Stored,
    StoreFailed,
    Take,
    Tick,
)
from anabranch.modes.object.writer import GIVE_UP_MS, Limits, ObjectWriter, SegmentView
from anabranch.objects.layout.names import ObjectId
from anabranch.objects.store import Buffer, ObjectStore
from anabranch.values import BrokerId, Offset, SegmentState

PUT_BYTES_PER_SECOND_MIN = 2**20
LOOK_MS = 100
"""How often a broker that is not registered yet, and has something to store, looks whether it is."""
DEADLINES_MS = 1000
STOP_MS_MAX = 2000
"""A node has 4.5 s for its whole stop."""
INCARNATION_AGAIN_SECONDS = 0.1
INCARNATIONS = 2**64 - 1

ENTRIES_OF_BROKERS = ("broker", "broker-fenced", "broker-unfenced", "broker-removed", "objects-incarnation")

logger = logging.getLogger(__name__)


def limits_of(settings: NodeSettings) -> Limits:
    return Limits(
        gather_ms=settings.object_gather_ms,
        gather_bytes=settings.object_gather_bytes,
        puts_max=settings.object_puts_max,
        held_bytes_max=settings.append_queue_bytes_max,
    )


class StateSummary(NamedTuple):
    """For people: the segments of one state. Those FLUSHED are counted since the start."""

    state: SegmentState
    segments: int
    batches: int
    size: int
    age_ms_max: int
    failures: int


class ObjectWriting:
    def __init__(
        self,
        broker_id: BrokerId,
        core: BrokerCore,
        table: MetadataTable,
        store: ObjectStore,
        limits: Limits,
        *,
        propose: Callable[[Entry], Awaitable[Offset]],
        own_epoch: Callable[[], int | None],
        is_cut_off: Callable[[], bool],
        chance: Callable[[int], int],
    ) -> None:
        self._me = broker_id
        self._core = core
        self._table = table
        self._store = store
        self._propose = propose
        self._own_epoch = own_epoch
        self._is_cut_off = is_cut_off
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._writer = ObjectWriter(limits, chance)
        self._holdings: dict[int, Holding] = {}
        self._results: Sequence[Result] = ()
        """Of the commit that is being applied."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._told: Registered = Registered(None)
        self.is_store_away = False
        """The last try to put something there has failed."""
        self._idle: asyncio.Future[None] | None = None
        self.is_over = False
        self.puts_total = 0
        self.put_failures_total = 0
        self.on_flushed: Callable[[ObjectId, Sequence[Buffer]], None] = _nobody_cares
        """Told before producers are: readers will want it soon."""

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._look()
        self._begin(self._have_incarnation())

    async def stop(self, wait_ms_max: int = STOP_MS_MAX) -> None:
        """Take no more, store what is there and wait for it, but not for long: then everybody is told."""
        self._do(Stop())
        if not self._writer.is_idle:
            self._idle = self._loop.create_future()
            await asyncio.wait([self._idle], timeout=wait_ms_max / 1000)
        self._do(Stop(is_over=True))
        tasks = self.kill()
        await asyncio.gather(*tasks, return_exceptions=True)

    def kill(self) -> "list[asyncio.Task[None]]":
        """Begin nothing any more and tell nobody, as if the process had died; the tasks that are cancelled."""
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    async def _have_incarnation(self) -> None:
        """Objects cannot be named before the cluster has agreed on a name for this life of its own. Of several that
        propose one, the first is heard."""
        while self._table.objects.incarnation is None:
            row = self._table.brokers.get(self._me)
            if row is not None and row.epoch == self._own_epoch() and not row.is_fenced:
                try:
                    await self._propose(incarnation_entry(1 + self._chance(INCARNATIONS)))
                except AnabranchError as error:
                    logger.debug("the cluster has no name in the object store yet: %s", error)
            await asyncio.sleep(INCARNATION_AGAIN_SECONDS)

    # --- what comes in -------------------------------------------------------------------------------------------

    def take(self, partition: ObjectPartition, jobs: list[AppendJob]) -> None:
        """The jobs of one turn for one partition, in the order they came. Each is answered some time."""
        self._look()
        now_ms = self._core.clock.monotonic_ms()
        for job in jobs:
            effects = self._writer.step(Arrived(job.size), now_ms)
            match effects[0]:
                case Take(serial):
                    holding = self._holdings.get(serial)
                    if holding is None:
                        holding = self._holdings[serial] = Holding()
                    holding.add(partition.key, job)
                    self._core.hand_over(job)
                case Refuse(reason):
                    partition.fail([job], _refusal(reason))
            for effect in effects[1:]:
                self._carry_out(effect)
        self._set_timer()

    def follow(self, offset: Offset, entry: Entry | None) -> None:
        """The agreed table has changed, by this entry; None: a snapshot has replaced all of it."""
        if self.is_over:
            return
        if entry is None:
            self._look()
            if self._writer.epoch is not None:
                self._do(Jumped(self._table.objects.last_number(self._me, self._writer.epoch)))
        elif entry["type"] == "objects-commit":
            if entry["broker"] == self._me and entry["epoch"] == self._writer.epoch:
                self._follow_commits(entry)
        elif entry["type"] in ENTRIES_OF_BROKERS:
            self._look()

    def _follow_commits(self, entry: Entry) -> None:
        objects = self._table.objects
        outcome = objects.outcome
        assert outcome is not None, "a commit has an outcome"
        last_number = objects.last_number(self._me, entry["epoch"])
        for commit, results in zip(entry["commits"], outcome.results, strict=True):
            self._results = results
            self._do(Applied(commit["n"], counts=commit["n"] <= last_number))
        self._results = ()

    def _look(self) -> None:
        """Tell the writer how this broker stands in the table, if that has changed."""
        row, epoch, known = self._table.brokers.get(self._me), self._own_epoch(), self._writer.epoch
        found = Registered(None)
        if row is not None and row.epoch == epoch:
            if self._table.objects.incarnation is not None:
                # Who is not heard by the quorum is fenced soon, and does not learn of it: producers shall not wait.
                found = Registered(epoch, row.is_fenced or self._is_cut_off())
        elif known is not None:
            found = Registered(
                known, is_fenced=True
            )  # Another registration is under way: nothing of ours counts.
        if found != self._told:
            self._told = found
            self._do(found)

    def store_answers(self) -> None:
        """It did not before: try at once what waits for its next try."""
        if not self.is_over:
            self._do(StoreAnswers())

    def time_out(self, now_ms: int) -> None:
        """Tell producers whose time is up that we do not know."""
        for holding in list(self._holdings.values()):
            for job in holding.take_late(now_ms):
                reason = f"{job.partition.id} was not stored within the request's timeout; it may still be."
                self._finish(job, RequestTimedOutError(reason))

    # --- decisions -----------------------------------------------------------------------------------------------

    def _do(self, event: Event) -> None:
        for effect in self._writer.step(event, self._core.clock.monotonic_ms()):
            self._carry_out(effect)
        self._set_timer()
        if self._idle is not None and self._writer.is_idle and not self._idle.done():
            self._idle.set_result(None)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Store(serial, number):
                self._store_one(serial, number)
            case Propose(proposal, commits):
                self._begin(self._propose_all(proposal, self._commits(commits)))
            case Answer(serial):
                self._answer(self._holdings.pop(serial))
            case Fail(serial, reason):
                self._fail(self._holdings.pop(serial), _failure(reason))

    def _set_timer(self) -> None:
        """Wake up when the writer wants to, and now and then to see who waits for too long."""
        if self.is_over or self._writer.is_idle:
            return
        wanted_ms = self._writer.due_ms()
        now_ms = self._core.clock.monotonic_ms()
        due_ms = now_ms + (DEADLINES_MS if self._told.epoch is not None else LOOK_MS)
        if wanted_ms is not None:
            due_ms = min(due_ms, wanted_ms)
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self._loop.call_later(max(0, due_ms - now_ms) / 1000, self._wake)

    def _wake(self) -> None:
        self._timer = None
        try:
            self._look()
            self.time_out(self._core.clock.monotonic_ms())
            self._do(Tick())
        except Exception:
            logger.exception("gathered records could not be looked after: this is a defect")
            self._set_timer()

    def _begin(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("gathered records were not stored: this is a defect", exc_info=task.exception())

    # --- storing -------------------------------------------------------------------------------------------------

    def _store_one(self, serial: int, number: int) -> None:
        epoch, incarnation = self._writer.epoch, self._table.objects.incarnation
        assert epoch is not None, "nothing is stored before the broker is registered"
        assert incarnation is not None, "nothing is stored before its name is known"
        holding = self._holdings[serial]
        holding.build(ObjectId(incarnation, epoch, number))
        holding.task = self._begin(self._put(serial, holding))

    async def _put(self, serial: int, holding: Holding) -> None:
        event: Event = StoreFailed(serial)
        try:
            event = await self._try_put(serial, holding)
        except (StoreError, OSError, TimeoutError) as error:
            self.put_failures_total += 1
            self._note_away(error)
        finally:
            # A try that ends in any other way was no success either, and the next one comes after a pause.
            if holding.task is asyncio.current_task():
                holding.task = None
                if not self.is_over:
                    self._do(event)

    async def _try_put(self, serial: int, holding: Holding) -> Event:
        assert holding.name is not None
        size = sum(map(len, holding.pieces))
        async with asyncio.timeout(GIVE_UP_MS / 1000 + size / PUT_BYTES_PER_SECOND_MIN):
            self.puts_total += 1
            try:
                await self._store.put(holding.name.name, holding.pieces)
            except ObjectExistsError:
                if not await self._is_ours(holding):
                    logger.error(
                        "%s is in the object store already, with other contents: was the metadata of this cluster "
                        "restored from a backup? That name is given up.",
                        holding.name.name,
                    )
                    return NameTaken(serial)
        self._note_back()
        return Stored(serial)

    async def _is_ours(self, holding: Holding) -> bool:
        """Whether an earlier try has done it: index and footer say with checksums what is before them."""
        assert holding.name is not None
        end = bytes(holding.pieces[-1])
        try:
            return await self._store.get_end(holding.name.name, len(end)) == end
        except ObjectGoneError as error:
            raise StoreUnavailableError(f"The store has {holding.name.name}, and has it not.") from error

    def _note_away(self, error: Exception) -> None:
        if not self.is_store_away:
            self.is_store_away = True
            logger.warning("nothing can be written to %s, and it is tried again: %s", self._store.url, error)

    def _note_back(self) -> None:
        if self.is_store_away:
            self.is_store_away = False
            logger.info("%s takes records again", self._store.url)

    # --- committing ----------------------------------------------------------------------------------------------

    def _commits(self, commits: Sequence[tuple[int, int | None]]) -> list[Commit]:
        return [
            Commit(number, self._holdings[serial].items, self._holdings[serial].generations)
            if serial is not None
            else Commit(number, ())
            for number, serial in commits
        ]

    async def _propose_all(self, proposal: int, commits: list[Commit]) -> None:
        epoch = self._writer.epoch
        assert epoch is not None
        is_agreed = False
        try:
            await self._propose(commit_entry(self._me, epoch, self._core.clock.wall_ms(), commits))
            is_agreed = True
        except AnabranchError as error:
            logger.debug("objects from %d on are proposed again: %s", commits[0].number, error)
        finally:
            if not self.is_over:
                self._do(ProposalEnded(proposal, is_agreed))

    # --- answering -----------------------------------------------------------------------------------------------

    def _answer(self, holding: Holding) -> None:
        assert holding.name is not None
        jobs = holding.jobs()
        try:
            self.on_flushed(holding.name, holding.pieces)
            for job, result in zip(jobs, self._results, strict=True):
                if not job.is_finished:
                    self._settle(job, result)
        finally:
            self._finish_all(jobs, _failure(Reason.UNKNOWN))  # Whatever went wrong, nobody waits for ever.

    def _settle(self, job: AppendJob, result: Result) -> None:
        partition = job.partition
        if result.error is not None:
            self._finish(job, result.error)
            return
        self._core.bytes_in_total += job.header.size_bytes
        if isinstance(partition, ObjectPartition) and not partition.is_gone:
            partition.settle(job, result.base_offset)
        else:
            job.place(result.base_offset)
            self._finish(job, None)

    def _fail(self, holding: Holding, error: AnabranchError) -> None:
        task, holding.task = holding.task, None
        if task is not None:
            task.cancel()
        self._finish_all(holding.jobs(), error)

    def _finish_all(self, jobs: list[AppendJob], error: AnabranchError) -> None:
        for job in jobs:
            if not job.is_finished:
                self._finish(job, error)

    def _finish(self, job: AppendJob, error: AnabranchError | None) -> None:
        job.error, job.batch = error, None
        self._core.finish(job)

    # --- what people see -----------------------------------------------------------------------------------------

    @property
    def is_crowded(self) -> bool:
        """So much is held that connections which bring more are to wait for their answers."""
        return self._writer.is_crowded

    @property
    def held_bytes(self) -> int:
        """Of records that are gathered and not yet agreed on, whether somebody waits for them or not."""
        return self._writer.held_bytes

    @property
    def void_total(self) -> int:
        """Numbers that were given up since the start."""
        return self._writer.void_numbers

    def segments(self) -> list[SegmentView]:
        """Those that are not FLUSHED yet, the oldest first."""
        return self._writer.describe(self._core.clock.monotonic_ms())

    def summary(self) -> list[StateSummary]:
        """One line for each state that a segment can have here, in the order of its life."""
        writer, segments = self._writer, self.segments()
        lines = []
        for state in (SegmentState.ACTIVE, SegmentState.SEALED, SegmentState.FLUSHING):
            of_state = [each for each in segments if each.state is state]
            lines.append(
                StateSummary(
                    state,
                    len(of_state),
                    sum(each.batches for each in of_state),
                    sum(each.size for each in of_state),
                    max((each.age_ms for each in of_state), default=0),
                    sum(each.failures for each in of_state),
                )
            )
        flushed = writer.flushed_segments, writer.flushed_batches, writer.flushed_bytes
        return [*lines, StateSummary(SegmentState.FLUSHED, *flushed, 0, self.put_failures_total)]


def _refusal(reason: Reason) -> AnabranchError:
    match reason:
        case Reason.STORE_AWAY:
            return StoreUnavailableError(
                "The object store does not take what was sent before, and no more can be held: try again later."
            )
        case _:
            return _failure(reason)


def _failure(reason: Reason) -> AnabranchError:
    match reason:
        case Reason.STORE_AWAY:
            return StoreUnavailableError(
                f"The object store did not take these records within {GIVE_UP_MS // 1000} s: send them again."
            )
        case Reason.NOT_REGISTERED:
            return NotOwnerError("The cluster does not count on this broker now: ask another.")
        case Reason.STOPPING:
            return NotOwnerError("This broker stops: ask another.")
        case Reason.UNKNOWN:
            return RequestTimedOutError("Whether these records were kept is not known: send them again.")


def _nobody_cares(object_id: ObjectId, pieces: Sequence[Buffer]) -> None:
    """Without a cache."""
