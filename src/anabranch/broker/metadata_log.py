"""MetadataLog: the log behind the agreed table. An entry counts once it is on the disk, and only then is applied.

It is an ordinary partition, `__cluster_metadata`, that always syncs first, whatever the node's flush setting: one
sync per administrative change. Changes are made one at a time under `lock`, so that what was checked still holds
when it is committed. After `ENTRIES_PER_SNAPSHOT` entries the whole table is written aside as a checkpoint and
the log below it is dropped.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator

from anabranch.broker.core import BrokerCore
from anabranch.broker.partition import Partition
from anabranch.broker.workers import in_heavy_worker
from anabranch.cluster.metadata import Entry, MetadataTable, decode_entry, encode_entry
from anabranch.errors import CorruptDataError, StorageError
from anabranch.log.checkpoint import read_checkpoint, write_checkpoint
from anabranch.log.files import Files
from anabranch.log.log import Log
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import Record, records_of
from anabranch.values import Offset

ENTRIES_PER_SNAPSHOT = 1000
READ_BYTES = 2**20

logger = logging.getLogger(__name__)


class MetadataLog:
    def __init__(self, core: BrokerCore, files: Files, snapshot_path: str, partition: Partition) -> None:
        self.table = MetadataTable()
        self.lock = asyncio.Lock()
        self.partition = partition
        self._core = core
        self._files = files
        self._snapshot_path = snapshot_path
        self._snapshot_offset = Offset(0)
        self._subscribers: list[Callable[[Offset, Entry | None], None]] = []

    def subscribe(self, follow: Callable[[Offset, Entry | None], None]) -> None:
        """Be told of every entry after it has changed the table; None: the whole table was replaced."""
        self._subscribers.append(follow)

    def load(self) -> None:
        """Read the table back: the snapshot, then every entry behind it."""
        snapshot, _ = read_checkpoint(self._files, self._snapshot_path)
        log = self.partition.log
        if snapshot is not None:
            self.table.restore(snapshot["table"])
            self._snapshot_offset = Offset(snapshot["offset"])
        if log.start_offset > self._snapshot_offset or log.end_offset < self._snapshot_offset:
            raise CorruptDataError(
                f"The metadata log holds entries {log.start_offset} to {log.end_offset}, but its snapshot ends at "
                f"{self._snapshot_offset}: restore {self._snapshot_path} and {log.folder} from the same backup."
            )
        for record in read_records(log, self._snapshot_offset):
            if record.value is None:
                raise CorruptDataError(f"Metadata entry {record.offset} is empty.")
            self.table.apply(decode_entry(record.value), record.offset)

    async def commit(self, entry: Entry) -> None:
        """Make one change. The caller holds `lock`. Raises StorageError, and then nothing has changed."""
        assert self.lock.locked()
        builder = BatchBuilder()
        builder.add(None, encode_entry(entry), timestamp_ms=self._core.clock.wall_ms())
        offset = await self._core.append(self.partition, builder.build())
        self.table.apply(entry, offset)
        for follow in self._subscribers:
            follow(offset, entry)
        if self.partition.log.end_offset - self._snapshot_offset >= ENTRIES_PER_SNAPSHOT:
            try:
                await self._snapshot()
            except (StorageError, OSError) as error:
                # The entry counts already; the next one tries again to shorten the log.
                logger.warning("the metadata snapshot cannot be written: %s", error)

    async def _snapshot(self) -> None:
        offset = self.partition.log.end_offset
        value = {"offset": offset, "table": self.table.snapshot()}
        await in_heavy_worker(
            self._core.workers, lambda: write_checkpoint(self._files, self._snapshot_path, value)
        )
        self._snapshot_offset = offset
        log = self.partition.log
        log.roll()
        log.advance_start(offset)
        dropped = log.drop(log.segments[:-1])
        await in_heavy_worker(self._core.workers, lambda: log.delete_files(dropped))


def snapshot_offset(files: Files, path: str) -> Offset:
    """Where the log begins as far as anybody needs it; entries below, of which a refusing disk or a crash may have
    left some, are in the snapshot."""
    value, _ = read_checkpoint(files, path)
    return Offset(value["offset"]) if value is not None else Offset(0)


def read_records(log: Log, start: Offset) -> Iterator[Record]:
    """Every record from `start` to the end of a log, checked on the way."""
    while start < log.end_offset:
        part = log.slice(start, READ_BYTES, log.end_offset)
        if not part.count:
            return
        if not part.verified:
            part.verify()
            part.mark_verified()
        data = part.read()
        for first, last in batch_spans(data):
            yield from (
                record for record in records_of(memoryview(data)[first:last]) if record.offset >= start
            )
            start = read_header(data, first).next_offset
