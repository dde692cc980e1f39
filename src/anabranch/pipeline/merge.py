"""Merging of small objects as a job: one Spark task for each large object that is to be, no shuffle.

The driver asks the broker where the records of topics in the object store lie and plans as the broker's own upkeep does
(`record.object_merging`), but everything at once. Each task reads some objects whole, writes one, and has the broker
put it in their place (`object_task.py`). Tasks must reach the store.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch.errors import OptionError, UnknownTopicOrPartitionError
from anabranch.pipeline.client import Client, Topic
from anabranch.pipeline.coordinates import coordinates, patient_link
from anabranch.pipeline.object_store import JobStore
from anabranch.pipeline.object_task import Rewritten, read_rows, replace_rows
from anabranch.record.object_merge import RowBytes, merged
from anabranch.record.object_merging import Merge, all_merges
from anabranch.record.object_names import Key, Row, pack_rows, unpack_rows
from anabranch.values import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class MergeTask:
    bootstrap: str
    store_url: str
    credentials_file: str | None
    places: tuple[tuple[TopicPartition, Key, bytes], ...]
    """The rows of each partition, packed."""


@dataclass(frozen=True)
class Merged:
    """What became of one task."""

    partitions: int
    objects_before: int
    bytes: int
    replaced: int
    """Partitions in whose place the new object is now."""
    reasons: tuple[str, ...] = ()
    """Why the others are as they were."""


def merge_objects(
    spark: "SparkSession", bootstrap: str, topics: Sequence[str] = (), credentials_file: str | None = None
) -> list[Merged]:
    """Merge what is small in these topics, or in all that are in the object store."""
    tasks = plan_merges(bootstrap, topics, credentials_file)
    if not tasks:
        return []
    done: list[Merged] = spark.sparkContext.parallelize(tasks, len(tasks)).map(run_merge).collect()
    return done


def plan_merges(
    bootstrap: str, topics: Sequence[str] = (), credentials_file: str | None = None
) -> list[MergeTask]:
    """One for each object that is to be. OptionError if a topic that was named is not in the object store."""
    rows: dict[Key, Sequence[Row]] = {}
    places: dict[Key, TopicPartition] = {}
    store_url, merge_bytes = "", 0
    with Client(bootstrap) as client:
        for topic in _object_topics(client, topics):
            for place in topic.partitions:
                found = coordinates(client, place, topic.id)
                store_url, merge_bytes = found.store_url, found.merge_bytes
                key = topic.id, place.partition
                rows[key], places[key] = found.rows, place
    merges = all_merges(rows, merge_bytes) if rows else []
    return [_task(bootstrap, store_url, credentials_file, merge, places) for merge in merges]


def _object_topics(client: Client, names: Sequence[str]) -> list[Topic]:
    known = client.cluster(names or None).topics
    missing = [name for name in names if name not in known]
    if missing:
        raise UnknownTopicOrPartitionError(f"There is no topic {missing[0]}.")
    modes = client.topic_configs(sorted(known), "anabranch.mode")
    others = [name for name in names if modes.get(name) != "object"]
    if others:
        raise OptionError(
            f"{others[0]} is not in the object store, so there are no objects to merge: its anabranch.mode is "
            f"{modes.get(others[0]) or 'not set'}."
        )
    return [topic for name, topic in sorted(known.items()) if modes.get(name) == "object"]


def _task(
    bootstrap: str,
    store_url: str,
    credentials_file: str | None,
    merge: Merge,
    places: dict[Key, TopicPartition],
) -> MergeTask:
    rows = tuple((places[key], key, pack_rows(each)) for key, each in merge.rows.items())
    return MergeTask(bootstrap, store_url, credentials_file, rows)


def run_merge(task: MergeTask) -> Merged:
    """On an executor."""
    rows = {key: list(unpack_rows(packed)) for _, key, packed in task.places}
    with JobStore(task.store_url, task.credentials_file) as store, Client(task.bootstrap) as client:
        read = read_rows(store, (row for each in rows.values() for row in each))
        made = {
            key: Rewritten(each, merged([RowBytes(row, read[row]) for row in each]))
            for key, each in rows.items()
        }
        outcomes = replace_rows(store, patient_link(client, task.places[0][0]), made)
    return Merged(
        len(rows),
        len({row.object_id for each in rows.values() for row in each}),
        sum(row.length for each in rows.values() for row in each),
        sum(outcome.is_replaced for outcome in outcomes),
        tuple(sorted({outcome.reason for outcome in outcomes if not outcome.is_replaced})),
    )
