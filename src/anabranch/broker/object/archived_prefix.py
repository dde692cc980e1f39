"""StoredPrefix: what a partition that came back from the object store left there (`cluster/metadata/residence.py`).

Every broker with the store can read it, whoever keeps what came after; the table says what of it is left.
"""

from functools import partial
from typing import TYPE_CHECKING

from anabranch.broker.object.fetch_loads import FetchLoads
from anabranch.broker.object.stored_runs import lane_runs, stored_end
from anabranch.broker.topics.archived_prefix import ArchivedPrefix, Moment
from anabranch.errors import StorageError
from anabranch.objects.layout.names import Key
from anabranch.record.producer_table import Producer
from anabranch.values import Offset, TopicPartition

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.object.log import ObjectLog
    from anabranch.broker.read.reading import BeginRemoteReads, Reading
    from anabranch.cluster.metadata.table import MetadataTable
    from anabranch.log.segment.slice import Slice

ROWS_MAX = 1000


class StoredPrefix(ArchivedPrefix):
    """Of one partition, as this broker can serve it. For the loop's thread, but for `producers`."""

    def __init__(
        self,
        partition_id: TopicPartition,
        key: Key,
        floor: Offset,
        table: "MetadataTable",
        log: "ObjectLog | None",
        begin_reads: "BeginRemoteReads",
    ) -> None:
        """`log`: None if this node has no object store."""
        self.floor = floor
        self.key = key
        self._id = partition_id
        self._table = table
        self._log = log
        self._begin_reads = begin_reads

    @property
    def start_offset(self) -> Offset:  # type: ignore[override]  # Of an empty one it never changes.
        """Where it begins; at the floor, if nothing of it is left."""
        return min(self._table.objects.head(self.key).start, self.floor)

    @property
    def readable_end(self) -> Offset:  # type: ignore[override]
        return stored_end(self._table.objects, self.key, self.start_offset, self.floor)

    @property
    def log(self) -> "ObjectLog":
        """Raises StorageError."""
        if self._log is None:
            raise StorageError(
                f"{self._id} is below offset {self.floor} in the object store, and this node was started without one: "
                "start it with --object-store and the URL that its cluster uses."
            )
        return self._log

    def producers(self) -> "dict[int, Producer]":
        return dict(self._table.objects.producers(self.key).producers)

    def producers_below(self) -> "dict[int, Producer]":
        found = {}
        for producer_id, known in self.producers().items():
            batches = tuple(batch for batch in known.batches if batch.base_offset < self.floor)
            if batches or not known.batches:
                found[producer_id] = Producer(known.epoch, known.timestamp_ms_last, batches)
        return found

    def is_read(self, start: Offset) -> bool:
        rows = self._table.objects.rows(self.key, start, 1)
        return not rows or rows[0].base_offset >= self.floor

    def runs(self, start: Offset) -> list[tuple[Offset, Offset]]:
        """Where there are records from `start` on, without the gaps between objects; of very many, those behind the
        first ones without the gaps between lanes alone."""
        found: list[tuple[Offset, Offset]] = []
        at = max(start, self.start_offset)
        rows = self._table.objects.rows(self.key, at, ROWS_MAX) if at < self.floor else []
        for row in rows:
            first, end = max(at, row.base_offset), min(row.next_offset, self.floor)
            if found and found[-1][1] == first:
                found[-1] = found[-1][0], end
            elif first < end:
                found.append((first, end))
        if len(rows) == ROWS_MAX:
            last, _ = found.pop()
            found += lane_runs(self._table.objects, self.key, last, self.floor)
        return found

    def read(self, start: Offset, bytes_max: int, upto: Offset, reading: "Reading") -> "Slice | None":
        reads = reading.remote(self._begin_reads)
        return reads.slice(self.log, start, bytes_max, upto, whole_first=reading.whole_first)

    async def offset_for_time(self, timestamp_ms: int) -> Moment | None:
        return self._below(await self.log.offset_for_time(timestamp_ms))

    async def max_timestamp(self) -> Moment | None:
        return self._below(await self.log.max_timestamp())

    def _below(self, found: Moment | None) -> Moment | None:
        """While the partition goes over to the store again, more lies there than its past."""
        return found if found is not None and found[0] < self.floor else None


def prefix_of(broker: "Broker", partition_id: TopicPartition, key: Key, floor: Offset) -> StoredPrefix:
    log = broker.objects.log_of(partition_id, key[0]) if broker.objects is not None else None
    return StoredPrefix(partition_id, key, floor, broker.metadata.table, log, partial(FetchLoads, broker))
