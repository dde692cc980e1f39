"""ObjectKind: partitions whose records are in the object store."""

from anabranch.broker.metadata.metadata_log import MetadataLog
from anabranch.broker.topics.partition import Partition
from anabranch.cluster.objects.entries import start_entry
from anabranch.log.disk.checkpoint import RecoveryMark
from anabranch.values import Offset


class ObjectKind:
    def __init__(self, metadata: MetadataLog) -> None:
        self._metadata = metadata

    async def delete_before(self, partition: Partition, offset: Offset) -> None:
        if offset > partition.log.start_offset:
            key = partition.topic_id, partition.id.partition
            await self._metadata.propose(start_entry({key: offset}))

    async def retain(self, partition: Partition, now_ms: int) -> None:
        raise AssertionError("the quorum's leader does that for all of them at once (`upkeep.py`)")

    async def save_producers(self, partition: Partition) -> None:
        raise AssertionError("the agreed table has them")

    def recovery_marks(self) -> dict[str, RecoveryMark]:
        return {}
