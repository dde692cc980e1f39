"""What is to be done for the objects in a store: decisions over the agreed table, the topics' settings and the time.

Nothing here acts. `broker.object.upkeep` carries it out, as entries that every broker applies: what was decided may be
overtaken by then, and the table takes only what still holds. What is merged and compacted is decided in
`objects.layout.merge_plan` and `objects.layout.compaction_plan`, which the jobs on Spark share.

A row is to object mode what a segment is to a log: it goes as a whole, and only from the old end. An object goes when
no row names it, in three steps: a tombstone (from then on nothing may name it), its deletion once whoever read it has
had `object.collect.ms` to end, and the removal of the tombstone. What a crash has left in the store without a row is
found by a listing: only names of this incarnation, older than `object.collect.ms`, of a number that no commit can need
any more. So objects of another cluster in the same place, and what is still on its way, are left alone.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from anabranch.cluster.objects.entries import Key
from anabranch.objects.layout.names import FOLDERS, ObjectId, ObjectKind, Row, object_id_of
from anabranch.objects.layout.plans import Keeping as Keeping
from anabranch.objects.layout.plans import Rows, rows_from
from anabranch.values import BrokerId, Offset


class References(Protocol):
    """What is asked of it about objects."""

    @property
    def incarnation(self) -> int | None: ...

    @property
    def lives(self) -> Sequence[int]: ...

    def references(self, object_id: ObjectId) -> int: ...

    def is_tombstoned(self, object_id: ObjectId) -> bool: ...

    def last_number(self, broker: BrokerId, epoch: int) -> int: ...


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


# --- what nobody needs any more -----------------------------------------------------------------------------------


def own_prefixes(incarnation: int) -> list[str]:
    """Where our own objects are listed: nobody else's names begin so."""
    return [f"{folder}/{incarnation:016x}-" for folder in FOLDERS.values()]


def is_in_flight(objects: References, object_id: ObjectId, present: Mapping[int, BrokerId]) -> bool:
    """Whether a commit that needs this object may still come. `present`: the broker of each registration in force."""
    broker = present.get(object_id.epoch)
    if (
        object_id.kind is not ObjectKind.WRITTEN
        or broker is None
        or object_id.incarnation != objects.incarnation
    ):
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
    if object_id is None or object_id.incarnation not in objects.lives or modified_ms > before_ms:
        return None
    if objects.references(object_id) or objects.is_tombstoned(object_id) or object_id in unreferenced:
        return None
    return None if is_in_flight(objects, object_id, present) else object_id


def deletable(tombstones: Mapping[ObjectId, int], before_ms: int) -> list[ObjectId]:
    """Objects whose tombstone has stood since `before_ms` or longer."""
    return sorted(object_id for object_id, since_ms in tombstones.items() if since_ms <= before_ms)


# --- producers ----------------------------------------------------------------------------------------------------


NEVER_MS = -(2**63)


class Crowd(NamedTuple):
    """From how many producers in one partition on some are forgotten, if they were silent since `idle_before_ms`."""

    count_max: int
    idle_before_ms: int


class LastSeen(Protocol):
    @property
    def timestamp_ms_last(self) -> int: ...


def silent_producers(
    keys: Iterable[Key], producers_of: Callable[[Key], Mapping[int, LastSeen]], before_ms: int, crowd: Crowd
) -> dict[Key, list[int]]:
    """Idempotent producers to forget, by partition: those that have written nothing since `before_ms`, and where there
    are many, the ones that were silent the longest."""
    found = {
        key: sorted(
            each
            for each, seen in known.items()
            if seen.timestamp_ms_last < max(before_ms, _crowded_before(known.values(), crowd))
        )
        for key in keys
        if (known := producers_of(key))
    }
    return {key: ids for key, ids in found.items() if ids}


def _crowded_before(known: Collection[LastSeen], crowd: Crowd) -> int:
    """Before when a producer of a crowded partition has to have written last to be forgotten."""
    too_many = len(known) - crowd.count_max * 3 // 4
    if too_many <= 0:
        return NEVER_MS
    times = sorted(seen.timestamp_ms_last for seen in known)
    return min(crowd.idle_before_ms, times[too_many - 1] + 1)
