"""Cleaning: runs the LogCleaner over the broker's compacted logs, one at a time, the most urgent first.

Reading and rewriting happen in a worker on segments that no longer change; only the swap is a turn of the loop.
How far each log is clean is kept in `cleaner-offsets`; losing that costs a run, nothing else. A log with a bad
batch is left alone and reported, once per process: the cleaner never rewrites what it cannot trust.
What jobs have compacted and offered comes first (`offers.py`), and goes in through the same door.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from anabranch.broker.topics.partition import Partition
from anabranch.broker.upkeep.external_compaction import Offers
from anabranch.broker.workers import in_heavy_worker
from anabranch.errors import CorruptDataError, StorageError, WorkStoppedError
from anabranch.log.cleaner import CleanPlan, KeysMapped, map_keys, most_urgent, plan, rewrite
from anabranch.log.disk.files import Files
from anabranch.log.segment.segment import Segment
from anabranch.log.swap import Rewritten
from anabranch.record.compaction.offset_map import BYTES_PER_KEY
from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

logger = logging.getLogger(__name__)


class Cleaning:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._clean_upto: dict[str, Offset] = dict(broker.state.cleaner_offsets)
        self._damaged: set[str] = set()
        self.keys_max = max(1, broker.settings.log_cleaner_dedupe_buffer_size // BYTES_PER_KEY)
        self.runs_total = 0
        self.bytes_dropped_total = 0
        self.offers = Offers(broker, self)

    async def clean_all(self) -> None:
        """Clean until nothing is due any more. A log that the disk refuses to rewrite does not hold up the others."""
        await self.offers.take_all()
        refused: set[Partition] = set()
        while not self._is_stopping() and (due := self._most_urgent(refused)) is not None:
            try:
                await self._run(*due)
            except (StorageError, OSError) as error:
                logger.warning("%s cannot be cleaned now: %s", due[0].id, error)
                refused.add(due[0])

    def _is_stopping(self) -> bool:
        return self._broker.housekeeping.is_stopping

    def _most_urgent(self, refused: set[Partition]) -> tuple[Partition, CleanPlan] | None:
        partitions, plans = [], []
        for partition in self._broker.topics.partitions():
            candidate = self.plan_of(partition) if partition not in refused else None
            if candidate is not None:
                partitions.append(partition)
                plans.append(candidate)
        urgent = most_urgent(plans)
        if urgent is None:
            return None
        return next(pair for pair in zip(partitions, plans, strict=True) if pair[1] is urgent)

    def plan_of(self, partition: Partition) -> CleanPlan | None:
        """What a run over this log would read now; None if it is not to be compacted, or has nothing that may be."""
        key = self._broker.key_of(partition)
        if not partition.settings.is_compacted or key in self._damaged:
            return None
        if partition.leaves_for_store:
            return None  # A key whose deletion has gone would come back with what was copied before.
        first_dirty = max(self._clean_upto.get(key, Offset(0)), partition.log.start_offset)
        return plan(
            partition.log,
            first_dirty,
            self._broker.clock.wall_ms(),
            self._is_stopping,
            safe_end=partition.high_watermark,
            tombstones_stay=partition.has_archived,
        )

    async def _run(self, partition: Partition, due: CleanPlan) -> None:
        broker = self._broker
        bytes_before = partition.log.size_bytes
        last_offsets = partition.producers.last_offsets()
        try:
            mapped = await in_heavy_worker(broker.workers, lambda: map_keys(due, self.keys_max, last_offsets))
            upto = await self._rewrite(partition, mapped)
        except WorkStoppedError:
            return
        except CorruptDataError as error:
            self.note_damaged(partition, error)
            return
        await self.note_run(partition, upto, bytes_before - partition.log.size_bytes)

    def note_damaged(self, partition: Partition, error: CorruptDataError) -> None:
        """A batch of ours does not hold: the log is left alone from now on."""
        self._damaged.add(self._broker.key_of(partition))
        self._broker.note_read_error(partition, error)

    async def note_run(self, partition: Partition, upto: Offset, bytes_dropped: int) -> None:
        self.runs_total += 1
        self.bytes_dropped_total += max(0, bytes_dropped)
        await self._remember(partition, upto)

    async def _rewrite(self, partition: Partition, mapped: KeysMapped) -> Offset:
        """Rewrite group by group; the offset below which the log is clean now."""
        for group in mapped.groups:
            if not await self.replace(partition, mapped, group, rewrite):
                return mapped.plan.first_dirty
        return mapped.upto

    async def replace(
        self,
        partition: Partition,
        mapped: KeysMapped,
        group: Sequence[Segment],
        rewrite: Callable[[Files, KeysMapped, Sequence[Segment]], Rewritten],
    ) -> bool:
        """One group of segments by its cleaned form; False: retention was faster, or nobody needs it any more."""
        log, files, workers = partition.log, self._broker.files, self._broker.workers
        async with partition.upkeep:
            if partition.is_gone or self._is_stopping():
                return False
            await in_heavy_worker(workers, log.prepare_rewrite)
            rewritten = await in_heavy_worker(workers, lambda: rewrite(files, mapped, group))
            swapped = log.swap_in(rewritten)
            await in_heavy_worker(workers, lambda: log.finish_swap(rewritten))
        return swapped

    async def _remember(self, partition: Partition, upto: Offset) -> None:
        broker = self._broker
        self._clean_upto[broker.key_of(partition)] = upto
        known = {broker.key_of(each) for each in broker.topics.partitions()}
        self._clean_upto = {name: offset for name, offset in self._clean_upto.items() if name in known}
        offsets = dict(self._clean_upto)
        await in_heavy_worker(broker.workers, lambda: broker.state.write_cleaner_offsets(offsets))
