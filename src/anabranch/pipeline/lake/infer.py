"""Types of JSON values, and whether a value fits a column: the rules behind `schema=records`.

Integers are `long`, other numbers `double`, a mix of both in a new column `double`. Objects become structs, arrays
lists. Null, `{}` and `[]` say nothing about a type: such a column appears when something in it is first typed. What a
column already is decides: a later value fits it, or widens it (int to long), or does not fit, with the reason in words.
The first typed value of a new column decides likewise over those that follow.
"""

import math
import re
from typing import Any

import pyarrow as pa

from anabranch.pipeline.lake.arrow_types import TIMESTAMP, type_name

INT64 = range(-(2**63), 2**63)
EXACT_FLOAT_MAX = 2.0**53
NAME_BYTES_MAX = 255
DEPTH_MAX = 32
"""Objects and arrays inside one another, the record itself counted: Delta cannot keep fifty, Parquet and Iceberg little
more, and a table that has such a column cannot be opened again."""
TOO_DEEP = f"the value is nested too deeply: a table can have {DEPTH_MAX} levels of objects and arrays"
_UNFIT_NAME = re.compile(r"[\x00-\x1f.,;{}()=\s]")


class MisfitError(Exception):
    """Why a record cannot become a row; the message goes with it to the dead letter topic."""


def check_depth(record: dict[str, Any]) -> None:
    level: list[Any] = [record]
    for _ in range(DEPTH_MAX):
        parts = [part for outer in level for part in (outer.values() if isinstance(outer, dict) else outer)]
        level = [part for part in parts if isinstance(part, (dict, list))]
        if not level:
            return
    raise MisfitError(TOO_DEEP)


def infer(value: Any, path: str) -> pa.DataType | None:
    """The type this value asks for; None if it says nothing."""
    if isinstance(value, dict):
        grown = merge_fields([], value, path)
        return pa.struct(grown) if grown else None
    if isinstance(value, list):
        inner: pa.DataType | None = None
        for item in value:
            inner = widened(inner, item, f"{path}[]")
        return None if inner is None else pa.list_(pa.field("element", inner))
    return _infer_scalar(value, path)


def _infer_scalar(value: Any, path: str) -> pa.DataType | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        if value not in INT64:
            raise MisfitError(f"{path}: {_short(value)} does not fit a long")
        return pa.int64()
    return pa.float64() if isinstance(value, float) else pa.string()


def merge_fields(
    known: list[pa.Field], values: dict[str, Any], path: str = "", base: pa.StructType | None = None
) -> list[pa.Field]:
    """The fields after these values came by: the same list if nothing is new.

    `base` is what the table has already: only types that are not in it may still go from long to double.
    """
    places = {field.name: position for position, field in enumerate(known)}
    grown = known
    for name, value in values.items():
        where = f"{path}.{name}" if path else name
        position = places.get(name)
        before = None if position is None else grown[position].type
        kind = widened(before, value, where, _inside(base, name))
        if kind is before:
            continue
        grown = [*grown]
        if position is None:
            check_name(name, where, grown)
            places[name] = len(grown)
            grown.append(pa.field(name, kind))
        else:
            grown[position] = grown[position].with_type(kind)
    return grown


def _inside(base: pa.StructType | None, name: str) -> pa.DataType | None:
    if base is None:
        return None
    position = base.get_field_index(name)
    return None if position < 0 else base.field(position).type


def check_name(name: str, where: str, known: list[pa.Field]) -> None:
    """Could this be a column, in each of the formats?"""
    if not name or _UNFIT_NAME.search(name) or len(name.encode()) > NAME_BYTES_MAX:
        raise MisfitError(
            f"{where!r} cannot name a column: no spaces, dots or any of ,;{{}}()= are allowed in it"
        )
    folded = name.casefold()
    for field in known:
        if field.name.casefold() == folded and field.name != name:
            raise MisfitError(f"{where!r} differs only in case from the column {field.name!r}")


def widened(
    kind: pa.DataType | None, value: Any, path: str, base: pa.DataType | None = None
) -> pa.DataType | None:
    """The type of a column of `kind` that is to take `value` too: `kind` itself, the same object, if it fits."""
    if value is None:
        return kind
    if kind is None:
        return infer(value, path)
    if pa.types.is_struct(kind) and isinstance(value, dict):
        fields = list(kind.fields)
        grown = merge_fields(fields, value, path, base)
        return kind if grown is fields else pa.struct(grown)
    if pa.types.is_list(kind) and isinstance(value, list):
        before = inner = kind.value_type
        for item in value:
            inner = widened(inner, item, f"{path}[]", None if base is None else base.value_type)
        return kind if inner is before else pa.list_(pa.field("element", inner))
    return _widened_scalar(kind, value, path, base)


def _widened_scalar(kind: pa.DataType, value: Any, path: str, base: pa.DataType | None) -> pa.DataType:
    if pa.types.is_integer(kind) and isinstance(value, int) and not isinstance(value, bool):
        return _widened_integer(kind, value, path)
    if pa.types.is_int64(kind) and base is None and isinstance(value, float):
        return pa.float64()
    if _fits(kind, value):
        return _widened_integer(kind, int(value), path) if pa.types.is_integer(kind) else kind
    raise MisfitError(f"{path}: {_short(value)} does not fit the column's type, {type_name(kind)}")


def _widened_integer(kind: pa.DataType, value: int, path: str) -> pa.DataType:
    if value not in INT64:
        raise MisfitError(f"{path}: {_short(value)} does not fit a long")
    if value in range(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1)):
        return kind
    if not pa.types.is_int32(kind):  # No format widens a byte or a short, which only another engine makes.
        raise MisfitError(f"{path}: {_short(value)} does not fit the column's type, {type_name(kind)}")
    return pa.int64()


def first_widened(before: pa.DataType, after: pa.DataType, path: str = "") -> str | None:
    """Where a type has become another, as `a.b[]`; None if there are at most new fields."""
    if pa.types.is_struct(before) and pa.types.is_struct(after):
        for field in before.fields:
            where = f"{path}.{field.name}" if path else field.name
            found = first_widened(field.type, after.field(field.name).type, where)
            if found is not None:
                return found
        return None
    if pa.types.is_list(before) and pa.types.is_list(after):
        return first_widened(before.value_type, after.value_type, f"{path}[]")
    return None if before.equals(after) else path


def merged(first: pa.DataType, second: pa.DataType, base: pa.DataType | None) -> pa.DataType:
    """One type for what two tasks have seen. Where they disagree the first has its way."""
    if pa.types.is_struct(first) and pa.types.is_struct(second):
        return pa.struct(merged_fields(list(first.fields), list(second.fields), base))
    if pa.types.is_list(first) and pa.types.is_list(second):
        inside = None if base is None else base.value_type
        return pa.list_(pa.field("element", merged(first.value_type, second.value_type, inside)))
    if base is None and {first, second} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if {first, second} == {pa.int32(), pa.int64()}:
        return pa.int64()
    return second if {first, second} == {pa.float32(), pa.float64()} and first == pa.float32() else first


def merged_fields(
    first: list[pa.Field], second: list[pa.Field], base: pa.StructType | None
) -> list[pa.Field]:
    result = list(first)
    places = {field.name.casefold(): position for position, field in enumerate(first)}
    for field in second:
        position = places.get(field.name.casefold())
        if position is None:
            result.append(field)
        elif result[position].name == field.name:
            kind = merged(result[position].type, field.type, _inside(base, field.name))
            result[position] = result[position].with_type(kind)
    return result


def _fits(kind: pa.DataType, value: Any) -> bool:
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if pa.types.is_integer(kind):  # 1.0 is an integer too, in JSON as in JSON Schema.
        return isinstance(value, float) and value.is_integer() and abs(value) <= EXACT_FLOAT_MAX
    if pa.types.is_floating(kind):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and _is_finite(value)
    if pa.types.is_string(kind):
        return isinstance(value, str)
    if pa.types.is_timestamp(kind):
        return isinstance(value, str) and parse_time(value) is not None
    return False


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def parse_time(text: str) -> pa.Scalar | None:
    """A date-time as RFC 3339 writes it, or None. Arrow decides, as it does for whole columns."""
    try:
        return pa.scalar(text).cast(TIMESTAMP)
    except pa.ArrowInvalid:
        return None


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of many thousand digits.
        text = "an enormous number"
    return text if len(text) <= 80 else text[:77] + "..."
