"""Upserts: the last record of a key is the row, a tombstone takes it away; the same in each format."""

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from anabranch.pipeline.lake.change import Change
from anabranch.pipeline.lake.files import FilePlan, write_rows
from anabranch.pipeline.lake.formats.table import open_table
from anabranch.pipeline.lake.rows.parse import TRACE
from anabranch.pipeline.lake.settings import PipelineSettings
from anabranch.pipeline.lake.sink import LakeSink
from support.lake_tables import NOON, Record, frame, read_rows, settings
from support.node_process import NodeProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("iceberg", "delta", "parquet")


def _records(*pairs: tuple[str, object]) -> list[Record]:
    return [(key.encode(), None if value is None else json.dumps(value).encode()) for key, value in pairs]


@pytest.mark.parametrize("to", FORMATS)
def test_the_last_record_of_a_key_stays_and_a_tombstone_deletes(
    spark: "SparkSession", tmp_path: Path, to: str
) -> None:
    given = settings(tmp_path, to=to, mode="upsert")
    sink = LakeSink(spark, given)
    first = _records(("a", {"n": 1}), ("b", {"n": 2}), ("a", {"n": 3}), ("c", {"n": 4}), ("d", {"n": 5}))
    counts = sink.write(frame(spark, first), 0)
    assert (counts.read, counts.written, counts.dlq) == (5, 5, 0)
    second = _records(
        ("b", None), ("d", {"n": 6}), ("d", {"n": 7}), ("e", {"n": 8}), ("e", None), ("f", None)
    )
    counts = sink.write(frame(spark, second, start=5), 1)
    assert (counts.read, counts.written, counts.dlq) == (6, 6, 0)
    rows = read_rows(given)
    assert dict(zip(rows["_key"].to_pylist(), rows["n"].to_pylist(), strict=True)) == {"a": 3, "c": 4, "d": 7}
    assert rows.num_rows == 3


@pytest.mark.parametrize("to", FORMATS)
def test_rows_go_by_columns_if_some_are_named(
    spark: "SparkSession", node: NodeProcess, tmp_path: Path, unique: str, to: str
) -> None:
    given = settings(
        tmp_path,
        to=to,
        mode="upsert",
        key=("o", "p"),
        partition_by=("o",),
        bootstrap=node.bootstrap,
        topic=unique,
    )
    sink = LakeSink(spark, given)
    first = _records(
        ("w", {"o": {"is": "no key"}, "p": 1, "n": 0}),
        ("x", {"o": "A", "p": 1, "n": 1}),
        ("y", {"o": "A", "p": 1, "n": 2}),
        ("z", {"o": "B", "p": 1, "n": 3}),
    )
    counts = sink.write(frame(spark, first, slices=3), 0)
    assert (counts.written, counts.dlq) == (3, 1)
    second = _records(("x", {"o": "B", "p": 1, "n": 4}), ("y", None), ("z", {"o": "B"}))
    counts = sink.write(frame(spark, second, start=4), 1)
    assert (counts.written, counts.dlq) == (1, 2)
    rows = read_rows(given)
    assert sorted(zip(rows["o"].to_pylist(), rows["n"].to_pylist(), strict=True)) == [("A", 2), ("B", 4)]


@pytest.mark.parametrize("to", FORMATS)
def test_files_without_the_keys_of_a_batch_are_left_alone(
    spark: "SparkSession", tmp_path: Path, to: str
) -> None:
    given = settings(tmp_path, to=to, mode="upsert")
    sink = LakeSink(spark, given)
    for batch, key in enumerate(["a", "m", "z"]):
        sink.write(frame(spark, _records((key, {"n": batch})), start=batch, slices=1), batch)
    before = {file.path for file in sink.table.files()}
    sink.write(frame(spark, _records(("m", {"n": 9})), start=3, slices=1), 3)
    after = {file.path for file in sink.table.files()}
    assert len(before & after) == 2
    assert len(after) == 3


def test_raw_records_are_kept_by_key_too(spark: "SparkSession", tmp_path: Path) -> None:
    given = settings(tmp_path, mode="upsert", schema="raw")
    sink = LakeSink(spark, given)
    sink.write(frame(spark, [(b"\xff", b"1"), (b"\xfe", b"2"), (b"\xff", b"3")]), 0)
    sink.write(frame(spark, [(b"\xfe", None)], start=3), 1)
    assert read_rows(given)["value"].to_pylist() == [b"3"]


@pytest.mark.parametrize("to", FORMATS)
def test_a_key_in_two_partitions_goes_by_the_time_of_its_records(
    spark: "SparkSession", tmp_path: Path, to: str
) -> None:
    """Offsets of different partitions say nothing about each other, in a batch as between batches."""
    given = settings(tmp_path, to=to, mode="upsert")
    sink = LakeSink(spark, given)
    early, late = NOON - timedelta(seconds=1), NOON + timedelta(seconds=1)
    far = frame(spark, _records(("a", {"n": 1}), ("b", {"n": 1}), ("c", {"n": 1})), start=100)
    near = frame(spark, _records(("a", {"n": 2})), partition=1, time=late)
    sink.write(far.union(near), 0)
    assert _numbers(given) == {"a": 2, "b": 1, "c": 1}
    old = frame(spark, _records(("a", {"n": 3}), ("b", None)), start=200, partition=2, time=early)
    new = frame(spark, _records(("c", {"n": 3}), ("d", {"n": 3})), start=2, partition=3, time=late)
    counts = sink.write(old.union(new), 1)
    assert (counts.read, counts.written, counts.outdated) == (4, 4, 2)
    assert _numbers(given) == {"a": 2, "b": 1, "c": 3, "d": 3}
    assert _orphans(tmp_path, sink) == set()


@pytest.mark.parametrize("to", FORMATS)
def test_two_topics_may_keep_one_table(spark: "SparkSession", tmp_path: Path, to: str) -> None:
    one = settings(tmp_path, to=to, mode="upsert", topic="one")
    other = settings(tmp_path, to=to, mode="upsert", topic="other")
    late = NOON + timedelta(seconds=1)
    LakeSink(spark, one).write(frame(spark, _records(("a", {"n": 1})), start=9, topic="one"), 0)
    LakeSink(spark, other).write(frame(spark, _records(("a", {"n": 2})), topic="other", time=late), 0)
    rows = read_rows(one)
    assert (rows["n"].to_pylist(), rows["_topic"].to_pylist()) == ([2], ["other"])


@pytest.mark.parametrize("to", FORMATS)
def test_a_table_made_before_rows_named_their_topic_goes_on(
    spark: "SparkSession", tmp_path: Path, to: str
) -> None:
    given = settings(tmp_path, to=to, mode="upsert")
    old = pa.schema([field for field in TRACE if field.name != "_topic"] + [("n", pa.int64())])
    table = open_table(given, old)
    row = {"_partition": 0, "_offset": 0, "_timestamp": NOON, "n": 1}
    plan = FilePlan(table.data_folder, "", 0, table.schema(), table.file_schema(), ())
    file = write_rows(plan, (), pa.Table.from_pylist([{"_key": "a", **row}, {"_key": "b", **row}], old))
    table.commit(Change((file,), (), None))
    early = NOON - timedelta(days=1)
    LakeSink(spark, given).write(frame(spark, _records(("a", {"n": 2})), start=1, time=early), 0)
    rows = read_rows(given)
    found = zip(*(rows[name].to_pylist() for name in ("_key", "_topic", "n")), strict=True)
    assert sorted(found) == [("a", "t", 2), ("b", None, 1)]


def _numbers(given: PipelineSettings) -> dict[str, int]:
    rows = read_rows(given)
    return dict(zip(rows["_key"].to_pylist(), rows["n"].to_pylist(), strict=True))


def _orphans(folder: Path, sink: LakeSink) -> set[str]:
    """Files that neither the table nor its older states need."""
    found = {f"file://{path}" for path in folder.rglob("*.parquet")}
    return found - sink.table.referenced()
