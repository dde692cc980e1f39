"""What two tasks have seen becomes one schema; the first has its way where they disagree."""

import pyarrow as pa

from anabranch.pipeline.lake.report import Report
from anabranch.pipeline.lake.rows.evolution import grown_columns
from anabranch.pipeline.lake.rows.infer import capped_fields, count_fields, merged, merged_fields


def test_long_and_double_make_double_only_in_a_new_column() -> None:
    assert merged(pa.int64(), pa.float64(), None) == pa.float64()
    assert merged(pa.float64(), pa.int64(), None) == pa.float64()
    assert merged(pa.int64(), pa.float64(), pa.int64()) == pa.int64()


def test_int_and_long_make_long_whichever_came_first() -> None:
    assert (
        merged(pa.int32(), pa.int64(), pa.int32()) == merged(pa.int64(), pa.int32(), pa.int32()) == pa.int64()
    )


def test_the_first_type_stays_where_the_second_contradicts() -> None:
    assert merged(pa.string(), pa.int64(), None) == pa.string()
    assert merged(pa.list_(pa.string()), pa.int64(), None) == pa.list_(pa.string())


def test_objects_and_lists_are_merged_inside() -> None:
    first = pa.struct([("a", pa.int64()), ("l", pa.list_(pa.field("element", pa.int64())))])
    second = pa.struct([("l", pa.list_(pa.field("element", pa.float64()))), ("b", pa.string())])
    wanted = pa.struct(
        [("a", pa.int64()), ("l", pa.list_(pa.field("element", pa.float64()))), ("b", pa.string())]
    )
    assert merged(first, second, None).equals(wanted)


def test_names_that_differ_only_in_case_do_not_become_two_columns() -> None:
    fields = merged_fields([pa.field("a", pa.int64())], [pa.field("A", pa.int64())], None)
    assert [field.name for field in fields] == ["a"]


def test_a_report_without_discoveries_has_no_grown_schema() -> None:
    assert Report().grown_schema(pa.schema([("a", pa.int64())]), 1000) is None


def test_columns_are_grown_by_what_is_new_and_wider() -> None:
    known = pa.schema([("a", pa.int32()), ("b", pa.int64())])
    wanted = pa.schema([("b", pa.int32()), ("a", pa.int64()), ("c", pa.string())])
    assert grown_columns(known, wanted) == pa.schema(
        [("a", pa.int64()), ("b", pa.int64()), ("c", pa.string())]
    )
    assert grown_columns(known, known) is None


def test_columns_that_cannot_widen_stay_as_they_are() -> None:
    known = pa.schema([("a", pa.int32()), ("o", pa.struct([("f", pa.float32())]))])
    wanted = pa.schema([("a", pa.int64()), ("o", pa.struct([("f", pa.float64())])), ("c", pa.string())])
    assert grown_columns(known, wanted, widens=False) == pa.schema([*known, ("c", pa.string())])


def test_columns_of_many_tasks_together_stay_below_the_limit() -> None:
    known = pa.schema([("a", pa.int64())])
    report = Report()
    report.grown = [
        pa.schema([("a", pa.int64()), *((f"{task}_{number}", pa.int64()) for number in range(8))])
        for task in range(3)
    ]
    grown = report.grown_schema(known, 10)
    assert grown is not None
    assert grown.names == ["a", *(f"0_{number}" for number in range(8)), "1_0"]


def test_fields_of_objects_count_and_what_the_table_has_stays() -> None:
    inner = pa.struct([("x", pa.int64()), ("y", pa.list_(pa.struct([("z", pa.int64())])))])
    known = pa.struct([("old", inner)])
    assert count_fields(known) == 4
    wanted = [pa.field("old", inner), pa.field("new", inner), pa.field("last", pa.string())]
    assert capped_fields(wanted, known, 2) == [pa.field("old", inner)]
    kept = capped_fields(wanted, known, 6)
    assert [field.name for field in kept] == ["old", "new"]
    assert count_fields(pa.struct(kept)) == 6
