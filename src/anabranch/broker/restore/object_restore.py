"""Bringing a cluster back from its bucket: from what the bucket holds to what the new cluster begins with.

Everything is decided here, of values that were read before (`bucket_survey`) and that are written later
(`restored_folder`): the same bucket always gives the same cluster, but for its new names.

What comes back is another life of the cluster, under an incarnation of its own: brokers register anew, objects keep
their names and are named by the rows that name them now, and what a broker of the old life still stores is nobody's.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

from anabranch.broker.restore.bucket_survey import Contents, GroupsFound
from anabranch.broker.restore.object_check import Checked
from anabranch.broker.restore.restore_report import (
    AppendedPartition,
    CopiedPartition,
    MovedOffset,
    RestoreReport,
)
from anabranch.broker.topics.topics import OFFSETS_OVERRIDES, OFFSETS_TOPIC
from anabranch.cluster.metadata.residence import OBJECT
from anabranch.cluster.metadata.rows import INTERNAL_NAMES, MODE_CONFIG
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.cluster.objects.restore import (
    Appended,
    Batch,
    Frontier,
    Listed,
    append_again,
    place_copied,
)
from anabranch.coordination.groups.stored_offsets import StoredGroups, StoredOffset
from anabranch.objects.layout.format import Span
from anabranch.objects.layout.names import Key, Row
from anabranch.objects.layout.row_check import lost_parts
from anabranch.values import Offset

PRODUCER_IDS_SKIPPED = 2**32
"""More than any cluster can have given out since its last snapshot."""
SPANS_SHOWN = 5
OFFSETS_SKIPPED = 2**32
"""Where not even the index of a newer object can be read, or objects may have been deleted of which nobody knows: more
offsets than they can have been given."""


class Rebuilt(NamedTuple):
    table: dict[str, Any]
    """The agreed table as JSON, objects and all."""
    end: Offset
    """Of the metadata log that goes on behind it."""
    groups: Sequence[GroupsFound]
    producer_silence_ms: int


@dataclass(frozen=True)
class Survey:
    """What a bucket holds."""

    snapshot: Mapping[str, Any]
    listed: Sequence[Listed]
    checked: Checked
    newer: Contents
    groups: Sequence[GroupsFound]
    is_deep: bool = False
    """The snapshot is so old that objects may have been deleted which it needs (`bucket_survey.Snapshot`)."""

    @property
    def keys(self) -> set[Key]:
        """The partitions of which there is anything that the snapshot does not know."""
        return {*self.newer.batches, *self.newer.lost, *self.newer.copied}


def table_of(snapshot: Mapping[str, Any]) -> MetadataTable:
    table = MetadataTable()
    table.restore(snapshot["table"])
    return table


def frontier_of(snapshot: Mapping[str, Any], table: MetadataTable) -> Frontier:
    last_numbers = {
        row.epoch: table.objects.last_number(row.broker_id, row.epoch) for row in table.brokers.values()
    }
    return Frontier(int(snapshot["incarnation"], 16), snapshot["end"], last_numbers)


def rebuild(survey: Survey, report: RestoreReport, incarnation: int, new_id: Callable[[], UUID]) -> Rebuilt:
    """The new cluster's table, groups and report, which says what there is to know."""
    stored, rows = _stored_topics(survey), survey.snapshot["table"]["topics"]
    _note_partly(rows, stored, report)
    _note_emptied(_with_stored(rows, stored), report)
    fresh = _fresh_table(survey, stored, report, new_id)
    report.losses += survey.newer.damage
    _note_checked(survey.checked, report)
    missing = _cut_lost(fresh, survey.checked)
    fresh.objects.begin_life(incarnation)
    holed = _place_copied(fresh, survey, missing, report)
    appended = _append_newer(fresh, survey, holed, report)
    groups = [_placed(found, fresh, appended, report) for found in survey.groups]
    silence_ms = survey.snapshot["producer_silence_ms"]
    return Rebuilt(fresh.snapshot(), Offset(survey.snapshot["end"] + 1), groups, silence_ms)


# --- topics ---------------------------------------------------------------------------------------------------------


def _stored_topics(survey: Survey) -> set[UUID]:
    """Those of which the store has anything, whether or not the snapshot knows it."""
    objects = table_of(survey.snapshot).objects
    known = {key[0] for key in objects.keys() if objects.row_count(key)}  # noqa: SIM118 - a table, and no dict
    return known | {key[0] for key in survey.keys}


def _fresh_table(
    survey: Survey, stored: set[UUID], report: RestoreReport, new_id: Callable[[], UUID]
) -> MetadataTable:
    value = dict(survey.snapshot["table"])
    topics = [_fresh_topic(row, new_id) for row in _with_stored(value["topics"], stored)]
    _make_offsets_topic(topics, survey.groups, new_id)
    _make_room(topics, survey.keys, report)
    seen = max((batch.header.producer_id for batch in _all_batches(survey.newer)), default=0)
    value.update(
        brokers=[],
        founder=report.broker_id,
        topics=topics,
        producer_id_next=max(value["producer_id_next"], seen + 1) + PRODUCER_IDS_SKIPPED,
    )
    fresh = MetadataTable()
    fresh.restore(value)
    report.topics = [topic.name for topic in fresh.topics.values() if topic.mode == OBJECT]
    return fresh


def _all_batches(contents: Contents) -> Iterable[Batch]:
    yield from chain.from_iterable(contents.batches.values())
    for copied in contents.copied.values():
        yield from chain.from_iterable(each.batches for each in copied)


def _is_object(row: Mapping[str, Any]) -> bool:
    return bool(row["overrides"].get(MODE_CONFIG) == OBJECT)


def _with_stored(rows: Sequence[Mapping[str, Any]], stored: set[UUID]) -> list[Mapping[str, Any]]:
    """Topics that had left the store, or were about to go there, come back with what the store has of them."""
    return [
        {**row, "overrides": {**row["overrides"], MODE_CONFIG: OBJECT}}
        if UUID(hex=row["id"]) in stored
        else row
        for row in rows
    ]


def _note_partly(rows: Sequence[Mapping[str, Any]], stored: set[UUID], report: RestoreReport) -> None:
    for row in rows:
        if UUID(hex=row["id"]) in stored and (row.get("forms") or not _is_object(row)):
            report.partly.append(row["name"])


def _fresh_topic(row: Mapping[str, Any], new_id: Callable[[], UUID]) -> dict[str, Any]:
    """Kept by nobody yet. One that comes back empty is another topic of that name: nothing that clients remember of
    the old one holds."""
    fresh = {name: value for name, value in row.items() if name not in ("places", "pinned", "forms")}
    return fresh if _is_object(row) else {**fresh, "id": new_id().hex}


def _make_room(topics: list[dict[str, Any]], keys: Iterable[Key], report: RestoreReport) -> None:
    """Topics and partitions that were made after the snapshot are known by their records alone."""
    by_id = {UUID(hex=row["id"]): row for row in topics}
    names = {row["name"] for row in topics}
    for topic_id, partition in sorted(keys):
        row = by_id.get(topic_id)
        if row is None:
            name = next(
                name
                for name in (f"restored-{topic_id.hex[:8]}", f"restored-{topic_id.hex}")
                if name not in names
            )
            row = by_id[topic_id] = {
                "type": "topic",
                "name": name,
                "id": topic_id.hex,
                "partitions": 1,
                "overrides": {MODE_CONFIG: OBJECT},
            }
            topics.append(row)
            names.add(name)
            report.named_anew.append(name)
        row["partitions"] = max(row["partitions"], partition + 1)


def _make_offsets_topic(
    topics: list[dict[str, Any]], groups: Sequence[GroupsFound], new_id: Callable[[], UUID]
) -> None:
    """Where the groups lie, as many partitions as they were spread over."""
    if groups and not any(row["name"] == OFFSETS_TOPIC for row in topics):
        row = {"type": "topic", "name": OFFSETS_TOPIC, "id": new_id().hex, "overrides": OFFSETS_OVERRIDES}
        topics.append({**row, "partitions": groups[0].partition_count})


def _note_emptied(rows: Iterable[Mapping[str, Any]], report: RestoreReport) -> None:
    for row in rows:
        if not _is_object(row) and row["name"] not in INTERNAL_NAMES:
            mode = row["overrides"].get(MODE_CONFIG)
            report.emptied.append(f"{row['name']} (mode {mode})" if mode else row["name"])


def _note_checked(checked: Checked, report: RestoreReport) -> None:
    report.objects_checked, report.bytes_checked = checked.objects, checked.bytes
    report.objects_verified, report.bytes_verified = checked.read_objects, checked.read_bytes
    report.damaged += (f"{object_id.name}: {why}" for object_id, why in sorted(checked.damage.items()))


def _cut_lost(table: MetadataTable, checked: Checked) -> dict[Key, list[Row]]:
    """Name no bytes any more that are gone or damaged; by partition, the rows of what they held."""
    missing: dict[Key, list[Row]] = {}
    for key, kept in checked.kept.items():
        table.objects.cut_rows(key, kept)
        lost = [part for row in sorted(kept) for part in lost_parts(row, kept[row])]
        if lost:
            missing[key] = lost
    return missing


# --- records --------------------------------------------------------------------------------------------------------


def _place_copied(
    table: MetadataTable, survey: Survey, missing: Mapping[Key, Sequence[Row]], report: RestoreReport
) -> set[Key]:
    """Give what carries its own offsets its place, and say what is in no object any more. The partitions of which not
    everything is known to be there."""
    holed = set(missing) | set(survey.newer.lost)
    for key in sorted({*missing, *survey.newer.copied}):
        objects, copied = table.objects, survey.newer.copied.get(key, ())
        producers, end = objects.begin_partition(key), objects.head(key).end
        placed = place_copied(_taken(table, key, missing, is_deep=survey.is_deep), copied, end)
        objects.insert_rows(key, placed.rows, placed.end)
        for batch in placed.batches:
            if batch.header.producer_id >= 0 and batch.header.base_offset >= end:
                producers.note(batch.header, batch.header.base_offset, batch.stored_ms)
        if placed.rows:
            report.copied.append(_copied_line(table, key, placed.rows))
        copied_ms = max((each.stored_ms for each in copied), default=0)
        newer_count = sum(  # Offsets before a copy were given to what was stored before it.
            batch.offset_count for batch in survey.newer.batches.get(key, ()) if batch.stored_ms <= copied_ms
        )
        lost = _lost_spans(placed.holes, missing.get(key, ()), end, newer_count)
        if lost:
            holed.add(key)
            report.losses.append(_lost_line(table, key, lost, missing.get(key, ()), survey.checked))
    return holed | set(survey.newer.copied)


def _taken(
    table: MetadataTable, key: Key, missing: Mapping[Key, Sequence[Row]], *, is_deep: bool
) -> list[Span]:
    """Offsets that are accounted for by the snapshot."""
    if not is_deep and key not in missing:
        return [Span(Offset(0), table.objects.head(key).end)]
    return [Span(row.base_offset, row.next_offset) for row in _rows(table, key)]


def _rows(table: MetadataTable, key: Key) -> Sequence[Row]:
    return table.objects.rows(key, Offset(0), table.objects.row_count(key))


def _lost_spans(
    holes: Sequence[Span], missing: Sequence[Row], end: Offset, newer_count: int
) -> list[tuple[int, int]]:
    """Of the holes those that had records: below `end`, where the snapshot ended, what rows were missing for; beyond it
    what cannot be the offsets of newer records that may have been there, `newer_count` of them, which have lost
    theirs."""
    found = [
        (int(max(hole.start, row.base_offset)), int(min(hole.end, row.next_offset)))
        for hole in holes
        for row in missing
        if max(hole.start, row.base_offset) < min(hole.end, row.next_offset)
    ]
    beyond = [(int(max(hole.start, end)), int(hole.end)) for hole in holes if hole.end > end]
    if sum(last - first for first, last in beyond) > newer_count:
        found += beyond
    return _joined(sorted(found))


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same, neighbours as one."""
    joined: list[tuple[int, int]] = []
    for first, last in spans:
        if joined and joined[-1][1] == first:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return joined


def _lost_line(
    table: MetadataTable, key: Key, lost: Sequence[tuple[int, int]], missing: Sequence[Row], checked: Checked
) -> str:
    count = sum(last - first for first, last in lost)
    where = ", ".join(f"{first} to {last - 1}" for first, last in lost[:SPANS_SHOWN])
    more = f" and {len(lost) - SPANS_SHOWN} more" if len(lost) > SPANS_SHOWN else ""
    first = f", the first is {missing[0].object_id.name}" if missing else ""
    name = f"{table.topics_by_id[key[0]].name}-{key[1]}"
    state = _state(missing, checked)
    return f"{count} records of {name} (offsets {where}{more}): their objects are {state}{first}"


def _state(missing: Iterable[Row], checked: Checked) -> str:
    is_gone = {row.object_id in checked.gone for row in missing}
    if is_gone == {False}:
        return "damaged"
    return "gone from the store" if False not in is_gone else "gone from the store or damaged"


def _copied_line(table: MetadataTable, key: Key, rows: Sequence[Row]) -> CopiedPartition:
    topic = table.topics_by_id[key[0]].name
    return CopiedPartition(topic, key[1], rows[0].base_offset, rows[-1].next_offset)


def _append_newer(
    table: MetadataTable, survey: Survey, holed: Container[Key], report: RestoreReport
) -> Mapping[Key, Appended]:
    objects, contents = table.objects, survey.newer
    is_unknown = contents.has_unknown or survey.is_deep
    keys = {*contents.batches, *contents.lost, *(_keys_in_store(table) if is_unknown else ())}
    result: dict[Key, Appended] = {}
    for key in sorted(keys):
        more = contents.lost.get(key, 0) + (OFFSETS_SKIPPED if is_unknown else 0)
        batches, repeats = _not_copied(contents, key)
        appended = append_again(
            objects.head(key).end,
            objects.begin_partition(key),
            batches,
            silence_ms=survey.snapshot["producer_silence_ms"],
            forgotten_last=objects.forgotten_last,
            more_offsets=more + repeats,
            is_whole=not (is_unknown or key in holed),
        )
        result[key] = appended = appended._replace(repeats=appended.repeats + repeats)
        objects.append_rows(key, appended.rows, appended.end)
        report.appended.append(_line(table, key, appended))
    return result


def _keys_in_store(table: MetadataTable) -> Iterable[Key]:
    """Also of partitions that the snapshot had nothing of: what cannot be read may have been their first records."""
    yield from table.objects.keys()
    for topic in table.topics.values():
        if topic.mode == OBJECT:
            yield from ((topic.topic_id, partition) for partition in range(topic.partition_count))


def _not_copied(contents: Contents, key: Key) -> tuple[Sequence[Batch], int]:
    """The newer batches of a partition, without those that were found in an object which carries their offsets, and how
    many records those have. Only an idempotent producer's batch can be told from another with the same bytes."""
    batches = contents.batches.get(key, ())
    copied = contents.copied.get(key, ())
    known = {_identity(batch) for each in copied for batch in each.batches if batch.header.producer_id >= 0}
    if not known:
        return batches, 0
    rest = [batch for batch in batches if batch.header.producer_id < 0 or _identity(batch) not in known]
    return rest, sum(each.offset_count for each in batches) - sum(each.offset_count for each in rest)


def _identity(batch: Batch) -> tuple[int, ...]:
    header = batch.header
    return header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence


def _line(table: MetadataTable, key: Key, appended: Appended) -> AppendedPartition:
    return AppendedPartition(
        table.topics_by_id[key[0]].name,
        key[1],
        appended.gap_start,
        appended.start,
        appended.end,
        appended.repeats,
        appended.refused,
    )


# --- groups ---------------------------------------------------------------------------------------------------------


def _placed(
    found: GroupsFound, table: MetadataTable, appended: Mapping[Key, Appended], report: RestoreReport
) -> GroupsFound:
    """The same groups, none of their offsets beyond what there was. They know no leader's generation any more: who
    asked the new cluster about one of the old would be told that its log was cut there, and begin anew."""
    report.groups += len(found.stored.groups)
    known = report.offsets_time_ms
    report.offsets_time_ms = found.time_ms if known is None else min(known, found.time_ms)
    offsets: list[StoredOffset] = []
    for each in found.stored.offsets:
        limit = _limit(table, each, appended)
        if limit is None:
            report.offsets_dropped += 1
            continue
        offsets.append(_within(each, limit, report))
    report.offsets += len(offsets)
    return found._replace(stored=StoredGroups(found.stored.groups, offsets))


def _within(each: StoredOffset, limit: Offset, report: RestoreReport) -> StoredOffset:
    before = each.committed.offset
    if before > limit:
        report.offsets_moved.append(MovedOffset(each.group_id, each.topic, each.partition, before, limit))
    offset = min(before, limit)
    return each._replace(committed=each.committed._replace(offset=offset, leader_epoch=-1))


def _limit(table: MetadataTable, each: StoredOffset, appended: Mapping[Key, Appended]) -> Offset | None:
    """The greatest offset that a group may have come to: behind it all that is newer than the snapshot comes again,
    and none of it is passed over. None: there is no such partition."""
    topic = table.topics.get(each.topic)
    if topic is None or each.partition >= topic.partition_count:
        return None
    if topic.mode != OBJECT:
        return Offset(0)
    key = topic.topic_id, each.partition
    return appended[key].start if key in appended else table.objects.head(key).end
