"""Replacements that jobs ask for: a job reads objects by their coordinates, stores what it has merged or compacted
under names that this broker gave it, and has them take the place of what it read.

The broker looks at the new objects' indexes, not at their records, and proposes what could be true; whether it counts
is decided when it is applied, by compare-and-replace, as for the embedded upkeep. A job may be late, or never come
back: what it has stored is then an orphan.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from anabranch.broker.object_merges import MergedNames
from anabranch.clock import Clock
from anabranch.cluster.metadata import MetadataTable
from anabranch.cluster.object_entries import Entry, Replacement, replace_entry
from anabranch.cluster.rows import Topic
from anabranch.errors import CorruptDataError, InvalidRequestError, ObjectGoneError
from anabranch.objects.store import ObjectStore
from anabranch.record.object_format import TAIL_BYTES, Range, index_in, read_footer, read_index
from anabranch.record.object_names import ObjectId
from anabranch.record.object_plans import ROWS_PER_REPLACEMENT
from anabranch.record.object_replacing import why_not_replaced
from anabranch.values import Offset

NAMES_PER_REQUEST_MAX = 1000
NAMES_OPEN_MAX = 100_000


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
        collect_ms: int,
        *,
        propose: Callable[[Entry], Awaitable[Offset]],
        caught_up: Callable[[], Awaitable[None]],
        is_compacted: Callable[[Topic], bool],
    ) -> None:
        """`propose` agrees on an entry, wherever the leader is; `caught_up` waits until it is applied here."""
        self._table = table
        self._store = store
        self._names = names
        self._clock = clock
        self._collect_ms = collect_ms
        self._propose = propose
        self._caught_up = caught_up
        self._is_compacted = is_compacted
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
        return why_not_replaced(*replacement, ranges, is_compacted=self._is_compacted(topic))

    async def _index_of(self, object_id: ObjectId) -> Sequence[Range]:
        tail = await self._store.get_end(object_id.name, TAIL_BYTES)
        footer = read_footer(tail)
        index = index_in(tail, footer)
        if index is None:
            end = footer.index_position + footer.index_length
            index = await self._store.get(object_id.name, footer.index_position, end)
        return read_index(index, footer)
