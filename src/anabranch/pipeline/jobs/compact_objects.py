"""One task of a compaction in the object store: what stays of one partition takes the place of its rows.

It decides as the broker's own upkeep does (`objects.layout.compaction_plan`) and goes from the partition's start on,
object by object. Where one cannot be put in place because rows have changed meanwhile, what is done until then holds,
and it begins again with the rows as they are, a few times. Memory is bounded: the map of keys, and a few large
objects.
"""

import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

from anabranch.errors import ObjectGoneError
from anabranch.objects.layout.compaction_plan import Compaction, compaction_of, grouped_rows
from anabranch.objects.layout.merge import compacted, map_row
from anabranch.objects.layout.names import Key, Row
from anabranch.objects.layout.plans import Keeping
from anabranch.pipeline.client.client import Client
from anabranch.pipeline.client.connection import Connection
from anabranch.pipeline.jobs.compact_partition import Compacted
from anabranch.pipeline.jobs.object_task import Rewritten, parts_of, replace_rows
from anabranch.pipeline.source.coordinates import Coordinates, coordinates, patient_link
from anabranch.pipeline.source.object_store import JobStore
from anabranch.record.compaction.offset_map import OffsetMap
from anabranch.record.compaction.run import CompactionRun
from anabranch.values import Offset, TopicPartition

TRIES = 5
IN_STORE = "objects"
"""In the place of an offer's name: something was written."""


@dataclass(frozen=True)
class CompactObjectsTask:
    bootstrap: str
    place: TopicPartition
    topic_id: UUID
    credentials_file: str | None
    delete_retention_ms: int
    compaction_lag_ms_min: int
    keys_max: int
    batch_bytes_max: int


class _Head(NamedTuple):
    start: Offset
    end: Offset
    size_bytes: int


class _ReadRows:
    """The rows of one partition, as they were read."""

    def __init__(self, found: Coordinates) -> None:
        self._found = found

    def head(self, key: Key) -> _Head:
        return _Head(self._found.start, self._found.end, sum(row.length for row in self._found.rows))

    def rows(self, key: Key, start: Offset, count_max: int) -> list[Row]:
        rows = self._found.rows
        first = bisect_right(rows, start, key=lambda row: row.next_offset)
        return list(rows[first : first + count_max])


def compact_objects(task: CompactObjectsTask, now_ms: int | None = None) -> Compacted:
    """On an executor: compact one partition."""
    started_ms = int(time.time() * 1000) if now_ms is None else now_ms
    with Client(task.bootstrap) as client:
        found = coordinates(client, task.place, task.topic_id)
        for _ in range(TRIES):
            done, before = _tried(task, client, found, started_ms), found
            if done.taken or not done.offer_id:
                break
            found = coordinates(client, task.place, task.topic_id)
            if found.rows == before.rows:
                break  # It was refused for another reason.
    return done


def _tried(task: CompactObjectsTask, client: Client, found: Coordinates, now_ms: int) -> Compacted:
    key = task.topic_id, task.place.partition
    compaction = compaction_of(_ReadRows(found), key, _keeping(task), now_ms)
    if compaction is None:
        reason = "there is nothing that was not compacted before"
        return Compacted(task.place.partition, reason=reason)
    with JobStore(found.store_url, task.credentials_file) as store:
        try:
            return _compacted(task, compaction, found.merge_bytes, store, client, now_ms)
        except ObjectGoneError as error:
            return Compacted(task.place.partition, offer_id=IN_STORE, reason=str(error))


def _keeping(task: CompactObjectsTask) -> Keeping:
    return Keeping(
        is_deleted=False,
        retention_ms=-1,
        retention_bytes=-1,
        is_compacted=True,
        delete_retention_ms=task.delete_retention_ms,
        compaction_lag_ms_min=task.compaction_lag_ms_min,
    )


def _compacted(
    task: CompactObjectsTask,
    compaction: Compaction,
    merge_bytes: int,
    store: JobStore,
    client: Client,
    now_ms: int,
) -> Compacted:
    run = _run(task, compaction, merge_bytes, store, now_ms)
    rows = [row for row in compaction.rows if row.base_offset < run.upto]
    link = patient_link(client, task.place)
    done = Compacted(task.place.partition, offer_id=IN_STORE, taken=True)
    for group in grouped_rows(rows, merge_bytes):
        done = _group_done(done, compaction.key, group, run, store, link)
        if not done.taken:
            break
    return done


def _run(
    task: CompactObjectsTask, compaction: Compaction, merge_bytes: int, store: JobStore, now_ms: int
) -> CompactionRun:
    latest, upto = OffsetMap(task.keys_max), compaction.first_dirty
    dirty = [row for row in compaction.rows if row.next_offset > compaction.first_dirty]
    for group in grouped_rows(dirty, merge_bytes):
        for part in parts_of(store, group):
            upto = map_row(part, latest, compaction.first_dirty, task.batch_bytes_max)
            if upto < part.row.next_offset:
                return _run_upto(task, latest, upto, now_ms)
    return _run_upto(task, latest, upto, now_ms)


def _run_upto(task: CompactObjectsTask, latest: OffsetMap, upto: Offset, now_ms: int) -> CompactionRun:
    return CompactionRun(latest, upto, {}, now_ms, task.delete_retention_ms, task.batch_bytes_max)


def _group_done(
    done: Compacted,
    key: Key,
    group: Sequence[Row],
    run: CompactionRun,
    store: JobStore,
    link: Connection,
) -> Compacted:
    ranges = compacted(parts_of(store, group), run)
    (outcome,) = replace_rows(store, link, {key: Rewritten(group, ranges)})
    if not outcome.is_replaced:
        return replace(done, taken=False, reason=outcome.reason)
    return replace(
        done,
        bytes_before=done.bytes_before + sum(row.length for row in group),
        bytes_after=done.bytes_after + sum(len(each.data) for each in ranges),
        batches_before=done.batches_before + sum(row.batch_count for row in group),
        batches_after=done.batches_after + sum(each.batch_count for each in ranges),
    )
