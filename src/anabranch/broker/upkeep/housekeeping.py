"""Housekeeping: what a broker does besides answering, each on its own timer.

checkpoints   every few seconds, or when much was written: indexes, producer snapshots and recovery points of
              what has changed, so that the next recovery reads little
timeouts      every second: answer producers whose disk keeps them waiting for too long
flush         under flush=interval: sync what was written
retention     drop segments that are too old or too many; roll those that are due; forget silent producers
cleaning      compact what is worth compacting, one log at a time, in a worker; before that, and also where the
              cleaner is off, take in what jobs have compacted
scrubbing     re-read segments at a bounded rate, and report what has rotted

A disk that refuses one of these is logged and tried again at the next turn: nothing here is needed for safety,
only for speed and room. One partition's trouble does not keep the others from their turn. Whoever walks over all
partitions lets the loop have its turn now and then: there may be thousands. Any other error is a defect and is logged
as one; the next turn comes all the same.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from anabranch.broker.topics.partition import Partition
from anabranch.broker.upkeep.cleaning import Cleaning
from anabranch.broker.upkeep.scrubbing import Scrubbing
from anabranch.broker.workers import in_heavy_worker
from anabranch.errors import CorruptDataError, StorageError
from anabranch.log.disk.checkpoint import RecoveryMark
from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 5.0
CHECKPOINT_LOOKS_PER_TURN = 20
CHECKPOINT_BYTES = 64 * 2**20
CHECKPOINT_BYTES_PER_PARTITION = 128 * 2**10
"""A checkpoint costs something for each partition; with many of them more may have to be read again."""
PARTITIONS_PER_TURN = 50
"""So many are looked after before the loop has its turn."""
SCRUB_SECONDS = 1.0
VERIFIED_SECONDS = 60.0
"""How long bytes may leave by sendfile after they were checked, if nobody changes their file."""
TIMEOUT_SECONDS = 1.0


class Housekeeping:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._tasks: list[tuple[asyncio.Task[None], asyncio.Lock]] = []
        self.is_stopping = False
        self._checkpointed = self._found_written_down()
        self._looks_until_checkpoint = 0 if broker.opener.is_recovering else CHECKPOINT_LOOKS_PER_TURN
        self._bytes_checkpointed = 0
        self.cleaning = Cleaning(broker)
        self.scrubbing = Scrubbing(broker)

    def _found_written_down(self) -> dict[Partition, tuple[RecoveryMark, Offset]]:
        """After a clean stop: what that has left needs no checkpoint before it changes."""
        broker = self._broker
        if broker.opener.is_recovering:
            return {}
        known = broker.state.recovery_points
        return {
            each: (each.recovery_mark, each.snapshot_offset)
            for each in broker.partitions()
            if broker.key_of(each) in known
        }

    def start(self) -> None:
        settings = self._broker.settings
        self._correct_recovery_points()
        self._sync_recovered()
        self._every(CHECKPOINT_SECONDS / CHECKPOINT_LOOKS_PER_TURN, self._checkpoint_if_due)
        self._every(TIMEOUT_SECONDS, self._time_out)
        if settings.flush == "interval":
            self._every(settings.flush_interval_ms / 1000, self._flush)
        self._every(settings.log_retention_check_interval_ms / 1000, self.retain)
        if settings.log_cleaner_enable:
            self._every(settings.log_cleaner_backoff_ms / 1000, self.cleaning.clean_all)
        else:
            self._every(settings.log_cleaner_backoff_ms / 1000, self.cleaning.offers.take_all)
        self._every(VERIFIED_SECONDS, self.scrubbing.forget_verified)
        if settings.scrub_bytes_per_second:
            self._every(SCRUB_SECONDS, self.scrubbing.scrub)

    def _sync_recovered(self) -> None:
        """Where records are shown before they are synced, a start does not wait for the disk either."""
        opener = self._broker.opener
        unsynced, opener.unsynced = opener.unsynced, []
        for partition in unsynced:
            self._broker.core.syncer.request(partition)

    def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        working = asyncio.Lock()

        async def turns() -> None:
            while True:
                await asyncio.sleep(seconds)
                async with working:
                    await self._turn(work)

        self._tasks.append((asyncio.get_running_loop().create_task(turns()), working))

    async def _turn(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (StorageError, OSError) as error:
            logger.warning("housekeeping (%s) will try again: %s", work.__name__, error)
        except Exception:
            logger.exception("housekeeping (%s) failed: this is a defect", work.__name__)

    async def stop(self) -> None:
        """End between two works: a worker that went on alone could write a file together with the closing node."""
        self.is_stopping = True
        for task, working in self._tasks:
            async with working:
                task.cancel()
        await asyncio.gather(*(task for task, _ in self._tasks), return_exceptions=True)
        self._tasks.clear()

    async def _each(
        self, partitions: Iterable[Partition], work: Callable[[Partition], Awaitable[None]]
    ) -> list[Partition]:
        """Do the same to every partition; those where it worked. Who is being cleaned has its turn next time."""
        done = []
        async for partition in _in_turns(partitions):
            if partition.upkeep.locked() or self.is_stopping:
                continue
            async with partition.upkeep:
                if partition.is_gone:
                    continue
                try:
                    await work(partition)
                except (StorageError, CorruptDataError, OSError) as error:
                    logger.warning("housekeeping will try %s again: %s", partition.id, error)
                else:
                    done.append(partition)
        return done

    async def _time_out(self) -> None:
        if not self._broker.core.queue.bytes_held:
            return  # Nobody waits.
        now_ms = self._broker.clock.monotonic_ms()
        async for partition in _in_turns(list(self._broker.topics.partitions())):
            partition.time_out(now_ms)

    async def _flush(self) -> None:
        self._broker.core.sync_unsynced()

    # --- checkpoints ---------------------------------------------------------------------------------------------

    async def _checkpoint_if_due(self) -> None:
        """After a while, or once a recovery would have much to read."""
        core = self._broker.core
        self._looks_until_checkpoint -= 1
        bytes_new = core.bytes_in_total - self._bytes_checkpointed
        bytes_max = max(CHECKPOINT_BYTES, CHECKPOINT_BYTES_PER_PARTITION * len(self._checkpointed))
        if self._looks_until_checkpoint > 0 and bytes_new < bytes_max:
            return
        self._looks_until_checkpoint = CHECKPOINT_LOOKS_PER_TURN
        self._bytes_checkpointed = core.bytes_in_total
        await self.checkpoint()
        if self._broker.peers is not None:
            await self._broker.start_offsets.keep_followed()

    async def checkpoint(self) -> None:
        """Write down what shortens the next recovery, if partitions have grown or been fenced since."""
        broker = self._broker
        partitions = broker.partitions()
        before = {each: each.recovery_mark async for each in _in_turns(partitions)}
        changed = [
            each
            for each in partitions
            if self._checkpointed.get(each) != (before[each], each.snapshot_offset)
        ]
        if not changed:
            return
        saved: dict[Partition, tuple[RecoveryMark, Offset]] = {}

        async def save(partition: Partition) -> None:
            await self._save(partition)
            saved[partition] = before[partition], partition.snapshot_offset

        await self._each(changed, save)
        marks: dict[str, RecoveryMark] = {}
        producers = {}
        async for each in _in_turns(partitions):
            if not each.is_gone:
                key = broker.key_of(each)
                marks |= each.recovery_marks(key)
                producers[key] = broker.opener.producers_mark(each)
        marks |= self._other_marks()
        await in_heavy_worker(broker.workers, lambda: broker.state.write_recovery_points(marks, producers))
        known = {each: mark for each, mark in self._checkpointed.items() if each in before}
        self._checkpointed = known | saved

    async def _save(self, partition: Partition) -> None:
        """The snapshot of producers is synced, which is no work for the loop's thread."""
        partition.log.flush_indexes()
        await self._broker.kinds.of(partition).save_producers(partition)

    def write_checkpoints(self, partitions: Iterable[Partition]) -> None:
        """At a clean stop: everything at once, on the spot."""
        self._write_recovery_points(partitions)
        self._broker.start_offsets.write_now()

    def _write_recovery_points(self, partitions: Iterable[Partition]) -> None:
        broker = self._broker
        keys = {each: broker.key_of(each) for each in partitions}
        marks = {name: mark for each, key in keys.items() for name, mark in each.recovery_marks(key).items()}
        broker.state.write_recovery_points(
            marks | self._other_marks(),
            {key: broker.opener.producers_mark(each) for each, key in keys.items()},
        )

    def _other_marks(self) -> dict[str, RecoveryMark]:
        return {name: mark for kind in self._broker.kinds for name, mark in kind.recovery_marks().items()}

    def _correct_recovery_points(self) -> None:
        """Before the first request: a log that has lost its end will fill the gap with other records, and a crash
        must not find the old points then."""
        if self._broker.opener.has_lost_records:
            try:
                self._write_recovery_points(self._broker.partitions())
            except OSError as error:
                logger.error("the recovery points still speak of lost records: %s", error)

    # --- retention -----------------------------------------------------------------------------------------------

    async def retain(self) -> None:
        await self._each(list(self._broker.topics.partitions()), self._retain_one)
        limits, now_ms = self._broker.opener.producer_limits, self._broker.clock.wall_ms()
        limits.keep(now_ms)
        limits.refused.drop_old(now_ms)

    async def _retain_one(self, partition: Partition) -> None:
        now_ms = self._broker.clock.wall_ms()
        silent_since_ms = now_ms - self._broker.settings.producer_id_expiration_ms
        self._broker.opener.expire_producers(partition, silent_since_ms)
        if not partition.log.fenced:
            partition.log.roll_if_due(now_ms)
        await self._broker.kinds.of(partition).retain(partition, now_ms)


async def _in_turns(partitions: Iterable[Partition]) -> AsyncIterator[Partition]:
    """One after the other; the loop has its turn now and then."""
    for number, partition in enumerate(partitions):
        if number % PARTITIONS_PER_TURN == 0:
            await asyncio.sleep(0)
        yield partition
