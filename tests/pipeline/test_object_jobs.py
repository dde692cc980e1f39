"""Small objects merged and compacted topics thinned out by jobs on a real node's object store, beside its upkeep."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from anabranch.errors import PipelineError, UnknownTopicOrPartitionError
from anabranch.objects.layout.names import ObjectKind, unpack_rows
from anabranch.pipeline.client.client import Client
from anabranch.pipeline.jobs.compact import compact_topic, plan_tasks
from anabranch.pipeline.jobs.compact_objects import CompactObjectsTask, compact_objects
from anabranch.pipeline.jobs.merge import Merged, merge_objects, plan_merges, run_merge
from anabranch.pipeline.source.coordinates import Coordinates, coordinates
from anabranch.pipeline.source.object_store import JobStore
from anabranch.record.batch import batch_spans
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import Record, records_of
from anabranch.values import TopicPartition
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.node_process import NodeProcess
from support.raw_client import RawClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
# What is compacted here, a job has compacted. The node merges by itself, but only what is more than most tests write.
SETTINGS = {
    "object.gather.ms": "5",
    "object.merge.bytes": "8000",
    "object.collect.ms": "3600000",
    "log.cleaner.enable": "false",
    "log.retention.ms": "-1",
}


@pytest.fixture(scope="module")
def store_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("store-node")
    settings = {**SETTINGS, "object.store": f"file://{folder}/store"}
    with NodeProcess(folder, settings) as node:
        yield node


def fill(node: NodeProcess, topic: str, rounds: int, value_bytes: int = 20, **configs: str) -> None:
    """One object for each request; keys come again and again."""
    with RawClient(node.bootstrap) as client:
        client.create_topic(topic, PARTITIONS, **{"anabranch_mode": "object", **configs})
        for number in range(rounds):
            for partition in range(PARTITIONS):
                builder = BatchBuilder(codec=number % 5)
                for key in range(3):
                    value = b"%d" % number * value_bytes
                    builder.add(b"key %d" % (key + number % 2), value, timestamp_ms=1_700_000_000_000)
                assert client.produce(topic, partition, bytes(builder.build()))["error_code"] == 0


def read(node: NodeProcess, topic: str, partition: int) -> list[Record]:
    """As a consumer from the beginning."""
    found: list[Record] = []
    with RawClient(node.bootstrap) as client:
        end = client.end_offset(topic, partition)
        offset = 0
        while offset < end:
            data = client.fetch(topic, partition, offset)["records"] or b""
            assert data, f"nothing at offset {offset} of {end}"
            for start, stop in batch_spans(data):
                found += [each for each in records_of(bytes(data[start:stop])) if each.offset >= offset]
            offset = found[-1].offset + 1
            if not any(each.offset >= offset for each in found) and offset >= end:
                break
    return found


def described(node: NodeProcess, topic: str, partition: int = 0) -> Coordinates:
    with Client(node.bootstrap) as client:
        topic_id = client.cluster([topic]).topics[topic].id
        return coordinates(client, TopicPartition(topic, partition), topic_id)


def everything(node: NodeProcess, topic: str) -> list[list[Record]]:
    return [read(node, topic, partition) for partition in range(PARTITIONS)]


# --- coordinates ------------------------------------------------------------------------------------------------


def test_coordinates_cover_every_record_and_a_part_of_them(store_node: NodeProcess, unique: str) -> None:
    fill(store_node, unique, rounds=5)
    found = described(store_node, unique)
    assert (found.start, found.end) == (0, 15)
    assert [(row.base_offset, row.next_offset) for row in found.rows] == [
        (start, start + 3) for start in range(0, 15, 3)
    ]
    assert found.store_url.startswith("file:///")
    with Client(store_node.bootstrap) as client:
        topic_id = client.cluster([unique]).topics[unique].id
        part = coordinates(client, TopicPartition(unique, 0), topic_id, 4, 10)
    assert [row.base_offset for row in part.rows] == [3, 6, 9]
    with JobStore(found.store_url) as store:
        row = found.rows[2]
        data = store.get(row.object_id.name, row.position, row.position + row.length)
    assert len(list(batch_spans(data))) == row.batch_count


def test_coordinates_come_page_by_page(store_node: NodeProcess, unique: str) -> None:
    fill(store_node, unique, rounds=5)
    with RawClient(store_node.bootstrap) as raw, Client(store_node.bootstrap) as client:
        topic_id = client.cluster([unique]).topics[unique].id
        found: list[int] = []
        start = 0
        while start >= 0:
            asked = {
                "topic_id": topic_id,
                "partition_index": 1,
                "start_offset": start,
                "end_offset": 14,
                "rows_max": 2,
            }
            answer = raw.ask(ApiKey.DESCRIBE_OBJECTS, 0, asked)
            rows = list(unpack_rows(answer["rows"]))
            assert 0 < len(rows) <= 2
            found += [row.base_offset for row in rows]
            start = answer["next_offset"]
        assert found == [0, 3, 6, 9, 12]
        answer = raw.ask(ApiKey.DESCRIBE_OBJECTS, 0, {**asked, "start_offset": 16})
        assert answer["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_topic_that_is_not_in_the_store_has_no_coordinates(store_node: NodeProcess, unique: str) -> None:
    with RawClient(store_node.bootstrap) as client:
        client.create_topic(unique)
    with pytest.raises(PipelineError, match="not in an object store"):
        described(store_node, unique)
    with pytest.raises(PipelineError, match="no objects to merge"):
        plan_merges(store_node.bootstrap, [unique])
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic"):
        plan_merges(store_node.bootstrap, [f"{unique}-missing"])


# --- merging ----------------------------------------------------------------------------------------------------


def test_tasks_merge_small_objects_and_every_record_stays(store_node: NodeProcess, unique: str) -> None:
    fill(store_node, unique, rounds=10)
    before = everything(store_node, unique)
    (task,) = plan_merges(store_node.bootstrap, [unique])
    done = run_merge(task)
    assert (done.partitions, done.replaced, done.reasons) == (PARTITIONS, PARTITIONS, ())
    assert done.objects_before == 10 * PARTITIONS
    (row,) = described(store_node, unique).rows
    assert row.object_id.kind is ObjectKind.MERGED
    assert everything(store_node, unique) == before
    assert plan_merges(store_node.bootstrap, [unique]) == []


def test_a_task_that_comes_too_late_changes_nothing(store_node: NodeProcess, unique: str) -> None:
    fill(store_node, unique, rounds=6)
    before = everything(store_node, unique)
    (first,) = plan_merges(store_node.bootstrap, [unique])
    (second,) = plan_merges(store_node.bootstrap, [unique])
    assert run_merge(first).replaced == PARTITIONS
    rows = described(store_node, unique).rows
    late = run_merge(second)
    assert (late.replaced, late.reasons) == (0, ("its rows have changed meanwhile",))
    assert described(store_node, unique).rows == rows
    assert everything(store_node, unique) == before


def test_a_task_that_cannot_reach_the_store_says_so(store_node: NodeProcess, unique: str) -> None:
    from dataclasses import replace

    fill(store_node, unique, rounds=2)
    (task,) = plan_merges(store_node.bootstrap, [unique])
    nowhere = run_merge(replace(task, store_url="file:///nowhere/at/all"))
    assert nowhere.replaced == 0
    assert "there is no object" in nowhere.reasons[0]
    with pytest.raises(PipelineError, match="memory"):
        run_merge(replace(task, store_url="memory:x"))
    assert len(described(store_node, unique).rows) == 2


# --- compacting -------------------------------------------------------------------------------------------------


def latest(records: list[Record]) -> dict[bytes | None, Record]:
    return {record.key: record for record in records}


def test_tasks_compact_partitions_larger_than_an_object(store_node: NodeProcess, unique: str) -> None:
    fill(store_node, unique, rounds=30, value_bytes=200, cleanup_policy="compact")
    before = everything(store_node, unique)
    for task in plan_tasks(store_node.bootstrap, unique):
        assert isinstance(task, CompactObjectsTask)
        done = compact_objects(task)
        assert done.taken, done.reason
        assert done.bytes_after < done.bytes_before
        assert compact_objects(task).reason == "there is nothing that was not compacted before"
    for was, now in zip(before, everything(store_node, unique), strict=True):
        assert now == sorted(latest(was).values(), key=lambda record: record.offset)
    assert all(row.is_compacted for row in described(store_node, unique).rows)


def test_a_topic_that_is_not_compacted_loses_nothing(store_node: NodeProcess, unique: str) -> None:
    fill(store_node, unique, rounds=4)
    before = everything(store_node, unique)
    with Client(store_node.bootstrap) as client:
        topic_id = client.cluster([unique]).topics[unique].id
    place = TopicPartition(unique, 0)
    task = CompactObjectsTask(store_node.bootstrap, place, topic_id, None, 1000, 0, 1000, 2**20)
    done = compact_objects(task)
    assert not done.taken
    assert "not compacted" in done.reason
    assert everything(store_node, unique) == before


# --- on Spark ---------------------------------------------------------------------------------------------------


def test_spark_merges_and_compacts(store_node: NodeProcess, spark: "SparkSession", unique: str) -> None:
    fill(store_node, unique, rounds=40, value_bytes=100, cleanup_policy="compact")
    before = everything(store_node, unique)
    done: list[Merged] = []
    while plan_merges(store_node.bootstrap, [unique]):  # The node's own merges may come first.
        done += merge_objects(spark, store_node.bootstrap, [unique])
    assert any(each.replaced for each in done)
    assert {reason for each in done for reason in each.reasons} <= {"its rows have changed meanwhile"}
    assert everything(store_node, unique) == before
    results = compact_topic(spark, store_node.bootstrap, unique)
    assert [each.taken for each in results] == [True] * PARTITIONS
    for was, now in zip(before, everything(store_node, unique), strict=True):
        assert now == sorted(latest(was).values(), key=lambda record: record.offset)


def test_the_command_says_what_it_did(store_node: NodeProcess, unique: str) -> None:
    fill(store_node, unique, rounds=3)
    program = str(Path(sys.executable).with_name("anabranch"))
    command = [program, "pipeline", "merge", "--topic", unique, "--bootstrap", store_node.bootstrap]
    first = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=True)
    (row,) = json.loads(first.stdout)["objects"]
    assert (row["objects_before"], row["replaced"]) == (3 * PARTITIONS, PARTITIONS)
    second = subprocess.run(command, capture_output=True, text=True, check=True)
    assert second.stdout == "There are no small objects to merge.\n"
