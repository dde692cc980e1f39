"""ObjectPartition: a partition whose records are in the object store. Every broker has it open and serves it.

It has no folder and gives no offsets. What producers send goes to `writing`, which gathers it with that of all other
partitions and answers each job when the metadata quorum has agreed on it, for only then has it its offset. `applied` is
called whenever the agreed table has changed for this partition, whoever wrote: it moves the high watermark and wakes
readers. There is one generation for ever.

Without an object store (`writing` is None) the node serves its other topics; this one answers that it cannot be served
here, upon which clients try again.

All methods run on the loop's thread.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast
from uuid import UUID

from anabranch.broker.object.fetch_loads import FetchLoads
from anabranch.broker.object.stored_runs import lane_runs, stored_end
from anabranch.broker.topics.partition import OffsetAt, Partition, Search
from anabranch.broker.write.append_queue import AppendJob
from anabranch.cluster.metadata.residence import STORED
from anabranch.cluster.metadata.rows import Placement
from anabranch.config import TopicSettings
from anabranch.errors import AnabranchError, StorageError
from anabranch.modes.mode import Appended
from anabranch.modes.object.mode import ObjectMode
from anabranch.objects.layout.names import Key
from anabranch.record.batch import BatchHeader
from anabranch.values import LANE_BITS, BrokerId, Offset, TopicPartition

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.read.reading import BeginRemoteReads, Reading
    from anabranch.cluster.metadata.table import MetadataTable
    from anabranch.log.log import Log
    from anabranch.log.segment.slice import Slice

STORE_COPIES = 2**15 - 1
"""How many copies the store keeps is its own business; it is never too few."""
NO_STORE = (
    "is in the object store, and this node was started without one: start it with --object-store and the URL that its "
    "cluster uses."
)


class Writing(Protocol):
    """Gathers what is to be written (`writer_driver.py`)."""

    @property
    def is_crowded(self) -> bool: ...

    def take(self, partition: "ObjectPartition", jobs: list[AppendJob]) -> None:
        """Every job is answered some time, by `settle` or `fail`. The bytes of their batches are lent until this
        returns."""
        ...


class Coordinates(Protocol):
    """What the agreed table says of the partition now (`log.py`)."""

    @property
    def start_offset(self) -> Offset: ...
    @property
    def end_offset(self) -> Offset: ...
    @property
    def size_bytes(self) -> int: ...

    async def offset_for_time(self, timestamp_ms: int) -> tuple[Offset, int] | None:
        """The first record of that time or later, with its own time. Raises CorruptDataError, StoreError."""
        ...

    async def max_timestamp(self) -> tuple[Offset, int] | None:
        """The first record of the newest time, with that. Raises as `offset_for_time` does."""
        ...


class AgreedHead:
    """What the agreed table alone says of a partition, and all that a node without the store knows."""

    __slots__ = ("_key", "_table")

    def __init__(self, table: "MetadataTable", key: Key) -> None:
        self._table = table
        self._key = key

    @property
    def start_offset(self) -> Offset:
        return self._table.objects.head(self._key).start

    @property
    def end_offset(self) -> Offset:
        return self._table.objects.head(self._key).end

    @property
    def size_bytes(self) -> int:
        return self._table.objects.head(self._key).size_bytes

    async def offset_for_time(self, timestamp_ms: int) -> tuple[Offset, int] | None:
        raise StorageError(f"A record of {self._key[0]}-{self._key[1]} {NO_STORE}")

    async def max_timestamp(self) -> tuple[Offset, int] | None:
        raise StorageError(f"A record of {self._key[0]}-{self._key[1]} {NO_STORE}")


class ObjectPartition(Partition):
    """One partition in the object store, as this broker sees it."""

    __slots__ = ("_agreed", "_begin_reads", "_readable", "_writing", "coordinates", "key")

    residence = STORED
    has_files = False
    ends_by_quorum = True
    start_is_in_file = False

    def __init__(
        self,
        partition_id: TopicPartition,
        topic_id: UUID,
        coordinates: Coordinates,
        settings: TopicSettings,
        agreed: "MetadataTable",
        *,
        broker_id: BrokerId,
        writing: Writing | None,
        begin_reads: "BeginRemoteReads",
        on_publish: Callable[[Partition], None],
        finish: Callable[[AppendJob], None],
        finished: Callable[[int], None],
    ) -> None:
        self.key = topic_id, partition_id.partition
        self.coordinates = coordinates
        self._agreed = agreed
        self._writing = writing
        self._begin_reads = begin_reads
        super().__init__(
            partition_id,
            topic_id,
            cast("Log", coordinates),  # Whoever needs files of a log asks `has_files` first.
            ObjectMode(broker_id, coordinates.end_offset),
            settings,
            request_sync=_never,
            on_publish=on_publish,
            finish=finish,
            finished=finished,
        )
        self.plain_limits = None
        self.has_gaps = coordinates.end_offset >= 1 << LANE_BITS
        self._readable = Offset(-1), Offset(-1)
        self.producers = agreed.objects.producers(self.key)

    def _renew_limits(self) -> None:
        """Nothing goes by the plain lane: what it queues is expected in a log of ours."""

    # --- what is promised ------------------------------------------------------------------------------------------

    @property
    def copies(self) -> int:
        return STORE_COPIES

    @property
    def acks1_waits(self) -> bool:
        """Nothing is written before it is safe."""
        return True

    @property
    def is_leader(self) -> bool:
        """Every broker that has the object store."""
        return self._writing is not None

    def is_placed_by(self, placement: Placement) -> bool:
        return True

    def place(self, placement: Placement) -> None:
        self.generation = placement.generation

    @property
    def needs_sync(self) -> bool:
        return False

    def check_producer(self, header: BatchHeader, now_ms: int) -> None:
        if header.producer_id >= 0 and self.producer_limits is not None:
            self.producer_limits.check(self, header, now_ms)

    @property
    def readable_end(self) -> Offset:
        if not self.has_gaps:
            return self.high_watermark
        known, end = self._readable
        if known != self.high_watermark:
            known, start = self.high_watermark, self.coordinates.start_offset
            end = stored_end(self._agreed.objects, self.key, start, known)
            self._readable = known, end
        return max(end, self.coordinates.start_offset)

    def runs(self, start: Offset) -> list[tuple[Offset, Offset]]:
        first = max(start, self.coordinates.start_offset)
        return lane_runs(self._agreed.objects, self.key, first, self.high_watermark)

    def check_leader(self) -> None:
        """Every broker serves it, if it has the store."""
        if self._writing is None:
            raise StorageError(f"{self.id} {NO_STORE}")

    def _refusal(self) -> AnabranchError | None:
        if self._gone_because is not None:
            return self._gone_because
        return StorageError(f"{self.id} {NO_STORE}") if self._writing is None else None

    @property
    def is_crowded(self) -> bool:  # type: ignore[override]  # Where there is a log, never.
        return self._writing is not None and self._writing.is_crowded

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, start: Offset, bytes_max: int, upto: Offset, reading: "Reading") -> "Slice | None":
        reads = reading.remote(self._begin_reads)
        return reads.slice(self.log, start, bytes_max, upto, whole_first=reading.whole_first)

    async def offset_for_time(self, timestamp_ms: int, search: Search) -> OffsetAt | None:
        return self._seen(await self.coordinates.offset_for_time(timestamp_ms))

    async def max_timestamp(self, search: Search) -> OffsetAt | None:
        return self._seen(await self.coordinates.max_timestamp())

    def may_come(self, offset: Offset, reading: "Reading") -> bool:
        """Another broker may know more of the object store than this one."""
        return offset > self.log.end_offset and reading.remote(self._begin_reads).may_be_elsewhere(self)

    def is_kept_here(self, offset: Offset) -> bool:
        return False

    def generation_end(self, generation: int) -> tuple[int, int] | None:
        """What was before it went over to the store was never cut."""
        return (generation, self.high_watermark) if 0 <= generation <= self.generation else None

    # --- writing -----------------------------------------------------------------------------------------------------

    def write(self, jobs: list[AppendJob], now_ms: int) -> None:
        refusal = self._refusal()
        if refusal is not None:
            self.fail(jobs, refusal)
            return
        assert self._writing is not None
        self._writing.take(self, jobs)

    def settle(self, job: AppendJob, base_offset: Offset) -> None:
        """Its records have these offsets, now or since it was sent the first time. Behind `applied`: who is answered
        may read."""
        job.batch = None
        job.place(base_offset)
        assert job.end_offset <= self.high_watermark, "answered before it is seen"
        self._finish(job)

    def fail(self, jobs: list[AppendJob], error: AnabranchError) -> None:
        self._fail(jobs, error)

    def applied(self, now_ms: int) -> None:
        """The agreed table has changed: readers see what it holds now."""
        self.producers = self._agreed.objects.producers(self.key)
        self.has_gaps = self.coordinates.end_offset >= 1 << LANE_BITS
        self.carry_out(self.mode.step(Appended(self.coordinates.end_offset), now_ms))


def _never(partition: Partition) -> None:
    raise AssertionError(f"nothing of {partition.id} is synced here")


def open_partition(
    broker: "Broker", partition_id: TopicPartition, topic_id: UUID, settings: TopicSettings
) -> ObjectPartition:
    """As this broker can serve it, which without an object store is not at all."""
    core, objects, key = broker.core, broker.objects, (topic_id, partition_id.partition)
    coordinates = (
        AgreedHead(broker.metadata.table, key) if objects is None else objects.log_of(partition_id, topic_id)
    )
    partition = ObjectPartition(
        partition_id,
        topic_id,
        coordinates,
        settings,
        broker.metadata.table,
        broker_id=BrokerId(broker.id),
        writing=None if objects is None else objects.writing,
        begin_reads=partial(FetchLoads, broker),
        on_publish=core.wake_readers,
        finish=core.finish,
        finished=core.finished,
    )
    partition.producer_limits = broker.opener.producer_limits
    return partition
