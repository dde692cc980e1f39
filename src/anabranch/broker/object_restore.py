"""Bringing a cluster back from its bucket: from what the bucket holds to what the new cluster begins with.

Everything is decided here, of values that were read before (`bucket_survey`) and that are written later
(`restored_folder`): the same bucket always gives the same cluster, but for its new names.

What comes back is another life of the cluster, under an incarnation of its own: brokers register anew, objects keep
their names and are named by the rows that name them now, and what a broker of the old life still stores is nobody's.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from anabranch.broker.bucket_survey import Contents, GroupsFound
from anabranch.broker.groups.stored_offsets import StoredGroups, StoredOffset
from anabranch.broker.restore_report import AppendedPartition, MovedOffset, RestoreReport
from anabranch.broker.topics import OFFSETS_OVERRIDES, OFFSETS_TOPIC
from anabranch.cluster.forms import OBJECT
from anabranch.cluster.metadata import MetadataTable
from anabranch.cluster.object_restore import Appended, Frontier, Listed, append_again
from anabranch.cluster.rows import INTERNAL_NAMES, MODE_CONFIG
from anabranch.record.object_names import Key
from anabranch.values import Offset

PRODUCER_IDS_SKIPPED = 2**32
"""More than any cluster can have given out since its last snapshot."""
OFFSETS_SKIPPED = 2**32
"""Where not even the index of a newer object can be read: more offsets than one object can have been given."""


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
    newer: Contents
    groups: Sequence[GroupsFound]


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
    stored, rows = _stored_topics(survey.snapshot), survey.snapshot["table"]["topics"]
    _note_partly(rows, stored, report)
    _note_emptied(_with_stored(rows, stored), report)
    fresh = _fresh_table(survey, stored, report, new_id)
    _drop_missing(fresh, survey.listed, report)
    fresh.objects.begin_life(incarnation)
    appended = _append_newer(fresh, survey, report)
    groups = [_placed(found, fresh, appended, report) for found in survey.groups]
    silence_ms = survey.snapshot["producer_silence_ms"]
    return Rebuilt(fresh.snapshot(), Offset(survey.snapshot["end"]), groups, silence_ms)


# --- topics ---------------------------------------------------------------------------------------------------------


def _stored_topics(snapshot: Mapping[str, Any]) -> set[UUID]:
    """Those of which the store has anything."""
    objects = table_of(snapshot).objects
    return {key[0] for key in objects.keys() if objects.row_count(key)}  # noqa: SIM118 - a table, and no dict


def _fresh_table(
    survey: Survey, stored: set[UUID], report: RestoreReport, new_id: Callable[[], UUID]
) -> MetadataTable:
    value = dict(survey.snapshot["table"])
    topics = [_fresh_topic(row, new_id) for row in _with_stored(value["topics"], stored)]
    _make_offsets_topic(topics, survey.groups, new_id)
    _make_room(topics, {*survey.newer.batches, *survey.newer.lost}, report)
    seen = max(
        (batch.header.producer_id for batches in survey.newer.batches.values() for batch in batches),
        default=0,
    )
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


def _drop_missing(table: MetadataTable, listed: Iterable[Listed], report: RestoreReport) -> None:
    """Rows whose objects are gone name records that are lost."""
    missing = set(table.objects.referenced()) - {each.object_id for each in listed}
    if not missing:
        return
    for key in list(table.objects.keys()):
        lost = table.objects.drop_rows(key, missing)
        if lost:
            report.losses.append(
                f"{sum(row.next_offset - row.base_offset for row in lost)} records of "
                f"{table.topics_by_id[key[0]].name}-{key[1]}: their objects are gone from the store, the first is "
                f"{lost[0].object_id.name}"
            )


# --- records --------------------------------------------------------------------------------------------------------


def _append_newer(table: MetadataTable, survey: Survey, report: RestoreReport) -> Mapping[Key, Appended]:
    report.losses += survey.newer.damage
    objects, contents = table.objects, survey.newer
    keys = {*contents.batches, *contents.lost, *(objects.keys() if contents.has_unknown else ())}
    result: dict[Key, Appended] = {}
    for key in sorted(keys):
        more = contents.lost.get(key, 0) + (OFFSETS_SKIPPED if contents.has_unknown else 0)
        appended = result[key] = append_again(
            objects.head(key).end,
            objects.begin_partition(key),
            contents.batches.get(key, ()),
            silence_ms=survey.snapshot["producer_silence_ms"],
            forgotten_last=objects.forgotten_last,
            more_offsets=more,
        )
        objects.append_rows(key, appended.rows, appended.end)
        report.appended.append(_line(table, key, appended))
    return result


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
    """The same groups, none of their offsets beyond what there was."""
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
    if before <= limit:
        return each
    report.offsets_moved.append(MovedOffset(each.group_id, each.topic, each.partition, before, limit))
    return each._replace(committed=each.committed._replace(offset=limit, leader_epoch=-1))


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
