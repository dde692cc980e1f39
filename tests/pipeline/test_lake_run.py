"""A topic into a table, through Spark's streaming: nothing there, something there, a checkpoint lost, a table gone."""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from anabranch.errors import DataLossError, PipelineError, TableError
from anabranch.pipeline.jobs.run import PipelineSettings, run_pipeline
from anabranch.pipeline.jobs.status import pipeline_status
from anabranch.pipeline.lake.formats.delta import DeltaTable
from anabranch.pipeline.lake.formats.iceberg import IcebergTable
from anabranch.pipeline.lake.formats.table import open_table
from anabranch.pipeline.lake.sink import Counts
from support.lake_tables import read_rows, settings
from support.node_process import NodeProcess
from support.topics import Sent, make_topic, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _records(first: int, end: int) -> list[Sent]:
    return [(b"k%d" % number, json.dumps({"n": number}).encode()) for number in range(first, end)]


@pytest.fixture
def topic(node: NodeProcess, unique: str) -> str:
    make_topic(node.bootstrap, unique, 2)
    return unique


@pytest.fixture
def given(node: NodeProcess, tmp_path: Path, topic: str) -> PipelineSettings:
    return settings(tmp_path, bootstrap=node.bootstrap, topic=topic, once=True)


def _numbers(given: PipelineSettings) -> list[int]:
    numbers: list[int] = sorted(read_rows(given)["n"].to_pylist())
    return numbers


def _lose_checkpoint(given: PipelineSettings) -> None:
    shutil.rmtree(given.checkpoint_uri.removeprefix("file://"))


def test_an_empty_topic_makes_an_empty_table(spark: "SparkSession", given: PipelineSettings) -> None:
    counts = run_pipeline(spark, given)
    assert (counts.read, counts.written, counts.dlq) == (0, 0, 0)
    rows = read_rows(given)
    assert rows.num_rows == 0
    assert rows.column_names == ["_key", "_topic", "_partition", "_offset", "_timestamp"]


def test_an_empty_topic_waits_for_the_columns_it_is_partitioned_by(
    spark: "SparkSession", given: PipelineSettings
) -> None:
    by_column = replace(given, partition_by=("n",))
    assert run_pipeline(spark, by_column).read == 0
    send(given.bootstrap, given.topic, _records(0, 3))
    assert run_pipeline(spark, by_column).written == 3
    assert _numbers(given) == [0, 1, 2]


def test_a_second_run_goes_on_behind_the_first(spark: "SparkSession", given: PipelineSettings) -> None:
    send(given.bootstrap, given.topic, _records(0, 30))
    batches: list[tuple[int, Counts]] = []
    first = run_pipeline(spark, given, on_batch=lambda batch, counts: batches.append((batch, counts)))
    assert (first.read, first.written, first.batches) == (30, 30, 1)
    assert [(batch, counts.read) for batch, counts in batches] == [(0, 30)]
    send(given.bootstrap, given.topic, _records(30, 50))
    assert run_pipeline(spark, given).read == 20
    assert _numbers(given) == list(range(50))


def test_a_lost_checkpoint_makes_no_duplicates(
    spark: "SparkSession", given: PipelineSettings, caplog: pytest.LogCaptureFixture
) -> None:
    send(given.bootstrap, given.topic, _records(0, 30))
    run_pipeline(spark, given)
    _lose_checkpoint(given)
    send(given.bootstrap, given.topic, _records(30, 40))
    with caplog.at_level(logging.WARNING, "anabranch.pipeline"):
        counts = run_pipeline(spark, given)
    assert counts.read == 10
    assert _numbers(given) == list(range(40))
    assert "already has records" in caplog.text


def _made_again(given: PipelineSettings, records: list[Sent]) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": given.bootstrap})
    admin.delete_topics([given.topic])[given.topic].result(15)
    make_topic(given.bootstrap, given.topic, 2)
    send(given.bootstrap, given.topic, records)


def test_a_topic_made_again_is_refused_and_read_from_its_beginning_without_its_old_checkpoint(
    spark: "SparkSession", given: PipelineSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """The new topic has more records than the old one: its offsets alone would tell nothing."""
    send(given.bootstrap, given.topic, _records(0, 10))
    run_pipeline(spark, given)
    _made_again(given, _records(100, 130))
    with pytest.raises(DataLossError, match="was deleted and made again since the checkpoint"):
        run_pipeline(spark, given)
    _lose_checkpoint(given)
    with caplog.at_level(logging.WARNING, "anabranch.pipeline"):
        assert run_pipeline(spark, given).read == 30
    assert _numbers(given) == [*range(10), *range(100, 130)]
    assert "beginning at the beginning of the new one" in caplog.text
    assert run_pipeline(spark, given).read == 0


def test_a_topic_made_again_is_gone_on_with_by_whoever_does_not_mind_loss(
    spark: "SparkSession", given: PipelineSettings
) -> None:
    send(given.bootstrap, given.topic, _records(0, 10))
    run_pipeline(spark, given)
    _made_again(given, _records(100, 130))
    status = pipeline_status(given)
    assert not status.is_same_topic
    assert sum(one.lag or 0 for one in status.partitions) == 30
    assert run_pipeline(spark, replace(given, options={"failOnDataLoss": "false"})).read == 30
    assert _numbers(given) == [*range(10), *range(100, 130)]
    status = pipeline_status(given)
    assert (status.is_same_topic, status.read, status.written) == (True, 40, 40)


def test_a_topic_made_again_replaces_rows_of_the_old_one_though_its_offsets_are_lower(
    spark: "SparkSession", given: PipelineSettings
) -> None:
    kept = replace(given, mode="upsert", options={"failOnDataLoss": "false"})
    send(kept.bootstrap, kept.topic, [(b"a", b'{"n": %d}' % number) for number in range(5)])
    run_pipeline(spark, kept)
    _made_again(kept, [(b"a", b'{"n": 100}')])
    assert run_pipeline(spark, kept).outdated == 0
    assert _numbers(kept) == [100]


def test_a_topic_made_again_under_a_running_pipeline_is_said_with_what_to_do(
    spark: "SparkSession", given: PipelineSettings
) -> None:
    send(given.bootstrap, given.topic, _records(0, 10))
    running = replace(given, once=False, trigger_seconds=0)
    with pytest.raises(DataLossError, match="Remove the checkpoint"):
        run_pipeline(spark, running, on_batch=lambda batch, counts: _made_again(given, _records(0, 5)))


def test_retention_that_took_a_batch_which_the_table_has_costs_a_checkpoint_and_no_record(
    spark: "SparkSession", given: PipelineSettings
) -> None:
    """Spark repeats the batch and has it planned, which cannot be done any more."""
    small = replace(given, max_offsets_per_trigger=5)
    send(given.bootstrap, given.topic, _records(0, 10), partition=0)
    assert run_pipeline(spark, small).batches == 2
    (
        Path(given.checkpoint_uri.removeprefix("file://")) / "commits" / "1"
    ).unlink()  # Killed before it was written.
    send(given.bootstrap, given.topic, _records(10, 15), partition=0)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": given.bootstrap})
    upto = confluent_kafka.TopicPartition(given.topic, 0, 10)
    next(iter(admin.delete_records([upto]).values())).result(10)
    with pytest.raises(
        DataLossError, match=r"None of them is lost: the table has batch 1\. Remove the checkpoint"
    ):
        run_pipeline(spark, small)
    _lose_checkpoint(given)
    assert run_pipeline(spark, small).read == 5
    assert _numbers(given) == list(range(15))


def test_a_pipeline_that_was_taken_over_may_write_no_more(
    spark: "SparkSession", given: PipelineSettings, tmp_path: Path
) -> None:
    send(given.bootstrap, given.topic, _records(0, 10))
    run_pipeline(spark, given)
    other = settings(
        tmp_path, bootstrap=given.bootstrap, topic=given.topic, once=True, checkpoint=str(tmp_path / "other")
    )
    send(given.bootstrap, given.topic, _records(10, 20))
    run_pipeline(spark, other)
    send(given.bootstrap, given.topic, _records(20, 30))
    with pytest.raises(TableError, match="Another pipeline has taken over rows"):
        run_pipeline(spark, given)
    assert _numbers(given) == list(range(20))


def test_a_checkpoint_without_its_table_is_not_taken_for_a_start(
    spark: "SparkSession", given: PipelineSettings
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    send(given.bootstrap, given.topic, _records(0, 10))
    run_pipeline(spark, given)
    catalog = SqlCatalog(
        "anabranch", uri=f"sqlite:///{given.warehouse}/catalog.db", warehouse=given.warehouse
    )
    catalog.drop_table(given.table_name)
    catalog.engine.dispose()
    with pytest.raises(TableError, match="belongs to a table that is not there any more"):
        run_pipeline(spark, given)


def _roll_back(given: PipelineSettings) -> None:
    """By one batch, as their own libraries do it."""
    table = open_table(given)
    if isinstance(table, IcebergTable):
        before = table._table.current_snapshot().parent_snapshot_id
        table._table.manage_snapshots().rollback_to_snapshot(before).commit()
    else:
        assert isinstance(table, DeltaTable)
        table._table.restore(table._table.version() - 1)


@pytest.mark.parametrize("to", ["iceberg", "delta"])
def test_a_table_that_was_rolled_back_is_noticed_and_gets_its_rows_again(
    spark: "SparkSession", given: PipelineSettings, to: str
) -> None:
    kept = replace(given, to=to, max_offsets_per_trigger=10)
    send(kept.bootstrap, kept.topic, _records(0, 20), partition=0)
    assert run_pipeline(spark, kept).batches == 2
    _roll_back(kept)
    with pytest.raises(TableError, match=r"Was it restored\? Remove the checkpoint"):
        run_pipeline(spark, kept)
    _lose_checkpoint(kept)
    assert run_pipeline(spark, kept).read == 10
    assert _numbers(kept) == list(range(20))
    status = pipeline_status(kept)
    assert (status.read, status.written, status.rows) == (20, 20, 20)


def test_a_running_pipeline_stops_when_it_is_told_to(
    spark: "SparkSession", node: NodeProcess, topic: str, tmp_path: Path
) -> None:
    given = settings(tmp_path, bootstrap=node.bootstrap, topic=topic, trigger_seconds=0)
    send(given.bootstrap, given.topic, _records(0, 10))
    seen: list[Any] = []
    counts = run_pipeline(
        spark, given, on_batch=lambda batch, counts: seen.append(batch), stop=lambda: bool(seen)
    )
    assert counts.read == 10
    assert _numbers(given) == list(range(10))


def test_a_topic_that_is_not_there_is_said(spark: "SparkSession", node: NodeProcess, tmp_path: Path) -> None:
    given = settings(tmp_path, bootstrap=node.bootstrap, topic="nowhere", once=True)
    with pytest.raises(PipelineError, match="nowhere"):
        run_pipeline(spark, given)
