"""Rows sorted into partitions, small files put together, upserts reduced to the last of each key."""

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from anabranch.errors import TableError
from anabranch.pipeline.lake.change import DataFile, SourceState
from anabranch.pipeline.lake.files import FilePlan, RejectFile, write_rows
from anabranch.pipeline.lake.identity import Identity
from anabranch.pipeline.lake.maintain import small_groups
from anabranch.pipeline.lake.partitioning import check_partitions, field_names, folder_of, split
from anabranch.pipeline.lake.rewrite import without
from anabranch.pipeline.lake.rows.arrow_types import TIMESTAMP, conform
from anabranch.pipeline.lake.settings import PartitionField
from anabranch.pipeline.lake.upsert import (
    PART_BYTES_MAX,
    PART_ROWS_MAX,
    Upserts,
    parquet_parts,
    read_rows,
    row_parts,
)


def test_rows_are_split_by_every_combination_of_values() -> None:
    times = [datetime(2026, 3, day, 23, tzinfo=UTC) for day in (1, 2, 1, 1)]
    rows = pa.table({"c": ["x", "x", None, "x"], "at": pa.array(times, TIMESTAMP), "n": [0, 1, 2, 3]})
    parts = (PartitionField("c"), PartitionField("at", "day"))
    found = {values: sorted(part["n"].to_pylist()) for values, part in split(rows, parts)}
    assert found == {("x", "2026-03-01"): [0, 3], ("x", "2026-03-02"): [1], (None, "2026-03-01"): [2]}


def test_a_folder_is_named_after_its_values_without_what_needs_escaping() -> None:
    parts = (PartitionField("c"), PartitionField("at", "day"))
    assert folder_of(parts, ("a/b %", None)) == "c=a_b__/at_day=null/"
    assert folder_of((), ()) == ""


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (PartitionField("z"), "no such column"),
        (PartitionField("s", "day"), "needs a column of times"),
        (PartitionField("at"), r"take day\(at\)"),
        (PartitionField("o"), "of type object"),
        (PartitionField("f"), "of type double"),
    ],
)
def test_what_cannot_be_partitioned_by_is_refused(part: PartitionField, words: str) -> None:
    schema = pa.schema(
        [("s", pa.string()), ("at", TIMESTAMP), ("o", pa.struct([("a", pa.int64())])), ("f", pa.float64())]
    )
    with pytest.raises(TableError, match=words):
        check_partitions(schema, (part,))


def test_a_partition_field_gets_a_name_that_no_column_has() -> None:
    parts = (PartitionField("c"), PartitionField("at", "day"))
    assert field_names(parts, ["c", "at"]) == ["c", "at_day"]
    assert field_names(parts, ["c", "at", "AT_DAY", "at_day_"]) == ["c", "at_day__"]


def _file(name: str, size: int, *partition: str) -> DataFile:
    return DataFile(name, 1, size, partition)


def test_small_files_of_one_partition_are_put_together_up_to_the_size() -> None:
    files = [
        _file("a", 40, "x"),
        _file("b", 40, "x"),
        _file("c", 40, "x"),
        _file("d", 40, "x"),
        _file("e", 90, "x"),
    ]
    files += [_file("f", 10, "y"), _file("g", 10, "z"), _file("h", 10, "z")]
    groups = [[file.path for file in group] for group in small_groups(files, 100)]
    assert groups == [["a", "b"], ["c", "d"], ["g", "h"]]


def test_rows_with_touched_keys_go_and_nested_columns_stay() -> None:
    rows = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"], "o": [{"n": 1}, {"n": 2}, {"n": 3}]})
    touched = pa.table({"a": [1, 9], "b": ["x", "x"]})
    assert without(rows, touched, ("a", "b"))["o"].to_pylist() == [{"n": 2}, {"n": 3}]


def test_tables_conform_inside_lists_and_objects() -> None:
    narrow = pa.table({"l": pa.array([[{"a": 1}], None, [], [{"a": 2}, None]])})
    wide = pa.schema(
        [
            ("l", pa.list_(pa.field("element", pa.struct([("b", pa.string()), ("a", pa.float64())])))),
            ("n", pa.int32()),
        ]
    )
    found = conform(narrow.slice(1), wide)
    assert found["l"].to_pylist() == [None, [], [{"b": None, "a": 2.0}, None]]
    assert found["n"].to_pylist() == [None] * 3


def test_a_pipeline_follows_its_own_state_or_the_one_it_took_over() -> None:
    mine = Identity(1, SourceState(2, 5, {0: 10}))
    assert mine.may_follow(None)
    assert mine.may_follow(SourceState(1, 0))
    assert mine.may_follow(SourceState(2, 5))
    assert not mine.may_follow(SourceState(2, 6))
    assert not mine.may_follow(SourceState(3, 5))


def test_a_state_that_cannot_be_read_is_an_error_and_not_a_start() -> None:
    with pytest.raises(TableError, match="cannot be read"):
        SourceState.from_json('{"owner": 1}')


def test_records_that_all_lack_the_key_are_rejected_and_nothing_else_is_left_to_do() -> None:
    rejected: list[tuple[int, str]] = []
    rejects = SimpleNamespace(take=lambda records, reason: rejected.append((records.num_rows, reason)))
    upserts = Upserts(("nosuch",), raw=False)
    rows = pa.table({"a": [1, 2]})
    upserts.take_rows(rows, rows, rejects)
    latest = upserts.latest(rows.schema)
    assert rejected == [(2, "an upsert needs nosuch, which is null or missing")]
    assert (latest.rows.num_rows, latest.keys.num_rows, latest.applied) == (0, 0, 0)


def _plan(folder: Path, columns: pa.Schema, files: pa.Schema, *parts: PartitionField) -> FilePlan:
    return FilePlan(f"file://{folder}", f"file://{folder}", 0, columns, files, parts)


def test_large_records_that_were_rejected_are_read_few_at_a_time(tmp_path: Path) -> None:
    letters = pa.table({"value": pa.array([b"x" * 2**20] * 100, pa.binary())})
    rejects = RejectFile(_plan(tmp_path, letters.schema, letters.schema))
    rejects.take(letters, "no object")
    (file,) = rejects.finish()
    parts = list(parquet_parts(file.path))
    assert sum(part.num_rows for part in parts) == 100
    assert max(part.nbytes for part in parts) <= PART_BYTES_MAX * 1.1


def test_small_rows_are_read_many_at_a_time_and_of_the_wanted_columns_alone(tmp_path: Path) -> None:
    columns = pa.schema([("c", pa.string()), ("n", pa.int64()), ("late", pa.string()), ("more", pa.string())])
    plan = _plan(
        tmp_path, columns, pa.schema([columns.field("n"), columns.field("more")]), PartitionField("c")
    )
    rows = pa.table({"n": range(2 * PART_ROWS_MAX + 1), "more": ["x"] * (2 * PART_ROWS_MAX + 1)})
    file = write_rows(plan, ("C",), rows)
    names = ("late", "c", "n")
    parts = list(row_parts(file, plan, names))
    assert [part.num_rows for part in parts] == [PART_ROWS_MAX, PART_ROWS_MAX, 1]
    assert pa.concat_tables(parts) == read_rows(file, plan).select(names)
    wanted = pa.schema([columns.field(name) for name in names])
    assert [part.schema.names for part in parquet_parts(file.path, wanted)] == [["n"]] * 3
