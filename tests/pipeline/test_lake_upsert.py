"""Upserts: the last record of a key is the row, a tombstone takes it away; the same in each format."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from anabranch.pipeline.lake.sink import LakeSink
from support.lake_tables import Record, frame, read_rows, settings
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
        ("x", {"o": "A", "p": 1, "n": 1}),
        ("y", {"o": "A", "p": 1, "n": 2}),
        ("z", {"o": "B", "p": 1, "n": 3}),
    )
    sink.write(frame(spark, first, slices=3), 0)
    second = _records(("x", {"o": "B", "p": 1, "n": 4}), ("y", None), ("z", {"o": "B"}))
    counts = sink.write(frame(spark, second, start=3), 1)
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
