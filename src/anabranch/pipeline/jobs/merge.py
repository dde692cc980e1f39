"""Merging of small objects as a job: one Spark task for each large object that is to be, no shuffle.

The driver asks the broker where the records of topics in the object store lie and plans as the broker's own upkeep
does (`objects.layout.merge_plan`), but everything at once. Each task reads some objects whole, writes one, and has
the broker put it in their place (`object_task.py`). Tasks must reach the store.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch.errors import ObjectGoneError, PipelineError, UnknownTopicOrPartitionError
from anabranch.objects.layout.merge import RowBytes, merged
from anabranch.objects.layout.merge_plan import Merge, all_merges, packed
from anabranch.objects.layout.names import Key, Row, pack_rows, unpack_rows
from anabranch.pipeline.client.client import Client, Topic
from anabranch.pipeline.jobs.object_task import Outcome, Rewritten, read_rows, replace_rows
from anabranch.pipeline.source.coordinates import coordinates, patient_link
from anabranch.pipeline.source.object_store import JobStore
from anabranch.values import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LIFETIME = ("cleanup.policy", "retention.ms", "retention.bytes")


@dataclass(frozen=True)
class MergeTask:
    bootstrap: str
    store_url: str
    credentials_file: str | None
    places: tuple[tuple[TopicPartition, Key, bytes], ...]
    """The rows of each partition, packed."""
    merge_bytes: int
    kinds: Mapping[str, Hashable]
    """Of each topic: those that differ share no object."""


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
    """One for each object that is to be. PipelineError if a topic that was named is not in the object store."""
    rows: dict[Key, Sequence[Row]] = {}
    places: dict[Key, TopicPartition] = {}
    store_url, merge_bytes = "", 0
    with Client(bootstrap) as client:
        chosen = _object_topics(client, topics)
        kinds = _kinds(client, chosen)
        for topic in chosen:
            for place in topic.partitions:
                found = coordinates(client, place, topic.id)
                store_url, merge_bytes = found.store_url, found.merge_bytes
                key = topic.id, place.partition
                rows[key], places[key] = found.rows, place
    merges = all_merges(rows, merge_bytes) if rows else []
    return [
        MergeTask(bootstrap, store_url, credentials_file, _packed(merge, places), merge_bytes, kinds)
        for merge in merges
    ]


def _packed(
    merge: Merge, places: Mapping[Key, TopicPartition]
) -> tuple[tuple[TopicPartition, Key, bytes], ...]:
    return tuple((places[key], key, pack_rows(rows)) for key, rows in merge.rows.items())


def _kinds(client: Client, topics: Sequence[Topic]) -> dict[str, Hashable]:
    """Topics that keep their records for the same time are of one kind."""
    names = [topic.name for topic in topics]
    configs = [client.topic_configs(names, config) for config in LIFETIME] if names else []
    return {name: tuple(values.get(name) for values in configs) for name in names}


def _object_topics(client: Client, names: Sequence[str]) -> list[Topic]:
    known = client.cluster(names or None).topics
    missing = [name for name in names if name not in known]
    if missing:
        raise UnknownTopicOrPartitionError(f"There is no topic {missing[0]}.")
    modes = client.topic_configs(sorted(known), "anabranch.mode")
    others = [name for name in names if modes.get(name) != "object"]
    if others:
        raise PipelineError(
            f"{others[0]} is not in the object store, so there are no objects to merge: its anabranch.mode is "
            f"{modes.get(others[0]) or 'not set'}."
        )
    return [topic for name, topic in sorted(known.items()) if modes.get(name) == "object"]


def run_merge(task: MergeTask) -> Merged:
    """On an executor."""
    rows = {key: list(unpack_rows(data)) for _, key, data in task.places}
    try:
        outcomes = _outcomes(task, rows)
    except ObjectGoneError as error:  # It was merged by others, long ago.
        outcomes = [Outcome(key, False, str(error)) for key in rows]
    return Merged(
        len(rows),
        len({row.object_id for each in rows.values() for row in each}),
        sum(row.length for each in rows.values() for row in each),
        sum(outcome.is_replaced for outcome in outcomes),
        tuple(sorted({outcome.reason for outcome in outcomes if not outcome.is_replaced})),
    )


def _outcomes(task: MergeTask, rows: Mapping[Key, Sequence[Row]]) -> list[Outcome]:
    kinds = {key: task.kinds[place.topic] for place, key, _ in task.places}
    with JobStore(task.store_url, task.credentials_file) as store, Client(task.bootstrap) as client:
        read = read_rows(store, (row for each in rows.values() for row in each))
        made = {
            key: Rewritten(each, merged([RowBytes(row, read[row]) for row in each]))
            for key, each in rows.items()
        }
        sizes = {key: sum(len(each.data) for each in rewritten.new) for key, rewritten in made.items()}
        link = patient_link(client, task.places[0][0])
        return [
            outcome
            for keys in packed(sizes, task.merge_bytes, kinds)
            for outcome in replace_rows(store, link, {key: made[key] for key in keys})
        ]
