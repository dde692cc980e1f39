"""Whether the objects that a snapshot names still have what it says: each is in the listing, and large enough for the
rows that name it; and its records hold, as far as they are read.

Objects that are too small are always read, to see what is left of them. Of the others so many bytes as `bytes_max`
says, the last stored first; of the rest it is said that they were not read. What does not hold is fetched once more,
for bytes are damaged on their way, too.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.broker.restore.bucket_survey import GETS_MAX, Progress, no_progress
from anabranch.cluster.objects.restore import Listed
from anabranch.cluster.objects.table import ObjectTable
from anabranch.errors import ObjectGoneError
from anabranch.objects.layout.format import FOOTER_BYTES, RANGE_BYTES
from anabranch.objects.layout.names import Key, ObjectId, Row
from anabranch.objects.layout.row_check import NamedRow, ObjectCheck, check_object
from anabranch.objects.store import ObjectStore
from anabranch.values import Offset

GET_BYTES_MAX = 128 * 2**20
"""At a time, if it is more than one object."""
VERIFIED_BYTES_MAX = 8 * 2**30
"""What is read unless everything is asked for: more would take long, and most stores charge for it."""

Named = Mapping[ObjectId, Sequence[NamedRow]]


@dataclass
class Checked:
    """Of the objects that a snapshot names."""

    kept: dict[Key, dict[Row, Sequence[Row]]] = field(default_factory=dict)
    """Of the rows that are not whole, what is left of each."""
    gone: set[ObjectId] = field(default_factory=set)
    damage: dict[ObjectId, str] = field(default_factory=dict)
    """What is wrong with each that is not whole, whether or not any record is lost by that."""
    objects: int = 0
    bytes: int = 0
    read_objects: int = 0
    read_bytes: int = 0

    @property
    def unread_objects(self) -> int:
        return self.objects - self.read_objects

    @property
    def unread_bytes(self) -> int:
        return self.bytes - self.read_bytes

    def note(self, rows: Mapping[NamedRow, Sequence[Row]]) -> None:
        for (key, row), kept in rows.items():
            self.kept.setdefault(key, {})[row] = kept

    def note_gone(self, object_id: ObjectId, named: Iterable[NamedRow]) -> None:
        self.gone.add(object_id)
        self.note(dict.fromkeys(named, ()))


async def check_named(
    store: ObjectStore,
    table: ObjectTable,
    listed: Iterable[Listed],
    *,
    bytes_max: int | None = VERIFIED_BYTES_MAX,
    progress: Progress = no_progress,
) -> Checked:
    """`bytes_max` None: read them all. Raises StoreError, but for objects that are gone."""
    named = _named(table)
    there = {each.object_id: each for each in listed if each.object_id in named}
    checked = Checked(objects=len(there), bytes=sum(each.size for each in there.values()))
    for object_id in named.keys() - there.keys():
        checked.note_gone(object_id, named[object_id])
    chosen = _chosen(named, there.values(), bytes_max)
    for some in _groups(chosen):
        for each, found in zip(
            some, await asyncio.gather(*(_check(store, each, named) for each in some)), strict=True
        ):
            _note(checked, each, found, named)
            progress("objects that the snapshot names", checked.read_objects, len(chosen))
    return checked


def _named(table: ObjectTable) -> Named:
    named: dict[ObjectId, list[NamedRow]] = {}
    for key in table.keys():  # noqa: SIM118 - a table, and no dict
        for row in table.rows(key, Offset(0), table.row_count(key)):
            named.setdefault(row.object_id, []).append(NamedRow(key, row))
    return named


def _chosen(named: Named, there: Iterable[Listed], bytes_max: int | None) -> list[Listed]:
    """Which to read, those that must be first."""
    newest_first = sorted(there, key=lambda each: (each.stored_ms, each.object_id), reverse=True)
    chosen = [each for each in newest_first if _is_short(each, named)]
    short = {each.object_id for each in chosen}
    left = bytes_max
    for each in newest_first:
        if each.object_id in short:
            continue
        if left is not None:
            left -= each.size
            if left < 0:
                break
        chosen.append(each)
    return chosen


def _is_short(each: Listed, named: Named) -> bool:
    """Whether it cannot be whole: behind its records there is an index of them, and a footer."""
    end = max(row.position + row.length for _, row in named[each.object_id])
    return each.size < end + RANGE_BYTES + FOOTER_BYTES


def _groups(chosen: Sequence[Listed]) -> Iterator[list[Listed]]:
    group: list[Listed] = []
    size = 0
    for each in chosen:
        if group and (len(group) == GETS_MAX or size + each.size > GET_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(each)
        size += each.size
    if group:
        yield group


async def _check(store: ObjectStore, each: Listed, named: Named) -> ObjectCheck | None:
    """None: it is gone."""
    try:
        found = check_object(await store.get(each.object_id.name), named[each.object_id])
        if found.damage is not None:
            found = check_object(await store.get(each.object_id.name), named[each.object_id])
    except ObjectGoneError:
        return None
    return found


def _note(checked: Checked, each: Listed, found: ObjectCheck | None, named: Named) -> None:
    checked.read_objects += 1
    checked.read_bytes += each.size
    if found is None:
        checked.note_gone(each.object_id, named[each.object_id])
        return
    checked.note(found.kept)
    if found.damage is not None:
        checked.damage[each.object_id] = found.damage
