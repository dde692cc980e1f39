"""Columns keep their values under whatever name they have today, and a new column never takes an old one's."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch.errors import TableError
from anabranch.pipeline.lake.formats.field_numbers import named_as_today
from anabranch.pipeline.lake.rows.arrow_types import conform


def _field(number: int, name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


def _list_of(number: int, kind: pa.DataType) -> pa.DataType:
    return pa.list_(_field(number, "element", kind))


def _map_to(number: int, kind: pa.DataType) -> pa.DataType:
    return pa.map_(pa.field("key", pa.string(), nullable=False), _field(number, "value", kind))


def _today(rows: list[dict[str, Any]], then: pa.Schema, now: pa.Schema) -> list[dict[str, Any]]:
    """Rows of a file of those days, through a real file."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, then), sink)
    table = pq.read_table(pa.BufferReader(sink.getvalue()))
    found: list[dict[str, Any]] = conform(named_as_today(table, now), now).to_pylist()
    return found


def test_columns_that_swapped_names_keep_their_values() -> None:
    then = pa.schema([_field(1, "a", pa.int32()), _field(2, "b", pa.string())])
    now = pa.schema([_field(2, "a", pa.string()), _field(1, "b", pa.int64())])
    assert _today([{"a": 1, "b": "x"}], then, now) == [{"a": "x", "b": 1}]


def test_a_column_that_was_dropped_and_added_again_is_another() -> None:
    then = pa.schema([_field(1, "a", pa.int64()), _field(2, "b", pa.string())])
    now = pa.schema([_field(1, "a", pa.int64()), _field(3, "b", pa.string())])
    assert _today([{"a": 1, "b": "old"}], then, now) == [{"a": 1, "b": None}]


def test_fields_within_objects_and_lists_are_found_too() -> None:
    inner = pa.struct([_field(3, "x", pa.int64()), _field(4, "y", pa.int64())])
    then = pa.schema(
        [_field(1, "s", inner), _field(2, "l", _list_of(5, pa.struct([_field(6, "x", pa.int64())])))]
    )
    renamed = pa.struct([_field(7, "x", pa.int64()), _field(3, "z", pa.int64())])
    now = pa.schema(
        [_field(2, "l", _list_of(5, pa.struct([_field(6, "w", pa.int64())]))), _field(1, "t", renamed)]
    )
    rows = [{"s": {"x": 1, "y": 2}, "l": [{"x": 3}, None]}, {"s": None, "l": None}, {"s": {}, "l": []}]
    assert _today(rows, then, now) == [
        {"l": [{"w": 3}, None], "t": {"x": None, "z": 1}},
        {"l": None, "t": None},
        {"l": [], "t": {"x": None, "z": None}},
    ]


def test_a_file_without_numbers_and_a_table_without_them_go_by_name() -> None:
    plain = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    numbered = pa.schema([_field(1, "a", pa.int64())])
    assert _today([{"a": 1, "b": 2}], plain, numbered) == [{"a": 1}]
    assert _today([{"a": 1}], numbered, plain) == [{"a": 1, "b": None}]


def test_what_changed_within_a_map_is_refused_and_no_null_is_written() -> None:
    then = pa.schema([_field(1, "m", _map_to(2, pa.struct([_field(3, "x", pa.int64())])))])
    assert _today([{"m": [("k", {"x": 1})]}], then, then) == [{"m": [("k", {"x": 1})]}]
    now = pa.schema([_field(1, "m", _map_to(2, pa.struct([_field(3, "z", pa.int64())])))])
    with pytest.raises(TableError, match="inside the column m were renamed"):
        _today([{"m": [("k", {"x": 1})]}], then, now)


def test_an_empty_file_has_todays_columns() -> None:
    then = pa.schema([_field(1, "s", pa.struct([_field(2, "x", pa.int64())]))])
    now = pa.schema([_field(1, "s", pa.struct([_field(2, "z", pa.int64())]))])
    assert _today([], then, now) == []
