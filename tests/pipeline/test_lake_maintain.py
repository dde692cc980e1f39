"""Small files become few, old states go, and a pipeline that runs at the same time loses nothing."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import load_catalog

from anabranch.pipeline.jobs.table_rows import read_table
from anabranch.pipeline.lake.formats.table import open_table
from anabranch.pipeline.lake.maintain import maintain
from anabranch.pipeline.lake.sink import LakeSink
from support.lake_tables import frame, json_records, read_rows, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("iceberg", "delta", "parquet")


@pytest.mark.parametrize("to", FORMATS)
def test_small_files_are_merged_by_partition_and_no_row_changes(
    spark: "SparkSession", tmp_path: Path, to: str
) -> None:
    given = settings(tmp_path, to=to, partition_by=("c",))
    sink = LakeSink(spark, given)
    for batch in range(3):
        values = [{"c": "x", "n": batch}, {"c": None, "n": batch, f"new{batch}": {"deep": [batch]}}]
        sink.write(frame(spark, json_records(values), start=2 * batch, slices=1), batch)
    before = read_rows(given)
    state = open_table(given).state()
    untold = replace(given, partition_by=())  # The table knows.
    done = maintain(spark, untold, expire_seconds=0, orphan_seconds=0)
    assert (done.files_merged, done.files_made) == (6, 2)
    assert read_rows(given).to_pylist() == before.select(read_rows(given).column_names).to_pylist()
    assert open_table(given).state() == state
    on_disk = {path for path in tmp_path.rglob("*.parquet") if "_delta_log" not in path.parts}
    assert len(on_disk) == 2


def test_a_renamed_column_is_read_and_merged_with_its_values(spark: "SparkSession", tmp_path: Path) -> None:
    """As another engine renames one of Iceberg: in the files it keeps its old name."""
    given = settings(tmp_path)
    sink = LakeSink(spark, given)
    for batch in range(2):
        sink.write(frame(spark, json_records([{"s": {"n": batch}}]), start=batch, slices=1), batch)
    catalog = load_catalog("anabranch", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")
    with catalog.load_table("default.rows").update_schema() as update:
        update.rename_column("s", "sale")
        update.rename_column("s.n", "amount")
    catalog.close()
    rows = read_table(spark, given, ["sale"]).collect()
    assert sorted(row.sale.amount for row in rows) == [0, 1]
    assert maintain(spark, given).files_merged == 2
    assert read_rows(given)["sale"].to_pylist() == [{"amount": 0}, {"amount": 1}]


@pytest.mark.parametrize("to", FORMATS)
def test_a_pipeline_that_is_overtaken_by_a_merge_commits_all_the_same(
    spark: "SparkSession", tmp_path: Path, to: str
) -> None:
    given = settings(tmp_path, to=to)

    def merge_before_the_third_commit(step: str) -> None:
        if step == "written" and sink.counts.batches == 2:
            assert maintain(spark, given).files_made == 1

    sink = LakeSink(spark, given, merge_before_the_third_commit)
    for batch in range(3):
        sink.write(frame(spark, json_records([{"n": batch}]), start=batch, slices=1), batch)
    assert read_rows(given)["n"].to_pylist() == [0, 1, 2]
    state = open_table(given).state()
    assert state is not None
    assert (state.batch, state.rows) == (2, 3)
    assert len(open_table(given).files()) == 2


@pytest.mark.parametrize("to", FORMATS)
def test_two_processes_of_one_pipeline_write_a_batch_once(
    spark: "SparkSession", tmp_path: Path, to: str
) -> None:
    """As when a driver was thought dead: both wrote their files, the second one's commit comes too late."""
    given = settings(tmp_path, to=to)
    records = json_records([{"n": 1}])
    LakeSink(spark, given).write(frame(spark, json_records([{"n": 0}])), 0)

    def the_other_is_quicker(step: str) -> None:
        if step == "written":
            LakeSink(spark, given).write(frame(spark, records, start=1), 1)

    slow = LakeSink(spark, given, the_other_is_quicker)
    assert slow.write(frame(spark, records, start=1), 1).skipped == 1
    assert read_rows(given)["n"].to_pylist() == [0, 1]


@pytest.mark.parametrize("to", FORMATS)
def test_an_upsert_that_is_overtaken_by_a_merge_is_written_again(
    spark: "SparkSession", tmp_path: Path, to: str
) -> None:
    given = settings(tmp_path, to=to, mode="upsert")
    merges: list[int] = []

    def merge_once(step: str) -> None:
        if step == "written" and sink.counts.batches == 2 and not merges:
            merges.append(maintain(spark, given).files_made)

    sink = LakeSink(spark, given, merge_once)
    for batch in range(3):
        records = [(b"a", b'{"n": %d}' % batch), (b"k%d" % batch, b'{"n": %d}' % batch)]
        sink.write(frame(spark, records, start=2 * batch, slices=1), batch)
    assert merges == [1]
    rows = read_rows(given)
    assert sorted(zip(rows["_key"].to_pylist(), rows["n"].to_pylist(), strict=True)) == [
        ("a", 2),
        ("k0", 0),
        ("k1", 1),
        ("k2", 2),
    ]
