"""Batches appended to a table of each format, without a broker: what is there afterwards, and what is not."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast
from uuid import UUID

import pytest

from anabranch.errors import DataLossError, LostRecordsError, TableError, TableMovedError
from anabranch.pipeline.lake.change import Change
from anabranch.pipeline.lake.report import Report
from anabranch.pipeline.lake.settings import PipelineSettings
from anabranch.pipeline.lake.sink import LakeSink
from support.checkpoints import note_offsets
from support.lake_tables import frame, json_records, read_rows, settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("iceberg", "delta", "parquet")


@pytest.mark.parametrize("to", FORMATS)
def test_raw_records_arrive_byte_for_byte(spark: "SparkSession", tmp_path: Path, to: str) -> None:
    given = settings(tmp_path, to=to, schema="raw")
    records = [(b"\xff\x00", b"\x80"), (None, b""), (b"k", None)]
    counts = LakeSink(spark, given).write(frame(spark, records), 0)
    rows = read_rows(given)
    assert list(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)) == records
    assert rows["_offset"].to_pylist() == [0, 1, 2]
    assert rows["headers"].to_pylist() == [[{"key": "trace", "value": b"\x01"}]] * 3
    assert (counts.read, counts.written, counts.dlq) == (3, 3, 0)


@pytest.mark.parametrize("to", FORMATS)
def test_a_batch_that_comes_again_is_skipped(spark: "SparkSession", tmp_path: Path, to: str) -> None:
    given = settings(tmp_path, to=to)
    records = json_records([{"a": 1}, {"a": 2}])
    LakeSink(spark, given).write(frame(spark, records), 0)
    again = LakeSink(spark, given).write(frame(spark, records), 0)
    assert again.skipped == 1
    assert read_rows(given)["a"].to_pylist() == [1, 2]


def test_an_old_copy_of_a_checkpoint_loses_no_records(spark: "SparkSession", tmp_path: Path) -> None:
    """It counts batches that the table knows, but with other records in them."""
    given = settings(tmp_path)
    LakeSink(spark, given, ordered=True).write(frame(spark, json_records([{"a": 1}, {"a": 2}])), 0)
    again = LakeSink(spark, given, ordered=True)
    assert again.write(frame(spark, json_records([{"a": 1}])), 0).skipped == 1
    with pytest.raises(TableError, match="is older than the table"):
        again.write(frame(spark, json_records([{"a": 1}, {"a": 2}, {"a": 3}])), 0)
    with pytest.raises(TableError, match="they would be in it twice"):
        again.write(frame(spark, json_records([{"a": 2}]), start=1), 1)


def _note(given: PipelineSettings, batch: int, end: int, topic: int = 1) -> None:
    """As Spark does before it hands a batch over."""
    note_offsets(
        Path(given.checkpoint_uri.removeprefix("file://")), batch, given.topic, {0: end}, UUID(int=topic)
    )


def test_a_batch_that_is_in_the_table_is_not_read_to_be_skipped(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Its records may be gone by now. Where it ends, Spark's checkpoint knows: behind a gap here."""
    given = settings(tmp_path)
    _note(given, 0, 5)
    LakeSink(spark, given, ordered=True).write(frame(spark, json_records([{"a": 1}, {"a": 2}])), 0)
    nothing = cast("DataFrame", None)
    again = LakeSink(spark, given, ordered=True)
    assert again.write(nothing, 0).skipped == 1
    _note(given, 0, 6)
    with pytest.raises(TableError, match="is older than the table"):
        again.write(nothing, 0)
    _note(given, 0, 5, topic=2)
    with pytest.raises(TableError, match="is older than the table"):
        again.write(nothing, 0)


@pytest.mark.parametrize("to", FORMATS)
def test_records_of_a_topic_made_again_follow_those_of_the_old_one(
    spark: "SparkSession", tmp_path: Path, to: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = settings(tmp_path, to=to)
    sink = LakeSink(spark, given, ordered=True)
    _note(given, 0, 2)
    sink.write(frame(spark, json_records([{"a": 1}, {"a": 2}])), 0)
    _note(given, 1, 1, topic=2)
    sink.write(frame(spark, json_records([{"a": 3}])), 1)
    assert sorted(read_rows(given)["a"].to_pylist()) == [1, 2, 3]
    state = sink.table.state()
    assert state is not None
    assert (state.offsets, state.topic_id, state.rows, state.read) == ({0: 1}, UUID(int=2), 3, 3)
    assert "has rows of an older topic t" in caplog.text


def test_a_topic_made_again_while_the_pipeline_starts_is_not_read_from_the_old_offsets(
    spark: "SparkSession", tmp_path: Path
) -> None:
    given = settings(tmp_path)
    _note(given, 0, 1)
    LakeSink(spark, given, ordered=True).write(frame(spark, json_records([{"a": 1}])), 0)
    fresh = replace(given, checkpoint=str(tmp_path / "fresh"))
    late = LakeSink(spark, fresh, ordered=True, topic_id=UUID(int=1))
    _note(fresh, 0, 5, topic=2)
    with pytest.raises(DataLossError, match="was deleted and made again while the pipeline was started"):
        late.write(cast("DataFrame", None), 0)


def test_what_was_read_is_counted_on_from_a_state_that_did_not_keep_it(
    spark: "SparkSession", tmp_path: Path
) -> None:
    given = settings(tmp_path)
    sink = LakeSink(spark, given)
    sink.write(frame(spark, json_records([{"a": 1}])), 0)
    state = sink.table.state()
    assert state is not None
    sink.table.commit(Change((), (), replace(state, read=None, rows=5, dlq=2)))
    sink.write(frame(spark, json_records([{"a": 2}, {"a": 3}]), start=1), 1)
    state = sink.table.state()
    assert state is not None
    assert (state.read, state.rows, state.dlq) == (9, 7, 2)


@pytest.mark.parametrize("to", FORMATS)
def test_batches_follow_each_other(spark: "SparkSession", tmp_path: Path, to: str) -> None:
    given = settings(tmp_path, to=to)
    sink = LakeSink(spark, given)
    sink.write(frame(spark, json_records([{"a": 1}])), 0)
    sink.write(frame(spark, json_records([{"a": 2}]), start=1), 1)
    assert read_rows(given)["a"].to_pylist() == [1, 2]
    assert sink.counts.read == sink.counts.written == 2


def test_a_batch_whose_counts_do_not_add_up_is_not_committed(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings(tmp_path)
    sink = LakeSink(spark, given)
    sink.write(frame(spark, json_records([{"a": 1}])), 0)
    rows_added = Report.rows_added.fget
    assert rows_added is not None
    monkeypatch.setattr(Report, "rows_added", property(lambda report: rows_added(report) - 1))
    with pytest.raises(LostRecordsError, match="2 records were read, but 1 written and 0 sent"):
        sink.write(frame(spark, json_records([{"a": 2}, {"a": 3}]), start=1), 1)
    assert read_rows(given)["a"].to_pylist() == [1]


@pytest.mark.parametrize("to", FORMATS)
def test_a_commit_whose_answer_was_lost_keeps_its_files(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """The table has the batch; what tells us otherwise is our own repeated request."""
    given = settings(tmp_path, to=to)
    sink = LakeSink(spark, given)
    sink.write(frame(spark, json_records([{"a": 1}])), 0)
    commit = sink.table.commit

    def answer_lost(change: Change) -> None:
        commit(change)
        raise TableMovedError("the request was repeated, and met itself")

    monkeypatch.setattr(sink.table, "commit", answer_lost)
    assert sink.write(frame(spark, json_records([{"a": 2}]), start=1), 1).skipped == 1
    assert read_rows(given)["a"].to_pylist() == [1, 2]


@pytest.mark.parametrize("to", FORMATS)
def test_a_batch_that_another_process_commits_while_columns_are_added_is_skipped(
    spark: "SparkSession", tmp_path: Path, to: str
) -> None:
    """Adding a column shows this process the newer table, so that its commit would meet no conflict."""
    given = settings(tmp_path, to=to)
    LakeSink(spark, given).write(frame(spark, json_records([{"a": 1}])), 0)
    records = json_records([{"a": 2, "b": 3}])
    quicker = LakeSink(spark, given)
    slower = LakeSink(
        spark,
        given,
        lambda step: step == "writing" and quicker.write(frame(spark, records, start=1), 1) and None,
    )
    assert slower.write(frame(spark, records, start=1), 1).skipped == 1
    assert read_rows(given)["a"].to_pylist() == [1, 2]


def test_a_table_that_was_set_back_is_not_written_behind_the_gap(
    spark: "SparkSession", tmp_path: Path
) -> None:
    given = settings(tmp_path)
    LakeSink(spark, given, ordered=True).write(frame(spark, json_records([{"a": 1}])), 0)
    with pytest.raises(TableError, match="Was it restored"):
        LakeSink(spark, given, ordered=True).write(frame(spark, json_records([{"a": 5}]), start=4), 4)
    assert read_rows(given)["a"].to_pylist() == [1]
