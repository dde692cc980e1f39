"""Replacements that jobs ask for: a job reads objects by their coordinates, stores what it has merged or compacted
under names that this broker gave it, and has them take the place of what it read.

The broker believes nothing that a job says: it looks at the new objects' indexes, then reads old and new rows, and of
a compaction as much of the rest of the partition as it takes to show that nothing is missing
(`objects.layout.replacement_proof`). Whether it counts is decided when it is applied, by compare-and-replace, as for
the embedded upkeep. A job may be late, or never come back: what it has stored is then an orphan.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from anabranch.broker.object.merges import MergedNames
from anabranch.broker.workers import Workers, in_heavy_worker
from anabranch.clock import Clock
from anabranch.cluster.metadata.rows import Topic
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.cluster.objects.entries import Entry, Replacement, replace_entry
from anabranch.errors import (
    BatchTooLargeError,
    CorruptDataError,
    InvalidRecordError,
    InvalidRequestError,
    ObjectGoneError,
    OfferRefusedError,
)
from anabranch.objects.layout.format import TAIL_BYTES, Range, index_in, read_footer, read_index
from anabranch.objects.layout.merge import RowBytes
from anabranch.objects.layout.names import Key, ObjectId, Row
from anabranch.objects.layout.plans import ROWS_PER_REPLACEMENT, Keeping, rows_from
from anabranch.objects.layout.replacement_check import is_thinned, why_not_replaced
from anabranch.objects.layout.replacement_proof import ReplacementProof
from anabranch.objects.store import ObjectStore
from anabranch.values import Offset

NAMES_PER_REQUEST_MAX = 1000
NAMES_OPEN_MAX = 100_000


ROWS_MAX = 2**31


class ProofLimits(NamedTuple):
    """What checking one replacement may take."""

    keys_max: int
    records_bytes_max: int
    """What one batch may unpack to."""


class Outcome(NamedTuple):
    is_replaced: bool
    reason: str | None = None


class ObjectReplacements:
    def __init__(
        self,
        table: Callable[[], MetadataTable],
        store: ObjectStore,
        names: MergedNames,
        clock: Clock,
        workers: Workers,
        collect_ms: int,
        limits: ProofLimits,
        *,
        propose: Callable[[Entry], Awaitable[Offset]],
        caught_up: Callable[[], Awaitable[None]],
        keeping_of: Callable[[Topic], Keeping],
    ) -> None:
        """`propose` agrees on an entry, wherever the leader is; `caught_up` waits until it is applied here."""
        self._table = table
        self._store = store
        self._names = names
        self._clock = clock
        self._workers = workers
        self._collect_ms = collect_ms
        self._limits = limits
        self._propose = propose
        self._caught_up = caught_up
        self._keeping_of = keeping_of
        self._given: dict[ObjectId, int] = {}
        """Names that jobs have and when they got them, oldest first."""

    # --- names ---------------------------------------------------------------------------------------------------

    def name(self, count: int) -> list[ObjectId]:
        """Names for one object each. Raises InvalidRequestError, and WorkStoppedError: try again."""
        if not 0 < count <= NAMES_PER_REQUEST_MAX:
            raise InvalidRequestError(
                f"{count} names were asked for: ask for 1 to {NAMES_PER_REQUEST_MAX} at a time."
            )
        now_ms = self._clock.monotonic_ms()
        self._forget_old(now_ms)
        if len(self._given) + count > NAMES_OPEN_MAX:
            raise InvalidRequestError(
                f"Jobs hold {len(self._given)} names that they have not used: try again later."
            )
        names = [self._names.take(self._table()) for _ in range(count)]
        self._given.update(dict.fromkeys(names, now_ms))
        return names

    def _forget_old(self, now_ms: int) -> None:
        """What is that old may be collected at any moment."""
        for object_id, since_ms in list(self._given.items()):
            if now_ms - since_ms < self._collect_ms:
                return
            del self._given[object_id]

    # --- replacing -----------------------------------------------------------------------------------------------

    async def replace(self, replacements: Sequence[Replacement]) -> list[Outcome]:
        """One outcome for each. Raises InvalidRequestError, StoreError, NotControllerError, QuorumBusyError,
        WorkStoppedError and what peers raise: whether it was done is then unknown, and asking again does no harm."""
        if sum(len(each.old) + len(each.new) for each in replacements) > 2 * ROWS_PER_REPLACEMENT:
            raise InvalidRequestError(
                f"More than {ROWS_PER_REPLACEMENT} rows are to be replaced at once: ask for fewer."
            )
        reasons = [await self._why_not(each) for each in replacements]
        fitting = [each for each, reason in zip(replacements, reasons, strict=True) if reason is None]
        if fitting:
            _, epoch = self._names.check(self._table())
            await self._propose(replace_entry(self._names.me, epoch, fitting))
            await self._caught_up()
        return [
            Outcome(False, reason) if reason is not None else self._outcome(each)
            for each, reason in zip(replacements, reasons, strict=True)
        ]

    def _outcome(self, replacement: Replacement) -> Outcome:
        key, old, new = replacement
        objects = self._table().objects
        if new:
            is_there = objects.rows(key, new[0].base_offset, 1) == [new[0]]
        else:
            is_there = objects.rows(key, old[-1].base_offset, 1) != [old[-1]]
        for row in new:
            self._given.pop(row.object_id, None)
        return Outcome(True) if is_there else Outcome(False, "its rows have changed meanwhile")

    async def _why_not(self, replacement: Replacement) -> str | None:
        topic = self._table().topics_by_id.get(replacement.key[0])
        if topic is None:
            return "there is no such topic any more"
        ranges = {}
        for object_id in dict.fromkeys(row.object_id for row in replacement.new):
            if object_id not in self._given:
                return f"this broker has not named {object_id.name}, or long ago"
            try:
                ranges[object_id] = await self._index_of(object_id)
            except ObjectGoneError:
                return f"{object_id.name} is not in the store"
            except CorruptDataError as error:
                return f"{object_id.name}: {error}"
        keeping = self._keeping_of(topic)
        reason = why_not_replaced(*replacement, ranges, is_compacted=keeping.is_compacted)
        return reason if reason is not None else await self._why_not_proved(replacement, keeping)

    # --- proving -------------------------------------------------------------------------------------------------

    async def _why_not_proved(self, replacement: Replacement, keeping: Keeping) -> str | None:
        key, old, _ = replacement
        if self._table().objects.rows(key, old[0].base_offset, len(old)) != list(old):
            return "its rows have changed meanwhile"  # Nothing else names these bytes: they may be gone.
        try:
            await self._prove(replacement, keeping)
        except ObjectGoneError:
            return "its rows have changed meanwhile"
        except (OfferRefusedError, CorruptDataError, InvalidRecordError, BatchTooLargeError) as error:
            return str(error)
        return None

    async def _prove(self, replacement: Replacement, keeping: Keeping) -> None:
        """Raises OfferRefusedError, and what is wrong with bytes. A row at a time is in memory, and the new ones."""
        key, old, new = replacement
        proof = ReplacementProof(
            is_compacted=is_thinned(new),
            now_ms=self._clock.wall_ms(),
            delete_retention_ms=keeping.delete_retention_ms,
            keys_max=self._limits.keys_max,
            bytes_max=self._limits.records_bytes_max,
        )
        for row in new:
            await self._add(proof.add_new, row)
        for row in old:
            await self._add(proof.add_old, row)
        for row in self._rows_behind(key, old[-1].next_offset):
            if proof.is_settled:
                break
            await self._add(proof.add_later, row)
        if proof.has_expired:
            for row in self._rows_before(key, old[0].base_offset):
                await self._add(proof.add_earlier, row)
        proof.end()

    async def _add(self, add: Callable[[RowBytes], None], row: Row) -> None:
        data = await self._store.get(row.object_id.name, row.position, row.position + row.length)
        await in_heavy_worker(self._workers, partial(add, RowBytes(row, data)))

    def _rows_behind(self, key: Key, start: Offset) -> Iterable[Row]:
        """Those that may replace a record: what is compacted already holds no key of what is before it."""
        rows = (row for row in rows_from(self._table().objects, key, start, ROWS_MAX))
        return (row for row in rows if row.base_offset >= start and not row.is_compacted)

    def _rows_before(self, key: Key, end: Offset) -> Iterable[Row]:
        for row in rows_from(self._table().objects, key, Offset(0), ROWS_MAX):
            if row.base_offset >= end:
                return
            yield row

    async def _index_of(self, object_id: ObjectId) -> Sequence[Range]:
        tail = await self._store.get_end(object_id.name, TAIL_BYTES)
        footer = read_footer(tail)
        index = index_in(tail, footer)
        if index is None:
            end = footer.index_position + footer.index_length
            index = await self._store.get(object_id.name, footer.index_position, end)
        return read_index(index, footer)
