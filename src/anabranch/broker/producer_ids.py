"""ProducerIds: numbers for idempotent producers, none given twice, whatever crashes.

Ids are reserved from the metadata log in blocks; a block that a crash cuts short is never touched again.
"""

from anabranch.broker.metadata_log import MetadataLog
from anabranch.cluster.metadata import producer_ids_entry

BLOCK = 1000


class ProducerIds:
    def __init__(self, metadata: MetadataLog) -> None:
        self._metadata = metadata
        self._next = 0
        self._end = 0

    async def take(self) -> int:
        """A producer id nobody has. Raises StorageError if no block can be reserved."""
        if self._next == self._end:
            async with self._metadata.lock:
                if self._next == self._end:
                    first = self._metadata.table.producer_id_next
                    await self._metadata.commit(producer_ids_entry(first + BLOCK))
                    self._next, self._end = first, first + BLOCK
        taken = self._next
        self._next += 1
        return taken
