"""LogKind: partitions with logs of their own on the brokers that keep them, one or several."""

import logging

from anabranch.broker.topics.archive_start import ArchiveStart
from anabranch.broker.topics.partition import Partition
from anabranch.broker.topics.partition_opener import PartitionOpener
from anabranch.broker.upkeep.start_offsets import StartOffsets
from anabranch.broker.workers import Workers, in_heavy_worker
from anabranch.log.disk.checkpoint import RecoveryMark
from anabranch.values import Offset

logger = logging.getLogger(__name__)


class LogKind:
    def __init__(
        self, opener: PartitionOpener, workers: Workers, starts: StartOffsets, archive: ArchiveStart
    ) -> None:
        self._opener = opener
        self._workers = workers
        self._starts = starts
        self._archive = archive

    async def delete_before(self, partition: Partition, offset: Offset) -> None:
        if offset > partition.log.start_offset:
            await self._starts.keep(partition, offset)
            partition.log.advance_start(max(offset, partition.log.start_offset))
        if partition.archived.exists or partition.leaves_for_store or partition.is_gone:
            await self._archive.move(partition, offset)

    async def retain(self, partition: Partition, now_ms: int) -> None:
        await self._drop_expired(partition, now_ms)
        await self._archive.drop_if_followed(partition)

    async def _drop_expired(self, partition: Partition, now_ms: int) -> None:
        log = partition.log
        expired = [
            segment for segment in log.expired(now_ms) if segment.published_offset <= partition.high_watermark
        ]
        if not expired:
            return
        await self._starts.keep(partition, expired[-1].published_offset)
        dropped = log.drop(expired)
        logger.info("retention drops %d segments of %s", len(dropped), partition.id)
        await in_heavy_worker(self._workers, lambda: log.delete_files(dropped))

    async def save_producers(self, partition: Partition) -> None:
        await self._opener.save_producers_later(partition)

    def recovery_marks(self) -> dict[str, RecoveryMark]:
        return {}
