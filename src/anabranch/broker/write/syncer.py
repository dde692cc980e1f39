"""Syncer: group commit. One fdatasync per partition at a time, covering all that came before.

What a turn of the core wants synced is gathered until the turn has written everything. Then workers begin with it, or
it is kept until the answers that need no sync have left, and done right here, if that is quicker (`SyncPlace` has the
rule). While a worker syncs, further requests for the same partition
gather into the next one: under load many producers share a sync, and a lone producer waits for just its own. A failed
sync fences the log for good: it is reported to everybody who waited, and never tried again as if nothing had
happened. All methods run on the loop's thread.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from anabranch.broker.workers import Workers
from anabranch.broker.write.sync_place import SMALL_BYTES_MAX, SyncPlace
from anabranch.clock import Clock
from anabranch.errors import StorageError
from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.topics.partition import Partition

logger = logging.getLogger(__name__)


class Syncer:
    def __init__(self, workers: Workers, clock: Clock) -> None:
        self._workers = workers
        self._clock = clock
        self._running: set[Partition] = set()
        self._wanted: set[Partition] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self.place = SyncPlace()
        self._gathered: list[Partition] = []
        self.kept: Partition | None = None
        """To be synced by `sync_kept`, in this turn."""
        self.syncs_total = 0
        self.syncs_here_total = 0
        self.failures_total = 0

    @property
    def is_idle(self) -> bool:
        return not self._running

    async def idle(self, partition: "Partition | None" = None) -> None:
        """Wait until no sync of this partition runs, or none at all."""
        while partition in self._running if partition is not None else self._running:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def request_in_turn(self, partition: "Partition") -> None:
        """Sync everything the partition has written so far, once the present turn has written all it has."""
        self._gathered.append(partition)

    def begin_gathered(self) -> None:
        """The turn has written everything: let workers begin with what it has gathered, or keep it for here."""
        if not self._gathered:
            return
        gathered, self._gathered = self._gathered, []
        is_calm = self.place.is_loop_calm(self._clock.monotonic_us())
        if is_calm and len(gathered) == 1 and self._belongs_here(gathered[0]):
            self.kept = gathered[0]
            return
        for partition in gathered:
            self.request(partition)

    def request(self, partition: "Partition") -> None:
        """Sync everything the partition has written so far, in a worker."""
        if partition in self._running:
            self._wanted.add(partition)
            return
        self._running.add(partition)
        log, clock = partition.log, self._clock
        is_small = log.is_sync_small(SMALL_BYTES_MAX)

        def sync() -> tuple[Offset, int]:
            started_us = clock.monotonic_us()
            return log.sync(), clock.monotonic_us() - started_us

        def done(result: tuple[Offset, int] | None, error: BaseException | None) -> None:
            self._running.discard(partition)
            if result is None:
                assert error is not None
                self._failed(partition, error)
                return
            if is_small:
                self.place.note(result[1], here=False)
            self._finished(partition, result[0])

        self._workers.sync(sync, done)

    def _belongs_here(self, partition: "Partition") -> bool:
        return (
            self.place.is_disk_fast
            and not self._running
            and partition.is_awaited
            and partition.log.is_sync_small(SMALL_BYTES_MAX)
        )

    def sync_kept(self) -> None:
        """Sync what was kept; whoever waited for it has been told when this returns."""
        assert self.kept is not None
        partition, self.kept = self.kept, None
        self.syncs_here_total += 1
        started_us = self._clock.monotonic_us()
        try:
            end = partition.log.sync()
        except Exception as error:  # noqa: BLE001 - dealt with as if a worker had met it.
            self._failed(partition, error)
            return
        self.place.note(self._clock.monotonic_us() - started_us, here=True)
        self._finished(partition, end)

    def _finished(self, partition: "Partition", end: Offset) -> None:
        self.syncs_total += 1
        if self._waiters:
            self._tell_waiters()
        if partition in self._wanted:
            self._wanted.discard(partition)
            self.request(partition)  # Started before the answers go out, so that the disk is never idle.
        partition.synced(end, self._clock.wall_ms())

    def _tell_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _failed(self, partition: "Partition", error: BaseException) -> None:
        self.syncs_total += 1
        self._tell_waiters()
        self._wanted.discard(partition)
        self.failures_total += 1
        if isinstance(error, StorageError):
            logger.error("sync failed: %s is fenced until a restart verifies it: %s", partition.id, error)
        else:
            logger.error("a sync of %s failed: this is a defect", partition.id, exc_info=error)
            error = StorageError(f"A sync of {partition.id} failed for a reason that was not expected.")
        partition.sync_failed(error)
