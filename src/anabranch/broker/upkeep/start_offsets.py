"""StartOffsets: where the logs of this broker start, durably, before anybody is told.

Segments are deleted whole and later, so a start within one is only in this file. The starts of partitions whose other
brokers know them are not (`Partition.start_is_in_file`).
"""

import asyncio
from collections.abc import Callable, Iterable

from anabranch.broker.topics.partition import Partition
from anabranch.broker.topics.stored_state import StoredState, partition_key
from anabranch.broker.workers import Workers, in_heavy_worker
from anabranch.errors import StorageError
from anabranch.values import Offset


class StartOffsets:
    def __init__(
        self, state: StoredState, workers: Workers, partitions: Callable[[], Iterable[Partition]]
    ) -> None:
        """`partitions`: all that there are now."""
        self._state = state
        self._workers = workers
        self._partitions = partitions
        self._written = dict(state.start_offsets)
        self.lock = asyncio.Lock()
        """Held by whoever writes the file: two at once would spoil the one they write aside."""

    async def keep(self, partition: Partition, offset: Offset) -> None:
        """Make a new start durable. Raises StorageError."""
        async with self.lock:
            starts = self._starts_now()
            key = partition_key(partition.topic_id, partition.id.partition)
            starts[key] = max(offset, starts.get(key, Offset(0)))
            try:
                await self._write(starts)
            except OSError as error:
                raise StorageError(f"The new start of {partition.id} cannot be kept: {error}.") from error

    async def keep_followed(self) -> None:
        """Write down starts that replicas have moved because their leaders did."""
        async with self.lock:
            starts = self._starts_now()
            if starts != self._written:
                await self._write(starts)

    def write_now(self) -> None:
        """Write the file at a clean stop, without a worker."""
        self._state.write_start_offsets(self._starts_now())

    async def _write(self, starts: dict[str, Offset]) -> None:
        await in_heavy_worker(self._workers, lambda: self._state.write_start_offsets(starts))
        self._written = starts

    def _starts_now(self) -> dict[str, Offset]:
        """The starts to keep: those of partitions that still exist."""
        starts = {}
        for partition in self._partitions():
            if not partition.start_is_in_file:
                continue
            key = partition_key(partition.topic_id, partition.id.partition)
            start = max(self._written.get(key, Offset(0)), partition.log.start_offset)
            if start:
                starts[key] = start
        return starts
