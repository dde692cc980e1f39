"""ArchiveStart: moves the start of what partitions have in the object store, besides what brokers keep of them.

The metadata quorum agrees on it; it is known here before it shows.
"""

import logging
from typing import TYPE_CHECKING

from anabranch.broker.metadata.metadata_log import MetadataLog
from anabranch.broker.topics.partition import Partition
from anabranch.errors import NotControllerError, PeerError, QuorumBusyError
from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.peers.peers import Peers

logger = logging.getLogger(__name__)


class ArchiveStart:
    def __init__(self, metadata: MetadataLog, peers: "Peers | None") -> None:
        self._metadata = metadata
        self._peers = peers

    async def move(self, partition: Partition, offset: Offset) -> None:
        """Delete what lies below `offset`. Raises NotControllerError, QuorumBusyError, StorageError."""
        from anabranch.broker.metadata.proposals import Proposals  # For those alone who keep objects.
        from anabranch.cluster.objects.entries import start_entry

        key = partition.topic_id, partition.id.partition
        head = self._metadata.table.objects.head(key)
        if head.start >= min(offset, head.end):
            return
        try:
            await Proposals(self._metadata, self._peers).propose(start_entry({key: offset}))
        except PeerError as error:
            raise NotControllerError(f"The leader of the metadata quorum cannot be asked: {error}") from error
        await self._metadata.caught_up()

    async def drop_if_followed(self, partition: Partition) -> None:
        """Delete all that a partition left in the object store, once records that are newer have been deleted."""
        archived = partition.archived
        if not archived.exists or partition.log.start_offset <= archived.floor or not partition.is_leader:
            return
        try:
            await self.move(partition, archived.floor)
        except (NotControllerError, QuorumBusyError) as error:
            logger.info("older records of %s stay in the object store for now: %s", partition.id, error)
