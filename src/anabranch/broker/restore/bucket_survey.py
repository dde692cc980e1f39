"""What a bucket holds of a cluster: the newest snapshot that can be read, everything that is newer, and what the groups
had committed. Only reads; says aloud what it had to pass over.

Nothing is deleted that one of the two newest snapshots needs. So a snapshot behind which one cannot be read is as good
as the newest. One behind which several cannot (`Snapshot.is_deep`) may name objects that are gone, and what was written
since may be left in merged objects alone.

A bucket may hold several lives of a cluster. One that was brought back as another is over as soon as that one has a
snapshot; of the others there should be one. If the later one has lost all of its snapshots, both are shown.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from anabranch.cluster.metadata.table import MetadataTable
from anabranch.cluster.objects.restore import Batch, Copied, Listed
from anabranch.coordination.groups.stored_offsets import StoredGroups, groups_of
from anabranch.errors import AnabranchError, CorruptDataError, ObjectGoneError
from anabranch.objects.layout.format import (
    TAIL_BYTES,
    Range,
    Span,
    check_range,
    index_in,
    read_footer,
    read_index,
    read_spans,
)
from anabranch.objects.layout.names import FOLDERS, Key, object_id_of
from anabranch.objects.layout.snapshots import (
    FENCES,
    METADATA,
    GroupsId,
    MetadataId,
    fence_id_of,
    groups_id_of,
    groups_prefix,
    metadata_id_of,
    metadata_value,
    unpack_snapshot,
)
from anabranch.objects.store import ObjectStore, StoredObject
from anabranch.record.batch import batch_spans, check_batch

GETS_MAX = 16
"""At a time: each is an object in memory."""
SNAPSHOTS_NEEDED = 2
"""So many of the newest ones, verified when they were written, have all that they need (`object_snapshots`)."""

Progress = Callable[[str, int, int], None]
"""What is done, how much of it, and how much there is to do."""


def no_progress(what: str, done: int, total: int) -> None:
    """Tell nobody."""


class Life(NamedTuple):
    """One incarnation with snapshots, the newest first."""

    incarnation: int
    snapshots: Sequence[MetadataId]
    stored_ms: int
    """When the newest was."""


class GroupsFound(NamedTuple):
    """The groups of one partition of their log."""

    partition: int
    partition_count: int
    time_ms: int
    stored: StoredGroups


class Snapshot(NamedTuple):
    """What the cluster had agreed on."""

    value: Mapping[str, Any]
    name: str | None
    """None: there is none that can be read, and the value is what a cluster begins with."""
    passed_over: Sequence[str]
    """Newer ones, each with what is wrong with it."""

    @property
    def is_deep(self) -> bool:
        """Objects that are needed with it may have been deleted. Where there is none nobody can say whether there ever
        was one."""
        return len(self.passed_over) >= SNAPSHOTS_NEEDED or self.name is None


@dataclass
class Contents:
    """What newer objects hold, by partition; of what cannot be read, how many offsets it may have been given."""

    batches: dict[Key, list[Batch]] = field(default_factory=dict)
    copied: dict[Key, list[Copied]] = field(default_factory=dict)
    """What carries its own offsets."""
    lost: dict[Key, int] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)
    has_unknown: bool = False
    """Of some object not even that is known."""


async def listed(store: ObjectStore, prefix: str) -> list[StoredObject]:
    return [each async for page in store.list(prefix) for each in page]


# --- lives ----------------------------------------------------------------------------------------------------------


async def lives(store: ObjectStore) -> list[Life]:
    """Those that are not over, the one with the newest snapshot first. A cluster that ended before its first snapshot
    is known by its objects alone."""
    found: dict[int, list[tuple[MetadataId, int]]] = {}
    for each in await listed(store, METADATA):
        metadata_id = metadata_id_of(each.name)
        if metadata_id is not None:
            found.setdefault(metadata_id.incarnation, []).append((metadata_id, each.modified_ms))
    if not found:
        return await _nameless_lives(store)
    fences = [fence_id_of(each.name) for each in await listed(store, FENCES)]
    over = {fence.incarnation for fence in fences if fence is not None and fence.successor in found}
    alive = [_life(incarnation, found[incarnation]) for incarnation in found.keys() - over]
    successors = {fence.successor for fence in fences if fence is not None} - found.keys()
    if (
        successors
    ):  # One that has stored records has lost its snapshots: it must not be passed over in silence.
        alive += [life for life in await _nameless_lives(store) if life.incarnation in successors]
    return sorted(alive, key=lambda life: life.stored_ms, reverse=True)


def _life(incarnation: int, snapshots: Iterable[tuple[MetadataId, int]]) -> Life:
    newest_first = sorted(snapshots, reverse=True)
    return Life(incarnation, [each for each, _ in newest_first], max(time_ms for _, time_ms in newest_first))


async def _nameless_lives(store: ObjectStore) -> list[Life]:
    newest: dict[int, int] = {}
    for each in await list_objects(store):
        incarnation = each.object_id.incarnation
        newest[incarnation] = max(newest.get(incarnation, 0), each.stored_ms)
    found = [Life(incarnation, (), stored_ms) for incarnation, stored_ms in newest.items()]
    return sorted(found, key=lambda life: life.stored_ms, reverse=True)


async def read_snapshot(store: ObjectStore, life: Life) -> Snapshot:
    """The newest that can be read. Without any, everything is newer than what a cluster begins with."""
    passed_over: list[str] = []
    for metadata_id in life.snapshots:
        try:
            value = unpack_snapshot(await store.get(metadata_id.name))
        except (CorruptDataError, ObjectGoneError) as error:
            passed_over.append(f"{metadata_id.name} is passed over: {error}")
        else:
            return Snapshot(value, metadata_id.name, passed_over)
    start = metadata_value(
        MetadataId(life.incarnation, 0), MetadataTable().snapshot(), time_ms=0, producer_silence_ms=2**62
    )
    return Snapshot(start, None, passed_over)


# --- newer objects --------------------------------------------------------------------------------------------------


async def list_objects(store: ObjectStore) -> list[Listed]:
    found = []
    for folder in FOLDERS.values():
        for each in await listed(store, f"{folder}/"):
            object_id = object_id_of(each.name)
            if object_id is not None:
                found.append(Listed(object_id, each.size, each.modified_ms))
    return found


async def read_newer(
    store: ObjectStore, newer: Sequence[Listed], progress: Progress = no_progress
) -> Contents:
    """Every batch of these objects, in their order, each read once and checked."""
    contents = Contents()
    done = 0
    async for source, data in _each(store, newer):
        _read_object(source, data, contents)
        done += 1
        progress("objects newer than the snapshot", done, len(newer))
    return contents


async def add_copied(
    store: ObjectStore,
    unknown: Sequence[Listed],
    contents: Contents,
    *,
    with_merged: bool,
    progress: Progress = no_progress,
) -> None:
    """What was copied from brokers, and `with_merged` everything else that carries its own offsets."""
    wanted: list[Listed] = []
    for start in range(0, len(unknown), GETS_MAX):
        some = unknown[start : start + GETS_MAX]
        for each, is_wanted in zip(
            some, await asyncio.gather(*(_is_copied(store, each, contents) for each in some)), strict=True
        ):
            if is_wanted or (with_merged and is_wanted is not None):
                wanted.append(each)
    done = 0
    async for source, data in _each(store, wanted):
        _read_copied(source, data, contents)
        done += 1
        progress("objects with offsets of their own", done, len(wanted))


async def _is_copied(store: ObjectStore, each: Listed, contents: Contents) -> bool | None:
    """None: that cannot be told."""
    try:
        return read_footer(await store.get_end(each.object_id.name, TAIL_BYTES)).is_copied
    except ObjectGoneError:
        return None  # Nobody needs it: what is copied stays until two snapshots know of it.
    except CorruptDataError as error:
        contents.damage.append(
            f"{each.object_id.name} cannot be read, and may hold records that are nowhere else: {error}"
        )
        contents.has_unknown = True
        return None


async def _each(store: ObjectStore, objects: Sequence[Listed]) -> AsyncIterator[tuple[Listed, bytes | None]]:
    """Whole objects in their order, some at a time; None: it is gone."""
    for start in range(0, len(objects), GETS_MAX):
        some = objects[start : start + GETS_MAX]
        found = await asyncio.gather(*(_get_or_gone(store, each) for each in some))
        for source, data in zip(some, found, strict=True):
            yield source, data


async def _get_or_gone(store: ObjectStore, each: Listed) -> bytes | None:
    try:
        return await store.get(each.object_id.name)
    except ObjectGoneError:
        return None


def _read_object(source: Listed, data: bytes | None, contents: Contents) -> None:
    name = source.object_id.name
    try:
        if data is None:
            raise CorruptDataError("it is gone")
        ranges = _index_of(data)[0]
    except CorruptDataError as error:
        contents.damage.append(f"{name} cannot be read: {error}")
        contents.has_unknown = True
        return
    for found in ranges:
        try:
            batches = list(_batches_of(data, found, source))
        except AnabranchError as error:
            contents.damage.append(f"{name} has lost up to {found.record_count} records: {error}")
            contents.lost[found.key] = contents.lost.get(found.key, 0) + found.record_count
        else:
            contents.batches.setdefault(found.key, []).extend(batches)


def _read_copied(source: Listed, data: bytes | None, contents: Contents) -> None:
    name = source.object_id.name
    try:
        if data is None:
            raise CorruptDataError("it is gone")
        ranges, spans = _index_of(data)
    except CorruptDataError as error:
        contents.damage.append(f"{name} cannot be read: {error}")
        contents.has_unknown = True
        return
    for number, found in enumerate(ranges):
        batches: list[Batch] = []
        try:
            batches += _batches_of(data, found, source)
        except AnabranchError as error:
            contents.damage.append(f"{name} has lost up to {found.record_count} records: {error}")
            contents.lost.setdefault(found.key, 0)
        if not spans and not batches:
            contents.has_unknown = True
            continue
        span = spans[number] if spans else _span_of(batches)
        if found.batch_count and not batches:
            span = Span(span.end, span.end)  # Another object may still have what this one has lost.
        part = Copied(source.object_id, source.stored_ms, span, batches)
        contents.copied.setdefault(found.key, []).append(part)


def _span_of(batches: Sequence[Batch]) -> Span:
    return Span(batches[0].header.base_offset, batches[-1].header.next_offset)


def _index_of(data: bytes) -> tuple[Sequence[Range], Sequence[Span]]:
    footer = read_footer(data)
    if footer.object_size != len(data):
        raise CorruptDataError(f"it has {len(data)} bytes instead of {footer.object_size}")
    index = index_in(data, footer)
    assert index is not None, "the whole object reaches back to its index"
    return read_index(index, footer), read_spans(index, footer)


def _batches_of(data: bytes, found: Range, source: Listed) -> Iterable[Batch]:
    part = memoryview(data)[found.position : found.end]
    check_range(part, found)
    for start, end in batch_spans(part):
        header = check_batch(part, start, end, fresh=False)
        yield Batch(source.object_id, found.position + start, header, source.stored_ms)


# --- groups ---------------------------------------------------------------------------------------------------------


async def read_groups(store: ObjectStore, incarnation: int) -> tuple[list[GroupsFound], list[str]]:
    """For each partition of their log the newest that can be read, and what was passed over."""
    by_partition: dict[int, list[GroupsId]] = {}
    for each in await listed(store, groups_prefix(incarnation)):
        groups_id = groups_id_of(each.name)
        if groups_id is not None:
            by_partition.setdefault(groups_id.partition, []).append(groups_id)
    found, skipped = [], []
    for partition, ids in sorted(by_partition.items()):
        readable = []
        for groups_id in ids:
            try:
                value = unpack_snapshot(await store.get(groups_id.name))
                rank = value["generation"], value["end"], groups_id.number
                readable.append((rank, _groups_found(partition, value)))
            except (CorruptDataError, ObjectGoneError, KeyError) as error:
                skipped.append(f"{groups_id.name} is passed over: {error}")
        if readable:
            found.append(max(readable, key=lambda pair: pair[0])[1])
    return found, skipped


def _groups_found(partition: int, value: Mapping[str, Any]) -> GroupsFound:
    return GroupsFound(partition, value["partitions"], value["time_ms"], groups_of(value))
