"""What two tasks have seen becomes one schema; the first has its way where they disagree."""

import pyarrow as pa

from anabranch.pipeline.lake.evolution import grown_columns
from anabranch.pipeline.lake.infer import merged, merged_fields
from anabranch.pipeline.lake.report import Report


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
    assert Report().grown_schema(pa.schema([("a", pa.int64())])) is None


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
