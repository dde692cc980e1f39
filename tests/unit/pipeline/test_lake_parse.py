"""Records to rows: what fits, what grows a column, what is refused and in which words; both ways agree."""

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.pipeline.lake.rows.arrow_types import TIMESTAMP
from anabranch.pipeline.lake.rows.infer import DEPTH_MAX
from anabranch.pipeline.lake.rows.parse import TRACE, JsonParser, Parsed
from anabranch.pipeline.lake.rows.quick_json import parse_quickly

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def records(values: list[bytes | None], keys: list[bytes | None] | None = None) -> pa.Table:
    count = len(values)
    return pa.table(
        {
            "key": pa.array(keys or [b"k"] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(["t"] * count, pa.string()),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.array([NOON] * count, TIMESTAMP),
        }
    )


def columns(**kinds: pa.DataType) -> pa.Schema:
    return pa.schema([*TRACE, *(pa.field(name, kind) for name, kind in kinds.items())])


def parse(schema: pa.Schema, values: list[bytes | None], **options: Any) -> Parsed:
    parser = JsonParser(schema, **options)
    parsed = parser.parse(records(values))
    assert not parser.has_grown
    return parsed


def grown(*values: Any, known: pa.Schema = TRACE) -> dict[str, pa.DataType]:
    """The columns that these values add to the trace columns."""
    parser = JsonParser(known)
    parser.parse(records([json.dumps(value).encode() for value in values]))
    return {field.name: field.type for field in parser.schema if field.name not in TRACE.names}


def reason(schema: pa.Schema, value: bytes, **options: Any) -> str:
    """Why this one is refused, between two that are not."""
    parsed = parse(schema, [b"{}", value, b"{}"], **options)
    assert parsed.reasons.to_pylist()[::2] == [None, None]
    assert parsed.origin.to_pylist() == [0, 2]
    found = parsed.reasons[1].as_py()
    assert isinstance(found, str), "it was not refused"
    return found


def test_types_are_those_of_the_values() -> None:
    found = grown({"i": 1, "f": 1.5, "s": "x", "b": True, "o": {"n": 1}, "l": ["x"]})
    assert found == {
        "i": pa.int64(),
        "f": pa.float64(),
        "s": pa.string(),
        "b": pa.bool_(),
        "o": pa.struct([("n", pa.int64())]),
        "l": pa.list_(pa.string()),
    }


def test_whole_and_other_numbers_in_a_new_column_make_it_double() -> None:
    assert grown({"x": 1}, {"x": 1.5}) == grown({"x": 1.5}, {"x": 1}) == {"x": pa.float64()}


def test_a_string_that_looks_like_a_time_stays_a_string() -> None:
    assert grown({"x": "2026-03-01 12:00:00"}) == {"x": pa.string()}


@pytest.mark.parametrize("nothing", [None, {}, [], [None], {"inner": None}])
def test_what_says_nothing_of_a_type_makes_no_column(nothing: object) -> None:
    assert grown({"x": nothing}) == {}
    assert grown({"x": nothing}, {"y": 1}) == {"y": pa.int64()}


def test_an_object_of_the_table_grows_inside() -> None:
    known = columns(o=pa.struct([("a", pa.int64())]))
    assert grown({"o": {"b": "x"}}, known=known) == {"o": pa.struct([("a", pa.int64()), ("b", pa.string())])}


def test_an_int_column_widens_when_it_has_to() -> None:
    assert grown({"x": 2**31}, known=columns(x=pa.int32())) == {"x": pa.int64()}
    assert grown({"x": 3e9}, known=columns(x=pa.int32())) == {"x": pa.int64()}
    assert grown({"x": 2**31 - 1}, known=columns(x=pa.int32())) == {"x": pa.int32()}


@pytest.mark.parametrize(
    ("known", "value", "where"),
    [
        (columns(x=pa.int32()), {"x": 2**31}, "x"),
        (columns(o=pa.struct([("l", pa.list_(pa.int32()))])), {"o": {"l": [1, 2**31]}}, "o.l[]"),
    ],
)
def test_where_columns_cannot_widen_a_value_that_would_need_it_is_refused(
    known: pa.Schema, value: Any, where: str
) -> None:
    words = reason(known, json.dumps(value).encode(), widens=False)
    assert words.startswith(f"{where} has a number that does not fit its column")


def test_where_columns_cannot_widen_new_ones_still_come() -> None:
    parser = JsonParser(columns(x=pa.int32()), widens=False)
    parser.parse(records([b'{"x": 1, "y": 2}']))
    assert parser.schema.field("y").type == pa.int64()


def test_a_number_too_large_for_a_short_column_is_refused() -> None:
    assert "does not fit the column's type, int16" in reason(columns(x=pa.int16()), b'{"x": 40000}')


def test_fields_that_are_missing_are_null() -> None:
    parsed = parse(columns(a=pa.int64(), b=pa.string()), [b'{"a": 1}', b'{"b": "x"}', None])
    assert parsed.rows["a"].to_pylist() == [1, None, None]
    assert parsed.rows["b"].to_pylist() == [None, "x", None]


def test_rows_say_where_they_came_from() -> None:
    row = parse(columns(a=pa.int64()), [b'{"a": 1}']).rows.to_pylist()[0]
    assert row == {"_key": "k", "_topic": "t", "_partition": 0, "_offset": 0, "_timestamp": NOON, "a": 1}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"no json", "not JSON"),
        (b"", "not JSON"),
        (b'{"a": 1', "not JSON"),
        (b'{"a": 1}{"a": 2}', "not JSON"),
        (b"[1]", "no object: list"),
        (b"null", "no object"),
        (b'{"a": "x"}', "a: 'x' does not fit the column's type, long"),
        (b'{"a": 1.5}', "a: 1.5 does not fit"),
        (b'{"a": true}', "a: True does not fit"),
        (b'{"a": 9223372036854775808}', "does not fit a long"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"s": "\xff"}', "not UTF-8"),
        (b'{"s": "\\ud800"}', "surrogate"),
        (b'{"s": 1}', "does not fit the column's type, string"),
        (b'{"_offset": 7}', "_offset is a column of the pipeline"),
        (b'{"_topic": "x"}', "_topic is a column of the pipeline"),
        (b'{"A": 1}', "only in case"),
        (b'{"new column": 1}', "cannot name a column"),
        (b'{"": 1}', "cannot name a column"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"x":' * 5000 + b"1" + b"}" * 5000, "nested too deeply"),
        (b'{"x":' * 400 + b"1" + b"}" * 400, "nested too deeply"),
        (b'{"x":' + b"[" * 600 + b"]" * 600 + b"}", "nested too deeply"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(value: bytes, words: str) -> None:
    assert words in reason(columns(a=pa.int64(), s=pa.string()), value)


def deep(levels: int, inside: bytes = b"1") -> bytes:
    """Objects and arrays in turn."""
    return b'{"x":[' * (levels // 2) + inside + b"]}" * (levels // 2)


def test_a_value_is_nested_as_deeply_as_each_format_can_keep_and_no_more() -> None:
    parser = JsonParser(TRACE)
    parsed = parser.parse(records([deep(DEPTH_MAX), deep(DEPTH_MAX, b"{}"), deep(DEPTH_MAX, b"[]")]))
    assert parsed.reasons.is_valid().to_pylist() == [False, True, True]
    known = parser.schema
    wide = b'{"x": [' + b",".join([deep(DEPTH_MAX - 2)] * 5) + b"]}"
    parsed = parse(known, [deep(DEPTH_MAX), wide, deep(DEPTH_MAX + 2)])
    assert parsed.origin.to_pylist() == [0, 1]


def test_columns_deeper_than_that_are_no_way_around_it() -> None:
    """Another engine may have made them: what becomes of a record does not depend on which way it goes."""
    kind: pa.DataType = pa.int64()
    for _ in range(DEPTH_MAX // 2 + 1):
        kind = pa.struct([("x", pa.list_(pa.field("element", kind)))])
    known = pa.schema([*TRACE, *kind.fields])
    assert "nested too deeply" in reason(known, deep(DEPTH_MAX + 2))


@pytest.mark.parametrize(("value", "what"), [({"a": 1}, "an object"), ([1], "an array"), ([], "an array")])
def test_what_is_nested_is_no_key_of_an_upsert(value: object, what: str) -> None:
    text = json.dumps({"id": value}).encode()
    words = f"id is {what}: an upsert goes by it, and needs a single value"
    assert reason(TRACE, text, key=("id",)) == reason(columns(id=pa.int64()), text, key=("id",)) == words


def test_a_key_column_that_is_nested_already_takes_nothing() -> None:
    known = columns(id=pa.struct([("a", pa.int64())]))
    assert "needs a single value" in reason(known, b'{"id": {"a": 1}}', key=("id",))


def test_a_key_that_is_no_text_is_refused() -> None:
    parser = JsonParser(columns(a=pa.int64()))
    parsed = parser.parse(records([b'{"a": 1}'] * 3, [b"k", b"\xff", None]))
    assert parsed.origin.to_pylist() == [0, 2]
    assert "not UTF-8" in parsed.reasons[1].as_py()
    assert parsed.rows["_key"].to_pylist() == ["k", None]


def test_two_halves_of_an_object_are_not_taken_for_one() -> None:
    parsed = parse(columns(a=pa.int64()), [b'{"a": 1}{"a": 2}', b'{"a":', b"3}"])
    assert parsed.rows.num_rows == 0
    assert parsed.reasons.null_count == 0


def test_a_number_with_a_fraction_of_zero_is_whole() -> None:
    assert parse(columns(a=pa.int64()), [b'{"a": 1.0}', b'{"a": 1e3}']).rows["a"].to_pylist() == [1, 1000]


def test_times_are_read_where_the_column_is_one() -> None:
    parsed = parse(
        columns(t=TIMESTAMP), [b'{"t": "2026-03-01T12:00:00Z"}', b'{"t": "2026-03-01T13:00:00+01:00"}']
    )
    assert parsed.rows["t"].to_pylist() == [NOON, NOON]
    assert "does not fit the column's type, timestamp" in reason(columns(t=TIMESTAMP), b'{"t": "yesterday"}')
    assert "timestamp" in reason(columns(t=TIMESTAMP), b'{"t": "2026-03-01T12:00:00"}')


def test_a_given_schema_takes_nothing_it_does_not_name() -> None:
    known = columns(a=pa.int64(), o=pa.struct([("n", pa.int64())]))
    assert reason(known, b'{"b": 1}', fixed=True) == "b is not in the JSON Schema"
    assert reason(known, b'{"o": {"m": 1}}', fixed=True) == "o.m is not in the JSON Schema"


@pytest.mark.parametrize("name", ["at_day", "AT_DAY"])
def test_a_field_named_like_what_the_table_is_partitioned_by_is_refused(name: str) -> None:
    value = json.dumps({name: 1}).encode()
    assert "is partitioned by" in reason(TRACE, value, reserved=frozenset({"at_day"}))
    assert (
        parse(TRACE, [json.dumps({name: None}).encode()], reserved=frozenset({"at_day"})).rows.num_rows == 1
    )


def test_what_is_required_must_be_there() -> None:
    known = columns(a=pa.int64(), o=pa.struct([("n", pa.int64())]))
    parsed = parse(known, [b'{"a": 1}', b'{"a": null}', b"{}"], fixed=True, required=[("a",)])
    assert parsed.reasons.to_pylist() == [None, *["a is required, and missing or null"] * 2]
    assert "o.n is required" in reason(known, b'{"o": {}}', required=[("o", "n")])


def test_one_bad_record_does_not_send_its_neighbours_elsewhere() -> None:
    values: list[bytes | None] = [b'{"a": %d}' % number for number in range(5000)]
    values[2500] = b"bad"
    parsed = parse(columns(a=pa.int64()), values)
    assert parsed.rows["a"].to_pylist() == [number for number in range(5000) if number != 2500]
    assert parsed.origin.to_pylist() == parsed.rows["_offset"].to_pylist() == parsed.rows["a"].to_pylist()


@pytest.mark.parametrize(
    "value",
    [
        b'{"i": 1, "i": 2}',
        b'{"i": 1, "i": "x"}',
        b'{"i": "x", "i": 1}',
        b'{"o": {"i": 1}, "o": {}}',
        b'{"_offset": null}',
        b'{"i": -0}',
        b'{"f": 1e400}',
        b'{"f": -0.0}',
        b'{"f": 12345678901234567890123}',
        b'{"i": 01}',
        b'{"i": +1}',
        b'{"s": "a\tb"}',
        b'{"s": "\\u0000"}',
        b'{"s": "\\ud83d\\ude00"}',
        b"{'s': 1}",
        b'{"i": 1,}',
        b'{"i": 1} ',
        b'{"i": 1} // }',
        b'{"t": "2026-03-01T12:00:00.123456789Z"}',
        b'{"t": "2026-03-01 12:00Z"}',
        b'{"t": "20260301T120000Z"}',
    ],
)
def test_both_ways_agree_on_what_is_odd(value: bytes) -> None:
    """Whether the quick way takes it or not, the record ends as the slow way says."""
    slow = JsonParser(KNOWN)._slowly(records([value]))
    parsed = parse(KNOWN, [value])
    assert parsed.reasons.to_pylist() == slow.reasons.to_pylist()
    assert parsed.rows.to_pylist() == slow.rows.to_pylist()


KNOWN = columns(
    i=pa.int64(),
    f=pa.float64(),
    s=pa.string(),
    b=pa.bool_(),
    t=TIMESTAMP,
    l=pa.list_(pa.int64()),
    o=pa.struct([("i", pa.int64()), ("l", pa.list_(pa.struct([("s", pa.string())])))]),
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["2026-03-01T12:00:00Z", "2026-03-01", "2026-03-01T12:00:00.123456789+00:00"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("iflsbto"), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from("iflsbto"), values, max_size=4))
def test_the_quick_way_takes_nothing_that_the_slow_way_refuses(value: dict[str, Any]) -> None:
    text = json.dumps(value).encode()
    known = pa.schema([field for field in KNOWN if field.name not in TRACE.names])
    quick = parse_quickly(pa.array([text], pa.binary()), known, True)
    slow = JsonParser(KNOWN, fixed=True)._slowly(records([text]))
    if quick is not None:
        assert slow.reasons.to_pylist() == [None]
        assert slow.rows.select(known.names).to_pylist() == quick.to_pylist()


def test_refused_record_goes_to_the_dead_letters_with_the_reason() -> None:
    parser = JsonParser(TRACE, columns_max=20)
    wide = json.dumps({f"field_{number}": number for number in range(100)}).encode()
    parsed = parser.parse(records([b'{"a": 1}', wide, b'{"b": 2}']))
    assert parsed.reasons.to_pylist() == [
        None,
        "'field_14' would give the table more than 20 columns, fields of objects counted: raise the pipeline's "
        "columns_max if they are wanted",
        None,
    ]
    assert parser.has_grown
    assert parser.schema.names == [*TRACE.names, "a", "b"]
