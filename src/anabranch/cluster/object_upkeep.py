"""What is to be done for the objects in a store: decisions over the agreed table, the topics' settings and the time.

Nothing here acts. `broker.object_upkeep` carries it out, as entries that every broker applies: what was decided may be
overtaken by then, and the table takes only what still holds. `object_merging.py` decides about merges.

A row is to object mode what a segment is to a log: it goes as a whole, and only from the old end. An object goes when
no row names it, in three steps: a tombstone (from then on nothing may name it), its deletion once whoever read it has
had `object.collect.ms` to end, and the removal of the tombstone. What a crash has left in the store without a row is
found by a listing: only names of this incarnation, older than `object.collect.ms`, of a number that no commit can need
any more. So objects of another cluster in the same place, and what is still on its way, are left alone.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from anabranch.cluster.object_entries import Entry, Key, start_entry
from anabranch.errors import OffsetOutOfRangeError
from anabranch.record.object_names import FOLDERS, ObjectId, ObjectKind, Row, object_id_of
from anabranch.values import BrokerId, Offset

ROWS_PER_PAGE = 256
ROWS_PER_LOOK = 4096
"""So many rows of one partition are looked at in one go; the rest has its turn later."""
ROWS_PER_REPLACEMENT = 2048
"""So many are replaced at once in one partition, so that an entry stays small."""
HIGH_WATERMARK = Offset(-1)
"""In DeleteRecords: everything there is."""


class Span(Protocol):
    """Where a partition begins and ends, and what its rows take."""

    @property
    def start(self) -> Offset: ...

    @property
    def end(self) -> Offset: ...

    @property
    def size_bytes(self) -> int: ...


class Rows(Protocol):
    """What is asked of the table of objects about partitions."""

    def head(self, key: Key) -> Span: ...

    def rows(self, key: Key, start: Offset, count_max: int) -> list[Row]: ...


class References(Protocol):
    """What is asked of it about objects."""

    @property
    def incarnation(self) -> int | None: ...

    def references(self, object_id: ObjectId) -> int: ...

    def is_tombstoned(self, object_id: ObjectId) -> bool: ...

    def last_number(self, broker: BrokerId, epoch: int) -> int: ...


class Keeping(NamedTuple):
    """How long a topic keeps its records."""

    is_deleted: bool
    """Whether retention by time and size applies."""
    retention_ms: int
    retention_bytes: int
    is_compacted: bool
    delete_retention_ms: int = 86_400_000
    dirty_ratio_min: float = 0.5
    compaction_lag_ms_min: int = 0
    compaction_lag_ms_max: int = 2**63 - 1


def rows_from(objects: Rows, key: Key, start: Offset, count_max: int = ROWS_PER_LOOK) -> Iterator[Row]:
    """The rows of a partition from the one that holds `start` on, page by page."""
    while count_max > 0:
        page = objects.rows(key, start, min(ROWS_PER_PAGE, count_max))
        yield from page
        count_max -= len(page)
        if not page:
            return
        start = page[-1].next_offset


# --- retention --------------------------------------------------------------------------------------------------


def retained_start(objects: Rows, key: Key, keeping: Keeping, now_ms: int) -> Offset | None:
    """Where a partition begins once all that is too old or too much has gone; None: where it does."""
    if not keeping.is_deleted or (keeping.retention_ms < 0 and keeping.retention_bytes < 0):
        return None
    head = objects.head(key)
    if head.start >= head.end:
        return None
    excess = head.size_bytes - keeping.retention_bytes
    start = head.start
    for row in rows_from(objects, key, start):
        is_too_much = keeping.retention_bytes >= 0 and excess >= row.length
        if not (is_too_much or _is_expired(row, keeping, now_ms)):
            break
        start = row.next_offset
        excess -= row.length
    return start if start > head.start else None


def _is_expired(row: Row, keeping: Keeping, now_ms: int) -> bool:
    return keeping.retention_ms >= 0 and 0 <= row.max_timestamp < now_ms - keeping.retention_ms


def delete_records_entry(objects: Rows, key: Key, offset: Offset) -> Entry | None:
    """DeleteRecords of everything before `offset` (-1: before the end); None: that is gone already.

    Raises OffsetOutOfRangeError for an offset beyond the end.
    """
    head = objects.head(key)
    if offset == HIGH_WATERMARK:
        offset = head.end
    if not 0 <= offset <= head.end:
        raise OffsetOutOfRangeError(
            f"Records cannot be deleted up to offset {offset}: this partition ends at {head.end}."
        )
    return start_entry({key: offset}) if offset > head.start else None


# --- compaction -------------------------------------------------------------------------------------------------


class Compaction(NamedTuple):
    """What a compaction of one partition would read now."""

    key: Key
    rows: Sequence[Row]
    """From the start on, up to the first that is protected still."""
    first_dirty: Offset
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    keeping: Keeping

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)

    @property
    def is_due(self) -> bool:
        return self.dirty_bytes > 0 and (self.is_overdue or self.dirty_ratio >= self.keeping.dirty_ratio_min)

    @property
    def size_bytes(self) -> int:
        return self.clean_bytes + self.dirty_bytes

    def fits(self, bytes_max: int) -> bool:
        """Whether all of it can be replaced at once."""
        return self.size_bytes <= bytes_max and len(self.rows) <= ROWS_PER_REPLACEMENT


def compaction_of(objects: Rows, key: Key, keeping: Keeping, now_ms: int) -> Compaction | None:
    """None: it is not to be compacted, or has nothing that may be."""
    if not keeping.is_compacted:
        return None
    rows = list(_old_enough(objects, key, keeping, now_ms))
    dirty = list(_dirty(rows))
    if not dirty:
        return None
    size = sum(row.length for row in rows)
    dirty_bytes = sum(row.length for row in dirty)
    is_overdue = 0 <= dirty[0].max_timestamp < now_ms - keeping.compaction_lag_ms_max
    return Compaction(key, rows, dirty[0].base_offset, size - dirty_bytes, dirty_bytes, is_overdue, keeping)


def _old_enough(objects: Rows, key: Key, keeping: Keeping, now_ms: int) -> Iterator[Row]:
    """Up to the first row that min.compaction.lag.ms still protects."""
    count_max = 2**31
    for row in rows_from(objects, key, objects.head(key).start, count_max):
        lag_ms = keeping.compaction_lag_ms_min
        if lag_ms > 0 and row.max_timestamp > now_ms - lag_ms:
            return
        yield row


def _dirty(rows: Iterable[Row]) -> Iterator[Row]:
    """From the first row on that is not compacted."""
    is_dirty = False
    for row in rows:
        is_dirty = is_dirty or not row.is_compacted
        if is_dirty:
            yield row


def most_urgent(candidates: Sequence[Compaction], bytes_max: int) -> list[Compaction]:
    """The compactions to do next. Small ones are done together, as far as what they read fits into `bytes_max`, for
    their results share an object; a large one alone."""
    due = [each for each in candidates if each.is_due]
    due.sort(key=lambda each: (not each.is_overdue, -each.dirty_ratio, each.key))
    together: list[Compaction] = []
    size = 0
    for each in due:
        if not each.fits(bytes_max):
            if not together:
                return [each]
        elif size + each.size_bytes <= bytes_max:
            together.append(each)
            size += each.size_bytes
    return together


def grouped_rows(rows: Iterable[Row], bytes_max: int) -> list[list[Row]]:
    """Neighbours whose bytes fit into one object together, even if nothing of them goes."""
    groups: list[list[Row]] = []
    size = 0
    for row in rows:
        if not groups or size + row.length > bytes_max or len(groups[-1]) == ROWS_PER_REPLACEMENT:
            groups.append([])
            size = 0
        groups[-1].append(row)
        size += row.length
    return groups


# --- what nobody needs any more -----------------------------------------------------------------------------------


def own_prefixes(incarnation: int) -> list[str]:
    """Where our own objects are listed: nobody else's names begin so."""
    return [f"{folder}/{incarnation:016x}-" for folder in FOLDERS.values()]


def is_in_flight(objects: References, object_id: ObjectId, present: Mapping[int, BrokerId]) -> bool:
    """Whether a commit that needs this object may still come. `present`: the broker of each registration in force."""
    broker = present.get(object_id.epoch)
    if object_id.kind is not ObjectKind.WRITTEN or broker is None:
        return False
    return object_id.number > objects.last_number(broker, object_id.epoch)


def orphan_of(
    objects: References,
    name: str,
    modified_ms: int,
    present: Mapping[int, BrokerId],
    unreferenced: Container[ObjectId],
    before_ms: int,
) -> ObjectId | None:
    """The object that a line of a listing names, if nobody can need it: nothing has ever referred to it or ever may,
    and it was written before `before_ms`. What somebody may be reading still is `unreferenced`, and goes its own
    way."""
    object_id = object_id_of(name)
    if object_id is None or object_id.incarnation != objects.incarnation or modified_ms > before_ms:
        return None
    if objects.references(object_id) or objects.is_tombstoned(object_id) or object_id in unreferenced:
        return None
    return None if is_in_flight(objects, object_id, present) else object_id


def deletable(tombstones: Mapping[ObjectId, int], before_ms: int) -> list[ObjectId]:
    """Objects whose tombstone has stood since `before_ms` or longer."""
    return sorted(object_id for object_id, since_ms in tombstones.items() if since_ms <= before_ms)


# --- producers ----------------------------------------------------------------------------------------------------


class LastSeen(Protocol):
    @property
    def timestamp_ms_last(self) -> int: ...


def silent_producers(
    keys: Iterable[Key], producers_of: Callable[[Key], Mapping[int, LastSeen]], before_ms: int
) -> dict[Key, list[int]]:
    """Idempotent producers that have written nothing since `before_ms`, by partition."""
    found = {
        key: sorted(each for each, seen in producers_of(key).items() if seen.timestamp_ms_last < before_ms)
        for key in keys
    }
    return {key: ids for key, ids in found.items() if ids}
