"""Merging and compacting in the object store: reads the rows that were decided on, writes what becomes of them as new
objects, and has them take the others' place.

The order makes it safe: the new object is in the store before any entry names it, and the entry counts only if the rows
are still those that were read. So others may commit, retain, merge and compact at the same time, here or in a job; who
comes second changes nothing, and what it has written is an orphan. A crash at any point leaves at most that.

What is read here goes around the cache of readers. Memory is about three times `object.merge.bytes`, and the map of
keys while something is compacted.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from anabranch.broker.workers import Workers, in_heavy_worker
from anabranch.clock import Clock
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.cluster.objects.entries import Entry, Key, Replacement, replace_entry
from anabranch.errors import (
    BatchTooLargeError,
    CorruptDataError,
    InvalidRecordError,
    ObjectExistsError,
    WorkStoppedError,
)
from anabranch.objects.layout.compaction_plan import Compaction, grouped_rows
from anabranch.objects.layout.merge import (
    Compactor,
    MergedRange,
    Merger,
    RowBytes,
    build_object,
    map_row,
)
from anabranch.objects.layout.merge_plan import Merge, packed
from anabranch.objects.layout.names import ObjectId, ObjectKind, Row
from anabranch.objects.layout.plans import ROWS_PER_REPLACEMENT
from anabranch.objects.store import Buffer, ObjectStore
from anabranch.record.compaction.offset_map import OffsetMap
from anabranch.record.compaction.run import CompactionRun
from anabranch.values import BrokerId, Offset

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
READS_AT_ONCE = 8
SLICE_BYTES = 2**20
NAMES_TRIED_MAX = 100
BAD_BYTES = (CorruptDataError, InvalidRecordError, BatchTooLargeError)
"""What is wrong with the records themselves, not with the way to them."""


class Agreement(Protocol):
    """The metadata log, as far as it is needed here."""

    @property
    def table(self) -> MetadataTable: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def term(self) -> int: ...

    async def propose(self, entry: Entry) -> Offset: ...


class MergeSettings(NamedTuple):
    merge_bytes: int
    keys_max: int
    records_bytes_max: int
    """What one batch may unpack to."""


class MergedNames:
    """Names for merged objects of this broker. Each is used once: one that turns out to be taken is left alone, for it
    may be what an earlier process has written under the same registration."""

    def __init__(self, me: BrokerId, own_epoch: Callable[[], int | None] | None = None) -> None:
        """`own_epoch`: of this process's registration; until it is in the table, an earlier process's may be."""
        self.me = me
        self._own_epoch = own_epoch
        self._epoch = -1
        self._next = 0

    def check(self, table: MetadataTable) -> tuple[int, int]:
        """Incarnation and epoch. Raises WorkStoppedError if this broker may not name anything now."""
        row, incarnation = table.brokers.get(self.me), table.objects.incarnation
        is_own = self._own_epoch is None or (row is not None and row.epoch == self._own_epoch())
        if row is None or row.is_fenced or incarnation is None or not is_own:
            raise WorkStoppedError(f"Broker {self.me} has no say in what lies in the object store now.")
        return incarnation, row.epoch

    def take(self, table: MetadataTable) -> ObjectId:
        """Raises as `check` does."""
        incarnation, epoch = self.check(table)
        if epoch != self._epoch:
            self._epoch, self._next = epoch, 0
        self._next += 1
        return ObjectId(incarnation, epoch, self._next - 1, ObjectKind.MERGED)


class Rewritten(NamedTuple):
    """What is to take the place of some rows of one partition."""

    old: Sequence[Row]
    new: Sequence[MergedRange]


class ObjectMerges:
    def __init__(
        self,
        agreement: Agreement,
        store: ObjectStore,
        workers: Workers,
        clock: Clock,
        names: MergedNames,
        settings: MergeSettings,
        check: Callable[[], None],
    ) -> None:
        """`check` raises WorkStoppedError once this work is nobody's any more; it is asked after every wait."""
        self._agreement = agreement
        self._store = store
        self._workers = workers
        self._clock = clock
        self._names = names
        self._settings = settings
        self._check = check
        self.damaged: set[Key] = set()
        """Partitions with bytes that do not hold, whenever they are read: left alone from now on."""
        self._suspected: set[Key] = set()
        """The same, but it was once: bytes are damaged on their way, too."""
        self.merges_total = 0
        self.compactions_total = 0
        self.refused_total = 0
        """Replacements that came too late."""
        self.bytes_read_total = 0
        self.bytes_written_total = 0
        self.bytes_dropped_total = 0

    # --- merging -------------------------------------------------------------------------------------------------

    async def merge(self, merge: Merge, kinds: Mapping[Key, Hashable]) -> bool:
        """Whether any of it counts. `kinds`: partitions of different ones share no object. Raises StoreError,
        NotControllerError, QuorumBusyError, WorkStoppedError: then try again later."""
        read = await self._read(row for rows in merge.rows.values() for row in rows)
        made: dict[Key, Rewritten] = {}
        for key, rows in merge.rows.items():
            parts = [RowBytes(row, read[row]) for row in rows]
            merger = Merger(is_compacted=all(row.is_compacted for row in rows))
            if await self._added(key, merger, parts):
                made[key] = Rewritten(rows, merger.build())
        read.clear()
        refused_before = self.refused_total
        await self._replace_packed(made, kinds)
        self.merges_total += 1
        return self.refused_total - refused_before < len(made)

    # --- compacting ----------------------------------------------------------------------------------------------

    async def compact(self, compactions: Sequence[Compaction], now_ms: int) -> None:
        """Those that fit share an object. Raises as `merge` does."""
        made: dict[Key, Rewritten] = {}
        for each in compactions:
            if each.fits(self._settings.merge_bytes):
                rewritten = await self._compacted_whole(each, now_ms)
                if rewritten is not None:
                    made[each.key] = rewritten
            else:
                await self._compact_in_groups(each, now_ms)
        await self._replace_packed(made, {each.key: each.keeping.kind for each in compactions})
        self.compactions_total += len(compactions)

    async def _compacted_whole(self, compaction: Compaction, now_ms: int) -> Rewritten | None:
        latest, key = OffsetMap(self._settings.keys_max), compaction.key
        read = await self._read(compaction.rows)
        parts = [RowBytes(row, read[row]) for row in compaction.rows]
        dirty = [part for part in parts if part.row.next_offset > compaction.first_dirty]
        upto = await self._mapped_upto(compaction, latest, dirty)
        if upto is None:
            return None
        compactor = Compactor(self._run_of(compaction, latest, upto, now_ms))
        if not await self._added(key, compactor, parts):
            return None
        return Rewritten(compaction.rows, compactor.build())

    async def _compact_in_groups(self, compaction: Compaction, now_ms: int) -> None:
        """A large partition, from its start on, so that its compacted rows never hold a key twice: if a group cannot
        be replaced, those behind it are not either."""
        latest, key = OffsetMap(self._settings.keys_max), compaction.key
        upto = await self._mapped(compaction, latest)
        if upto is None:
            return
        run = self._run_of(compaction, latest, upto, now_ms)
        reached = [row for row in compaction.rows if row.base_offset < upto]
        for group in grouped_rows(reached, self._settings.merge_bytes):
            read = await self._read(group)
            parts = [RowBytes(row, read[row]) for row in group]
            compactor = Compactor(run)
            if not await self._added(key, compactor, parts):
                return
            if not await self._replace({key: Rewritten(group, compactor.build())}):
                return

    async def _mapped(self, compaction: Compaction, latest: OffsetMap) -> Offset | None:
        """How far the keys are known; None: bytes do not hold."""
        upto: Offset | None = compaction.first_dirty
        dirty = [row for row in compaction.rows if row.next_offset > compaction.first_dirty]
        for group in grouped_rows(dirty, self._settings.merge_bytes):
            read = await self._read(group)
            upto = await self._mapped_upto(compaction, latest, [RowBytes(row, read[row]) for row in group])
            if upto is None or upto < group[-1].next_offset:
                break
        return upto

    async def _mapped_upto(
        self, compaction: Compaction, latest: OffsetMap, parts: Sequence[RowBytes]
    ) -> Offset | None:
        upto = compaction.first_dirty
        for some in _slices(parts):
            reached = await self._tried(compaction.key, partial(self._map, some, latest, compaction))
            if reached is None:
                return None
            upto = reached
            if upto < some[-1].row.next_offset:
                break
        return upto

    def _map(self, parts: Sequence[RowBytes], latest: OffsetMap, compaction: Compaction) -> Offset:
        upto = compaction.first_dirty
        for part in parts:
            upto = map_row(part, latest, compaction.first_dirty, self._settings.records_bytes_max)
            if upto < part.row.next_offset:
                break
        return upto

    def _run_of(self, compaction: Compaction, latest: OffsetMap, upto: Offset, now_ms: int) -> CompactionRun:
        # What producers wrote last is known to the table: nothing has to be kept in the log for it.
        last_offsets: Mapping[int, int] = {}
        retention_ms = compaction.keeping.delete_retention_ms
        return CompactionRun(
            latest, upto, last_offsets, now_ms, retention_ms, self._settings.records_bytes_max
        )

    # --- reading -------------------------------------------------------------------------------------------------

    async def _read(self, rows: Iterable[Row]) -> dict[Row, memoryview]:
        """The bytes of these rows; every object is asked once."""
        by_object: dict[ObjectId, list[Row]] = {}
        for row in rows:
            by_object.setdefault(row.object_id, []).append(row)
        waiting = list(by_object.items())
        read: dict[Row, memoryview] = {}
        for start in range(0, len(waiting), READS_AT_ONCE):
            together = waiting[start : start + READS_AT_ONCE]
            for found in await asyncio.gather(*(self._read_object(*each) for each in together)):
                read.update(found)
            self._check()
        return read

    async def _read_object(self, object_id: ObjectId, rows: Sequence[Row]) -> dict[Row, memoryview]:
        start = min(row.position for row in rows)
        end = max(row.position + row.length for row in rows)
        view = memoryview(await self._store.get(object_id.name, start, end))
        self.bytes_read_total += len(view)
        return {row: view[row.position - start : row.position - start + row.length] for row in rows}

    async def _added(self, key: Key, maker: Merger | Compactor, parts: Sequence[RowBytes]) -> bool:
        """Hand it these rows, a little at a time; False: bytes do not hold."""
        for some in _slices(parts):
            is_added = await self._tried(key, partial(_add, maker, some))
            if not is_added:
                return False
        return True

    async def _tried(self, key: Key, work: Callable[[], Result]) -> Result | None:
        """What a worker makes of it; None: bytes of this partition do not hold."""
        if key in self.damaged:
            return None
        began_ms = self._clock.monotonic_ms()
        try:
            result = await in_heavy_worker(self._workers, work)
        except BAD_BYTES as error:
            self._suspect(key, error)
            return None
        self._suspected.discard(key)
        # A worker that computes keeps the loop's thread waiting, now and then: it gets as much time again.
        await asyncio.sleep((self._clock.monotonic_ms() - began_ms) / 1000)
        self._check()
        return result

    def _suspect(self, key: Key, error: Exception) -> None:
        if key in self._suspected:
            self.damaged.add(key)
            logger.error("partition %d of topic %s is not merged any more: %s", key[1], key[0], error)
        else:
            self._suspected.add(key)
            logger.warning("partition %d of topic %s is read again: %s", key[1], key[0], error)

    # --- replacing -----------------------------------------------------------------------------------------------

    async def _replace_packed(self, made: Mapping[Key, Rewritten], kinds: Mapping[Key, Hashable]) -> None:
        sizes = {key: sum(len(each.data) for each in rewritten.new) for key, rewritten in made.items()}
        for keys in packed(sizes, self._settings.merge_bytes, kinds):
            await self._replace({key: made[key] for key in keys})

    async def _replace(self, made: Mapping[Key, Rewritten]) -> bool:
        """Store it as one object, and have that agreed on; whether all of it counts."""
        rows = await self._put({key: rewritten.new for key, rewritten in made.items()})
        replacements = [Replacement(key, rewritten.old, rows.get(key, ())) for key, rewritten in made.items()]
        me = self._names.me
        for some in _in_entries(replacements):
            _, epoch = self._names.check(self._agreement.table)
            await self._agreement.propose(replace_entry(me, epoch, some))
            self._check()
        counted = [self._is_replaced(each) for each in replacements]
        return all(counted)

    def _is_replaced(self, replacement: Replacement) -> bool:
        key, old, new = replacement
        objects = self._agreement.table.objects
        if new:
            counts = objects.rows(key, new[0].base_offset, 1) == [new[0]]
        else:
            counts = objects.rows(key, old[-1].base_offset, 1) != [old[-1]]
        if counts:
            dropped = sum(row.length for row in old) - sum(row.length for row in new)
            self.bytes_dropped_total += dropped
        else:
            self.refused_total += 1
            logger.info("rows of partition %d of topic %s have changed meanwhile", key[1], key[0])
        return counts

    async def _put(self, parts: Mapping[Key, Sequence[MergedRange]]) -> Mapping[Key, Sequence[Row]]:
        """Nothing is stored if nothing is left."""
        kept = {key: ranges for key, ranges in parts.items() if ranges}
        if not kept:
            return {}
        for _ in range(NAMES_TRIED_MAX):
            object_id = self._names.take(self._agreement.table)
            pieces, rows = await in_heavy_worker(self._workers, partial(build_object, kept, object_id))
            self._check()
            if await self._is_put(object_id, pieces):
                self._check()
                return rows
        raise WorkStoppedError(f"{NAMES_TRIED_MAX} names for a merged object are all taken.")

    async def _is_put(self, object_id: ObjectId, pieces: Sequence[Buffer]) -> bool:
        try:
            await self._store.put(object_id.name, pieces)
        except ObjectExistsError:
            return False
        self.bytes_written_total += sum(len(piece) for piece in pieces)
        return True


def _add(maker: Merger | Compactor, parts: Sequence[RowBytes]) -> bool:
    maker.add(parts)
    return True


def _slices(parts: Sequence[RowBytes]) -> Iterator[Sequence[RowBytes]]:
    """As many rows as a worker takes at once."""
    some: list[RowBytes] = []
    size = 0
    for part in parts:
        some.append(part)
        size += part.row.length
        if size >= SLICE_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _in_entries(replacements: Sequence[Replacement]) -> Iterable[Sequence[Replacement]]:
    """So many in one entry that it stays small."""
    some: list[Replacement] = []
    count = 0
    for each in replacements:
        if some and count + len(each.old) > ROWS_PER_REPLACEMENT:
            yield some
            some, count = [], 0
        some.append(each)
        count += len(each.old)
    if some:
        yield some
