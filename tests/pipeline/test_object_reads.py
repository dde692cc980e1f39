"""Records of object topics read straight out of the store: without the broker, as it would give them, and with little
asked of the store. Without Spark, which has no part in it."""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pyarrow as pa
import pytest

from anabranch.errors import DataLossError, ObjectGoneError, PipelineError, StoreError, StoreUnavailableError
from anabranch.objects.layout.names import ObjectKind
from anabranch.pipeline.jobs.compact import plan_tasks
from anabranch.pipeline.jobs.compact_objects import CompactObjectsTask, compact_objects
from anabranch.pipeline.jobs.merge import plan_merges, run_merge
from anabranch.pipeline.source.object_plan import rows_of, tasks_of
from anabranch.pipeline.source.object_store import JobStore, Span
from anabranch.pipeline.source.offsets import Progress
from anabranch.pipeline.source.options import Direct, ReaderOptions, reader_options
from anabranch.pipeline.source.plan import Range
from anabranch.pipeline.source.planner import Planner
from anabranch.pipeline.source.reading import read_ranges
from anabranch.record.builder import BatchBuilder
from anabranch.record.columns.columns import FIELDS, schema_of
from anabranch.values import TopicPartition
from anabranch.wire.api_keys import ApiKey
from support.node_process import NodeProcess
from support.raw_client import RawClient
from support.s3_server import CREDENTIALS

PARTITIONS = 3
PER_ROUND = 4
TIME_MS = 1_700_000_000_000
SETTINGS = {
    "object.gather.ms": "40",
    "object.merge.bytes": "1000000",
    "object.collect.ms": "3600000",
    "log.cleaner.enable": "false",
    "log.retention.ms": "-1",
}
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def store_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("store-node")
    with NodeProcess(folder, {**SETTINGS, "object.store": f"file://{folder}/store"}) as node:
        yield node


def batch(number: int, partition: int) -> bytes:
    builder = BatchBuilder(codec=number % 5)
    for key in range(PER_ROUND):
        headers = (("round", b"%d" % number),)
        value = b"%d-%d" % (number, partition) * 9
        builder.add(b"key %d" % ((key + number) % 6), value, headers, timestamp_ms=TIME_MS + number)
    return bytes(builder.build())


def fill(node: NodeProcess, topic: str, rounds: int = 5, **configs: str) -> None:
    """One object for each round, with batches of every partition."""
    with RawClient(node.bootstrap) as client:
        client.create_topic(topic, PARTITIONS, **{"anabranch_mode": "object", **configs})
        for number in range(rounds):
            rows = [
                {"index": partition, "records": batch(number, partition)} for partition in range(PARTITIONS)
            ]
            body = {
                "acks": -1,
                "timeout_ms": 10_000,
                "topic_data": [{"name": topic, "partition_data": rows}],
            }
            answer = client.ask(ApiKey.PRODUCE, 9, body)
            assert {row["error_code"] for row in answer["responses"][0]["partition_responses"]} == {0}


def options_of(node: NodeProcess, topic: str, **given: str) -> ReaderOptions:
    all_given = {"bootstrap": node.bootstrap, "topic": topic, "direct": "require", **given}
    return reader_options({name: value for name, value in all_given.items() if value})


def plan(options: ReaderOptions) -> list[Range]:
    with closing(Planner(options)) as planner:
        return planner.batch_ranges()


def read(options: ReaderOptions, ranges: Sequence[Range] | None = None) -> Rows:
    """Every record with all that is known of it, by topic, partition and offset."""
    found: Rows = []
    for wanted in plan(options) if ranges is None else ranges:
        for each in read_ranges(options, [wanted], schema_of(FIELDS)):
            found += [{"place": wanted.place, **row} for row in each.to_pylist()]
    return found


def offsets(rows: Rows, partition: int = 0) -> list[int]:
    return [row["offset"] for row in rows if row["place"].partition == partition]


def by_protocol(options: ReaderOptions) -> Rows:
    return read(replace(options, direct=Direct.NEVER))


@contextmanager
def no_fetch() -> Iterator[None]:
    """Whoever would fetch a record fails."""

    def refuse(*_: object) -> None:
        raise AssertionError("a record was fetched")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anabranch.pipeline.source.fetch.PartitionFetch._ask", refuse)
        yield


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Span]:
    """What was asked of the store."""
    asked: list[Span] = []
    get_all = JobStore.get_all

    def counted(self: JobStore, spans: list[Span]) -> Any:
        asked.extend(spans)
        return get_all(self, spans)

    monkeypatch.setattr(JobStore, "get_all", counted)
    return asked


# --- the same records -------------------------------------------------------------------------------------------


def test_every_record_comes_as_by_the_protocol_and_none_is_fetched(
    store_node: NodeProcess, unique: str
) -> None:
    fill(store_node, unique)
    options = options_of(store_node, unique)
    expected = by_protocol(options)
    assert len(expected) == 5 * PER_ROUND * PARTITIONS
    with no_fetch():
        assert read(options) == expected
        assert read(replace(options, direct=Direct.AUTO)) == expected


def test_a_range_that_begins_and_ends_inside_of_batches(store_node: NodeProcess, unique: str) -> None:
    fill(store_node, unique)
    bounds = {
        "startingOffsets": json.dumps({unique: {"0": 3, "1": -2, "2": 6}}),
        "endingOffsets": json.dumps({unique: {"0": 15, "1": 0, "2": 7}}),
    }
    options = options_of(store_node, unique, minPartitions="7", **bounds)
    with no_fetch():
        found = read(options)
    assert found == by_protocol(options)
    assert [offsets(found, number) for number in range(PARTITIONS)] == [list(range(3, 15)), [], [6]]


def test_a_start_by_time(store_node: NodeProcess, unique: str) -> None:
    fill(store_node, unique)
    options = options_of(store_node, unique, startingTimestamp=str(TIME_MS + 3))
    with no_fetch():
        found = read(options)
    assert offsets(found) == list(range(3 * PER_ROUND, 5 * PER_ROUND))


def test_a_bucket_is_read_like_a_folder(tmp_path: Path, s3_url: str, requests: list[Span]) -> None:
    with NodeProcess(tmp_path, {**SETTINGS, "object.store": s3_url}) as node:
        fill(node, "orders")
        options = options_of(node, "orders")
        expected = by_protocol(options)
        with no_fetch():
            together = rows_of_task(options)
        assert together == expected
        assert len(requests) == objects_in(plan(options))
        secrets = tmp_path / "credentials"
        secrets.write_text("AWS_ACCESS_KEY_ID=someone\n")
        refused = replace(options, credentials_file=str(secrets))
        with pytest.raises(StoreError, match="may be read by others"):
            read(refused)
        assert read(replace(refused, direct=Direct.AUTO)) == expected


# --- few requests -----------------------------------------------------------------------------------------------


def rows_of_task(options: ReaderOptions) -> Rows:
    """As the single task that all partitions share."""
    (task,) = tasks_of(plan(options), options.partitions_min, options.records_per_partition_max)
    return task_rows(options, task)


def task_rows(options: ReaderOptions, task: Sequence[Range]) -> Rows:
    """Sorted by partition alone: each one's records have to come in the order of offsets."""
    places = {(wanted.place.topic, wanted.place.partition): wanted.place for wanted in task}
    schema = (
        schema_of(FIELDS).append(pa.field("topic", pa.string())).append(pa.field("partition", pa.int32()))
    )
    found = []
    for each in read_ranges(options, task, schema):
        for row in each.to_pylist():
            found.append({"place": places[row.pop("topic"), row.pop("partition")], **row})
    return sorted(found, key=lambda row: row["place"])


def objects_in(ranges: Sequence[Range]) -> int:
    return len({row.object_id for wanted in ranges for row in rows_of(wanted)})


def test_partitions_that_share_objects_share_a_task_and_each_object_is_asked_once(
    store_node: NodeProcess, unique: str, requests: list[Span]
) -> None:
    fill(store_node, unique, rounds=6)
    options = options_of(store_node, unique)
    rows = sum(len(list(rows_of(wanted))) for wanted in plan(options))
    with no_fetch():
        found = rows_of_task(options)
    assert found == by_protocol(options)
    assert len(requests) == objects_in(plan(options)) < rows


def test_as_many_tasks_as_were_asked_for(store_node: NodeProcess, unique: str) -> None:
    fill(store_node, unique)
    ranges = plan(options_of(store_node, unique))
    assert len(tasks_of(ranges, None, None)) == 1
    assert len(tasks_of(ranges, PARTITIONS, None)) == PARTITIONS
    assert len(tasks_of(ranges, None, 2 * 5 * PER_ROUND)) == 2


# --- merged, compacted, gone ------------------------------------------------------------------------------------


def merge(node: NodeProcess, topic: str) -> None:
    for task in plan_merges(node.bootstrap, [topic]):
        assert run_merge(task).replaced == PARTITIONS


def stored_file(node: NodeProcess, name: str) -> Path:
    return node.data_folder.parent / "store" / name


def test_merged_objects_hold_the_same_records(store_node: NodeProcess, unique: str) -> None:
    fill(store_node, unique)
    options = options_of(store_node, unique)
    before = by_protocol(options)
    merge(store_node, unique)
    ranges = plan(options)
    assert {row.object_id.kind for wanted in ranges for row in rows_of(wanted)} == {ObjectKind.MERGED}
    with no_fetch():
        assert read(options, ranges) == before


def test_objects_that_are_gone_since_the_plan_are_looked_for_again(
    store_node: NodeProcess, unique: str
) -> None:
    fill(store_node, unique)
    options = options_of(store_node, unique)
    before, ranges = by_protocol(options), plan(options)
    merge(store_node, unique)
    for wanted in ranges:
        for row in list(rows_of(wanted))[1:]:
            stored_file(store_node, row.object_id.name).unlink(missing_ok=True)
    with no_fetch():
        assert read(options, ranges) == before
        assert task_rows(options, ranges) == before


def test_gaps_of_compaction_are_no_loss(store_node: NodeProcess, unique: str) -> None:
    fill(store_node, unique, rounds=12, cleanup_policy="compact")
    options = options_of(store_node, unique)
    before = read(options)
    for task in plan_tasks(store_node.bootstrap, unique):
        assert isinstance(task, CompactObjectsTask)
        assert compact_objects(task).taken
    with no_fetch():
        found = read(options)
    assert 0 < len(found) < len(before)
    assert found == by_protocol(options)


def test_admission_counts_records_and_not_gaps(store_node: NodeProcess, unique: str) -> None:
    fill(store_node, unique, rounds=12, cleanup_policy="compact")
    options = options_of(store_node, "", assign=json.dumps({unique: [0]}))
    for task in plan_tasks(store_node.bootstrap, unique):
        assert isinstance(task, CompactObjectsTask)
        compact_objects(task)
    kept = offsets(read(options))
    found, start = [], Progress({TopicPartition(unique, 0): 0})
    with no_fetch(), closing(Planner(options)) as planner:
        while (end := planner.latest(start, None, 2)).offsets != start.offsets:
            rows = read(options, planner.stream_ranges(start, end))
            assert len(rows) <= 2
            found += offsets(rows)
            start = end
    assert found == kept


def test_records_deleted_after_planning_are_a_loss_told_by_the_broker(
    store_node: NodeProcess, unique: str
) -> None:
    fill(store_node, unique)
    options = options_of(store_node, "", assign=json.dumps({unique: [0]}))
    ranges = plan(options)
    delete_records(store_node, unique, 9)
    for row in list(rows_of(ranges[0]))[:2]:
        stored_file(store_node, row.object_id.name).unlink()
    with pytest.raises(DataLossError, match="begins at offset 9 by now, and 0 was to be read"):
        read(options, ranges)
    found = read(replace(options, fail_on_data_loss=False), ranges)
    assert offsets(found) == list(range(9, 5 * PER_ROUND))


def test_a_topic_deleted_after_planning(store_node: NodeProcess, unique: str) -> None:
    fill(store_node, unique)
    options = options_of(store_node, unique)
    ranges = plan(options)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": store_node.bootstrap})
    admin.delete_topics([unique])[unique].result(15)
    for wanted in ranges:
        for row in list(rows_of(wanted))[1:]:
            stored_file(store_node, row.object_id.name).unlink(missing_ok=True)
    with pytest.raises(
        DataLossError, match=f"{unique}-0 was deleted, or made again, before offset 4 was read"
    ):
        task_rows(options, ranges)
    found = task_rows(replace(options, fail_on_data_loss=False), ranges)
    assert [offsets(found, number) for number in range(PARTITIONS)] == [list(range(PER_ROUND))] * PARTITIONS


def delete_records(node: NodeProcess, topic: str, upto: int) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.bootstrap})
    place = confluent_kafka.TopicPartition(topic, 0, upto)
    next(iter(admin.delete_records([place]).values())).result(15)


# --- out of reach -----------------------------------------------------------------------------------------------


def elsewhere(ranges: Sequence[Range], store_url: str) -> list[Range]:
    """As if the store were somewhere else."""
    moved = []
    for wanted in ranges:
        (stretch,) = wanted.stretches
        assert stretch.objects is not None
        objects = stretch.objects._replace(store_url=store_url)
        moved.append(wanted._replace(stretches=(stretch._replace(objects=objects),)))
    return moved


def test_a_store_out_of_reach_is_said_once_and_the_protocol_serves(
    store_node: NodeProcess, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(store_node, unique)
    options = options_of(store_node, unique)
    ranges = elsewhere(plan(options), f"file:///nowhere/{unique}")
    with pytest.raises(ObjectGoneError):
        read(options, ranges)
    with caplog.at_level(logging.WARNING, logger="anabranch.pipeline"):
        assert read(replace(options, direct=Direct.AUTO), ranges) == by_protocol(options)
        assert task_rows(replace(options, direct=Direct.AUTO), ranges) == by_protocol(options)
    (said,) = caplog.messages
    assert said.startswith(f"records in file:///nowhere/{unique} come by the protocol: ")


def test_a_store_that_is_away_is_not_waited_for_by_every_task(
    store_node: NodeProcess, unique: str, requests: list[Span], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.pipeline.source.row_loader.PAUSES_SECONDS", (0.0,))
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    fill(store_node, unique)
    options = options_of(store_node, unique)
    nowhere = f"s3://{unique.lower().replace('_', '-')[-40:]}/x?endpoint=http://127.0.0.1:1&region=us-east-1"
    ranges = elsewhere(plan(options), nowhere)
    hasty = replace(options, direct=Direct.AUTO)
    assert task_rows(hasty, ranges) == by_protocol(options)
    asked = len(requests)
    assert asked > 0
    assert task_rows(hasty, ranges) == by_protocol(options)
    assert len(requests) == asked
    with pytest.raises(StoreUnavailableError):
        read(options, ranges)
    assert len(requests) > asked


def test_objects_in_a_brokers_memory_come_by_the_protocol(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, {**SETTINGS, "object.store": "memory:"}) as node:
        fill(node, "orders", rounds=1)
        options = options_of(node, "orders")
        with pytest.raises(PipelineError, match="direct=require: the objects of orders-0 are in the broker"):
            plan(options)
        assert len(read(replace(options, direct=Direct.AUTO))) == PER_ROUND * PARTITIONS
