"""Columns grow with the records, within a limit, at a cost that the record alone decides."""

from typing import Any

import pyarrow as pa
import pytest

from anabranch.pipeline.lake.rows import column_tree
from anabranch.pipeline.lake.rows.column_tree import ColumnTree
from anabranch.pipeline.lake.rows.infer import MisfitError


def grown(tree: ColumnTree) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in tree.fields()}


def test_record_with_too_many_fields_does_not_fit_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    whole = column_tree.check_name
    monkeypatch.setattr(column_tree, "check_name", lambda *given: (checked.append(given[0]), whole(*given)))
    tree = ColumnTree([pa.field("a", pa.int64())], columns_max=1000)
    with pytest.raises(MisfitError, match="more than 1000 columns"):
        tree.take({f"field_{number}": number for number in range(50_000)})
    assert len(checked) == 1000, "the work ends at the limit, not with the record"
    assert grown(tree) == {"a": pa.int64()}
    assert tree.take({"b": 1}), "what was refused takes no room"


def test_limit_counts_fields_inside_of_objects_and_lists() -> None:
    tree = ColumnTree([], columns_max=5)
    tree.take({"a": {"x": 1}, "b": [{"y": 1}]})
    with pytest.raises(MisfitError, match=r"'a\.more\.z' would give the table more than 5 columns"):
        tree.take({"a": {"more": {"y": 1, "z": 2}}})
    assert tree.take({"c": 1})


def test_table_that_has_more_columns_already_is_filled_and_does_not_grow() -> None:
    tree = ColumnTree([pa.field(f"c{number}", pa.int64()) for number in range(9)], columns_max=5)
    assert not tree.take({"c8": 1})
    with pytest.raises(MisfitError, match="more than 5 columns"):
        tree.take({"new": 1})


@pytest.mark.parametrize(
    "bad",
    [
        {"new": 1, "n": 2**40, "a": {"x": 1.5, "z": 1}, "l": [1, 2.5], "s": 7},
        {"new": {"deep": [1, 2.5]}, "a": {"x": {}, "w": {"v": 1}}, "s": {"no": 1}},
        {"l": [1.5, "text"]},
        {"a": {"x": 1, "X": 2}},
    ],
)
def test_record_that_does_not_fit_changes_nothing(bad: dict[str, Any]) -> None:
    tree = ColumnTree([pa.field("n", pa.int32()), pa.field("s", pa.string())])
    tree.take({"a": {"x": 1}, "l": [1]})
    before = grown(tree)
    with pytest.raises(MisfitError):
        tree.take(bad)
    assert grown(tree) == before
    assert not tree.take({"a": {"x": 2}, "l": [3], "n": 1, "s": "t"})


def test_long_columns_become_double_only_while_they_are_new() -> None:
    tree = ColumnTree([pa.field("old", pa.int64()), pa.field("list", pa.list_(pa.int64()))])
    tree.take({"new": 1})
    assert tree.take({"new": 1.5})
    assert grown(tree)["new"] == pa.float64()
    for value in ({"old": 1.5}, {"list": [1.5]}):
        with pytest.raises(MisfitError, match="does not fit"):
            tree.take(value)
