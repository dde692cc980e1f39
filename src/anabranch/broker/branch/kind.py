"""BranchKind: partitions that each side of a split goes on with."""

from typing import cast

from anabranch.broker.branch.branches import BranchTopics
from anabranch.broker.branch.partition import BranchPartition
from anabranch.broker.topics.archive_start import ArchiveStart
from anabranch.broker.topics.partition import Partition
from anabranch.broker.topics.partition_opener import PartitionOpener
from anabranch.clock import Clock
from anabranch.log.disk.checkpoint import RecoveryMark
from anabranch.values import Offset


class BranchKind:
    def __init__(
        self,
        branches: BranchTopics,
        opener: PartitionOpener,
        archive: ArchiveStart,
        clock: Clock,
        producer_silence_ms: int,
    ) -> None:
        """`producer_silence_ms`: after which a producer is forgotten."""
        self._branches = branches
        self._opener = opener
        self._archive = archive
        self._clock = clock
        self._producer_silence_ms = producer_silence_ms

    async def delete_before(self, partition: Partition, offset: Offset) -> None:
        await self._branches.delete_records(partition, offset)
        floor = partition.archived.floor
        if partition.log.start_offset <= floor:
            # Else a row says it, on any side of a split, and the object store follows when retention runs.
            await self._archive.move(partition, min(offset, floor))

    async def retain(self, partition: Partition, now_ms: int) -> None:
        await self._branches.retain(partition, now_ms)
        await self._archive.drop_if_followed(partition)

    async def save_producers(self, partition: Partition) -> None:
        if partition.keeps_producers:
            await self._opener.save_producers_later(partition)
        else:
            silent_since_ms = self._clock.wall_ms() - self._producer_silence_ms
            await cast(BranchPartition, partition).save_followed(silent_since_ms)

    def recovery_marks(self) -> dict[str, RecoveryMark]:
        return self._branches.recovery_marks()
