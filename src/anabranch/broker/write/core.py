"""BrokerCore: owns the AppendQueue and its single writer, the syncer, and the fetches that wait.

One turn: handlers put jobs into the queue; at its end `turn` writes every partition's jobs in one append each and
lets the modes decide what follows, has the answers sent, then wakes readers and has theirs sent, so that producers
come first. The server opens a turn, reads from every socket that has something to say, and ends it; whoever has
work for the core outside of one has it scheduled. Everything here runs on the loop's thread.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from anabranch.broker.read.fetch_wait import FetchWaits
from anabranch.broker.topics.partition import Partition
from anabranch.broker.workers import Workers
from anabranch.broker.write.append_queue import NEVER_MS, AppendJob, AppendQueue, Batch
from anabranch.broker.write.syncer import Syncer
from anabranch.clock import Clock
from anabranch.config import NodeSettings
from anabranch.errors import AnabranchError, StorageError
from anabranch.record.batch import read_header
from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.requests.call import Call

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class BrokerCore:
    def __init__(self, settings: NodeSettings, clock: Clock, workers: Workers) -> None:
        self.clock = clock
        self.workers = workers
        self.queue = AppendQueue(settings.append_queue_bytes_max)
        self.syncer = Syncer(workers, clock)
        self.fetch_waits = FetchWaits(self.schedule, settings.fetch_waiting_partitions_max)
        self.batches_total = 0
        self.bytes_in_total = 0
        self.tasks_open = 0
        """Requests that are answered by a coroutine, which needs the loop to get on."""
        self._loop = asyncio.get_running_loop()
        self.send_answers: Callable[[], None] = _nobody_listens
        """Set by the server: lets the answers of this turn leave, each connection's together."""
        self.flush_peers: Callable[[], None] | None = None
        """Set among peers: lets what this turn tells them leave. The loop has their sockets, so it must get on."""
        self.is_turn_open = False
        """What is handed in now is seen to at the end of this turn."""
        self._turn_due: asyncio.Handle | None = None
        self._unsynced: set[Partition] = set()
        self._stalled: dict[Callable[[], None], None] = {}

    # --- turns -----------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """There is something to write, to answer or to wake: see to it that a turn comes."""
        if not self.is_turn_open:
            self.another_turn()

    def another_turn(self) -> None:
        """The present turn leaves something for the next."""
        if self._turn_due is None:
            self._turn_due = self._loop.call_soon(self.turn)

    @property
    def is_loop_awaited(self) -> bool:
        """Something that is not a socket waits for its turn, or will at any moment."""
        return (
            self._turn_due is not None
            or self.tasks_open > 0
            or not self.syncer.is_idle
            or self.flush_peers is not None
        )

    def turn(self) -> None:
        if self._turn_due is None:
            self.syncer.place.turns += 1  # Begun by a socket: somebody wants something.
        else:
            self._turn_due.cancel()  # This is that turn: two in line would be followed by two for good.
            self._turn_due = None
        self.is_turn_open = True
        try:
            if self.queue:
                self._write()
                self.syncer.begin_gathered()
                if self.flush_peers is not None:
                    self.flush_peers()
            self.send_answers()
            if self.syncer.kept is not None:
                self.syncer.sync_kept()
                self.send_answers()
            if self.fetch_waits.is_behind:
                self.fetch_waits.serve()
                self.send_answers()
        finally:
            self.is_turn_open = False
        # Those who got their answers were held up by them, and have sent more; or more readers wait than a turn serves.
        if self.queue or self.fetch_waits.is_behind:
            self.another_turn()

    # --- requests that take several turns --------------------------------------------------------------------

    def carry_on(
        self, work: Awaitable[Result], call: "Call", then: Callable[[Result], None]
    ) -> "asyncio.Future[Result]":
        """Go on with a request in later turns, and then with `then`. Whatever goes wrong closes its connection."""
        task = asyncio.ensure_future(work)
        self.tasks_open += 1

        def done(task: "asyncio.Future[Result]") -> None:
            self.tasks_open -= 1
            if task.cancelled():
                call.close("the node stops")
                return
            try:
                then(task.result())
            except AnabranchError as error:
                logger.info("closing %s: %s", call.client.host, error)
                call.close(str(error))
            except Exception as error:  # A defect of ours costs this connection, and nobody else anything.
                logger.exception("a handler failed: this is a defect")
                call.close(f"{type(error).__name__}: {error}")

        task.add_done_callback(done)
        return task

    # --- writing ---------------------------------------------------------------------------------------------

    def submit(self, job: AppendJob) -> None:
        """Queue a job for the end of this turn. Until then nobody may change the bytes of its batch."""
        self.queue.put(job)
        if not self.is_turn_open:
            self.another_turn()

    def append(
        self, partition: Partition, batch: Batch, *, deadline_ms: int = NEVER_MS
    ) -> "asyncio.Future[Offset]":
        """For the broker's own records (groups, metadata): the base offset, once the batch is safe."""
        future: asyncio.Future[Offset] = self._loop.create_future()

        def finished(job: AppendJob) -> None:
            if future.done():
                return
            if job.error is not None:
                future.set_exception(job.error)
            else:
                future.set_result(job.base_offset)

        header = read_header(batch)
        self.submit(AppendJob(partition, batch, header, finished, wait_safe=True, deadline_ms=deadline_ms))
        return future

    def _write(self) -> None:
        now_ms = self.clock.wall_ms()
        for partition, jobs in self.queue.take_all().items():
            self.batches_total += len(jobs)
            try:
                partition.write(jobs, now_ms)
            except Exception:
                logger.exception("a write to %s failed: this is a defect", partition.id)
                self._fail_unfinished(partition, jobs)
            if not partition.is_gone:
                self._unsynced.add(partition)

    def _fail_unfinished(self, partition: Partition, jobs: list[AppendJob]) -> None:
        """A defect of ours costs the requests it met; those of other partitions go on."""
        error = StorageError(f"A write to {partition.id} failed for a reason that was not expected.")
        partition.sync_failed(error)
        for job in jobs:
            if not job.is_finished:
                job.error = error
                self.finish(job)

    def finish(self, job: AppendJob) -> None:
        """A job is settled: tell whoever asked."""
        assert not job.is_finished, "an append job was answered twice"
        job.is_finished = True
        self.queue.release(job.size)
        if job.error is None:
            self.bytes_in_total += job.size
        try:
            if job.error is not None and (limits := job.partition.producer_limits) is not None:
                job.error = limits.refused.told(job.partition, job.header, job.error, self.clock.wall_ms())
            job.finished(job)
        except Exception:
            # Whoever asked cannot be told; the jobs beside this one still can.
            logger.exception("an append to %s could not be answered: this is a defect", job.partition.id)
        if self._stalled:
            self._relax()

    def hand_over(self, job: AppendJob) -> None:
        """Somebody else holds the bytes of this job until it is answered, perhaps for long, and has a limit for that:
        they do not keep other producers waiting here."""
        self.queue.release(job.size)
        job.size = 0
        if self._stalled:
            self._relax()

    def finished(self, size: int) -> None:
        """Jobs of that many bytes were written well, and whoever asked has been told."""
        self.queue.release(size)
        self.bytes_in_total += size
        if self._stalled:
            self._relax()

    def _relax(self) -> None:
        """Let stalled connections read again if there is room."""
        if self.queue.is_relaxed:
            stalled, self._stalled = self._stalled, {}
            for resume in stalled:
                self._loop.call_soon(resume)
            self.another_turn()

    def when_relaxed(self, resume: Callable[[], None]) -> None:
        """Call `resume` once the queue has room again."""
        self._stalled[resume] = None

    # --- waking readers ----------------------------------------------------------------------------------------

    def wake_readers(self, partition: Partition) -> None:
        self.fetch_waits.wake((partition,))

    # --- flush=interval ------------------------------------------------------------------------------------------

    def sync_unsynced(self) -> None:
        """Ask for a sync of everything written since the last call."""
        unsynced, self._unsynced = self._unsynced, set()
        for partition in unsynced:
            if partition.needs_sync:
                self.syncer.request(partition)

    def forget(self, partition: Partition) -> None:
        """The partition is gone. Those who waited for it are still woken, to be told so."""
        self._unsynced.discard(partition)


def _nobody_listens() -> None:
    """Without a server an answer has arrived once it is given."""
