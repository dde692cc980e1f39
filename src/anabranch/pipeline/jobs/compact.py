"""Compaction of a topic as a job: one Spark task per partition, no shuffle, and the broker has the last word.

The driver asks the broker for the topic's settings and folders; each task compacts one partition into files aside
(`compact_partition.py`); the broker finds them, checks every record, and puts them in place or refuses them. The job
waits for its answer. Tasks must reach the node's data folder: run them on its machine.

A topic in the object store is compacted there (`compact_objects.py`); its tasks must reach the store.
"""

import os
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from anabranch.errors import PipelineError, UnknownTopicOrPartitionError
from anabranch.pipeline.client.client import EARLIEST, Client, check
from anabranch.pipeline.jobs.compact_objects import CompactObjectsTask, compact_objects
from anabranch.pipeline.jobs.compact_partition import Compacted, CompactTask, await_outcome, offer_compacted
from anabranch.record.compaction.offset_map import BYTES_PER_KEY
from anabranch.record.state_file import load_state
from anabranch.values import TopicPartition
from anabranch.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_SECONDS = 120.0
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
_CLEANER_OFFSETS = "cleaner-offsets"


class _Topic(NamedTuple):
    name: str
    id: UUID
    partitions: Sequence[int]
    broker_ids: Sequence[int]
    """Who leads its partitions."""


def compact_topic(
    spark: "SparkSession",
    bootstrap: str,
    topic: str,
    *,
    wait_seconds: float = WAIT_SECONDS,
    credentials_file: str | None = None,
) -> list[Compacted]:
    """Compact every partition; what became of each. `wait_seconds` is how long to wait for the broker's answers."""
    tasks = plan_tasks(bootstrap, topic, credentials_file)
    in_store = [task for task in tasks if isinstance(task, CompactObjectsTask)]
    if in_store:
        done: list[Compacted] = (
            spark.sparkContext.parallelize(in_store, len(in_store)).map(compact_objects).collect()
        )
        return done
    return _compact_files(spark, [task for task in tasks if isinstance(task, CompactTask)], wait_seconds)


def _compact_files(
    spark: "SparkSession", tasks: Sequence[CompactTask], wait_seconds: float
) -> list[Compacted]:
    context = spark.sparkContext
    offered: list[Compacted] = context.parallelize(tasks, len(tasks)).map(offer_compacted).collect()
    folders = {task.partition: task.folder for task in tasks}
    waiting = [(folders[each.partition], each) for each in offered if each.offer_id]

    def answers(rows: Iterable[tuple[str, Compacted]]) -> list[Compacted]:
        deadline = time.monotonic() + wait_seconds
        return [await_outcome(folder, each, deadline) for folder, each in rows]

    settled = context.parallelize(waiting, 1).mapPartitions(answers).collect() if waiting else []
    done = {each.partition: each for each in [*offered, *settled]}
    return [done[task.partition] for task in tasks]


def plan_tasks(
    bootstrap: str, topic: str, credentials_file: str | None = None
) -> Sequence[CompactTask | CompactObjectsTask]:
    """One per partition. PipelineError if the topic cannot be compacted, with the reason."""
    with Client(bootstrap) as client:
        found = _topic(client, topic)
        configs = _configs(client, found, TOPIC_RESOURCE, topic)
        if "compact" not in configs["cleanup.policy"].split(","):
            raise PipelineError(
                f"{topic} is not a compacted topic: its cleanup.policy is {configs['cleanup.policy']}. "
                f"Set it with: anabranch topic alter {topic} --config cleanup.policy=compact"
            )
        node = _configs(client, found, BROKER_RESOURCE, str(found.broker_ids[0]))
        if configs["anabranch.mode"] == "object":
            return [
                _objects_task(bootstrap, found, number, configs, node, credentials_file)
                for number in found.partitions
            ]
        if len(found.broker_ids) > 1:
            raise PipelineError(
                f"The partitions of {topic} are on several nodes: compact them where each of them is."
            )
        folders = client.log_folders([topic])
        places = [TopicPartition(topic, number) for number in found.partitions]
        starts = client.offsets_at(dict.fromkeys(places, EARLIEST))
    return [_task(found, place, folders[place], starts[place], configs, node) for place in places]


def _topic(client: Client, name: str) -> _Topic:
    known = client.cluster([name]).topics.get(name)
    if known is None:
        raise UnknownTopicOrPartitionError(f"There is no topic {name}.")
    leader = client.leader(TopicPartition(name, min(known.leaders)))
    answer = leader.ask(ApiKey.METADATA, {"topics": [{"name": name}], "allow_auto_topic_creation": False})
    brokers = {row["leader_id"] for row in answer["topics"][0]["partitions"]}
    return _Topic(name, known.id, sorted(known.leaders), sorted(brokers))


def _configs(client: Client, topic: _Topic, resource_type: int, name: str) -> dict[str, str]:
    asked = {
        "resources": [{"resource_type": resource_type, "resource_name": name, "configuration_keys": None}]
    }
    place = TopicPartition(topic.name, topic.partitions[0])
    answer = client.patiently(lambda: client.leader(place).ask(ApiKey.DESCRIBE_CONFIGS, asked))
    (row,) = answer["results"]
    check(row["error_code"], f"the configs of {name}")
    return {config["name"]: config["value"] or "" for config in row["configs"]}


def _task(
    topic: _Topic,
    place: TopicPartition,
    data_folder: str,
    start_offset: int,
    configs: dict[str, str],
    node: dict[str, str],
) -> CompactTask:
    return CompactTask(
        place.partition,
        f"{data_folder}/{place.folder}",
        max(start_offset, _clean_upto(data_folder, topic.id, place.partition)),
        int(configs["segment.bytes"]),
        int(configs["delete.retention.ms"]),
        int(configs["min.compaction.lag.ms"]),
        max(1, int(node["log.cleaner.dedupe.buffer.size"]) // BYTES_PER_KEY),
        int(node["batch.decompressed.bytes.max"]),
    )


def _objects_task(
    bootstrap: str,
    topic: _Topic,
    number: int,
    configs: dict[str, str],
    node: dict[str, str],
    credentials_file: str | None,
) -> CompactObjectsTask:
    return CompactObjectsTask(
        bootstrap,
        TopicPartition(topic.name, number),
        topic.id,
        credentials_file,
        int(configs["delete.retention.ms"]),
        int(configs["min.compaction.lag.ms"]),
        max(1, int(node["log.cleaner.dedupe.buffer.size"]) // BYTES_PER_KEY),
        int(node["batch.decompressed.bytes.max"]),
    )


def _clean_upto(data_folder: str, topic_id: UUID, number: int) -> int:
    """How far the broker has compacted the partition already; 0 if it does not say, which costs only time."""
    path = f"{data_folder}/{_CLEANER_OFFSETS}"
    if not os.path.exists(path):
        return 0
    with open(path, "rb") as file:
        known, _ = load_state(file.read())
    return int((known or {}).get(f"{topic_id.hex}-{number}", 0))
