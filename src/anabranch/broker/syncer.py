"""Syncer: group commit. One fdatasync per partition at a time, in a worker thread, covering all that came before.

While a sync runs, further requests for the same partition gather into the next one: under load many producers
share a sync, and a lone producer waits for just its own. A failed sync fences the log for good: it is reported
to everybody who waited, and never tried again as if nothing had happened.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from anabranch.broker.workers import Workers
from anabranch.clock import Clock
from anabranch.errors import StorageError
from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.partition import Partition

logger = logging.getLogger(__name__)


class Syncer:
    def __init__(self, workers: Workers, clock: Clock) -> None:
        self._workers = workers
        self._clock = clock
        self._running: set[Partition] = set()
        self._wanted: set[Partition] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self.syncs_total = 0
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

    def request(self, partition: "Partition") -> None:
        """Sync everything the partition has written so far, soon."""
        if partition in self._running:
            self._wanted.add(partition)
            return
        self._running.add(partition)
        self._workers.sync(partition.log.sync, lambda end, error: self._finished(partition, end, error))

    def _finished(self, partition: "Partition", end: Offset | None, error: BaseException | None) -> None:
        self._running.discard(partition)
        self.syncs_total += 1
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        if error is None:
            assert end is not None
            if partition in self._wanted:
                self._wanted.discard(partition)
                self.request(partition)  # Started before the answers go out, so that the disk is never idle.
            partition.synced(end, self._clock.wall_ms())
            return
        self._wanted.discard(partition)
        self.failures_total += 1
        if isinstance(error, StorageError):
            logger.error("sync failed: %s is fenced until a restart verifies it: %s", partition.id, error)
        else:
            logger.error("a sync of %s failed: this is a defect", partition.id, exc_info=error)
            error = StorageError(f"A sync of {partition.id} failed for a reason that was not expected.")
        partition.sync_failed(error)
