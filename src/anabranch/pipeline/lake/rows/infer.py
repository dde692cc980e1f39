"""Types of JSON values, and whether a value fits a column: the rules behind `schema=records`.

Integers are `long`, other numbers `double`, a mix of both in a new column `double`. Objects become structs, arrays
lists. Null, `{}` and `[]` say nothing about a type: such a column appears when something in it is first typed. What a
column already is decides: a later value fits it, or widens it (int to long), or does not fit, with the reason in words.
The first typed value of a new column decides likewise over those that follow.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from anabranch.pipeline.lake.rows.arrow_types import TIMESTAMP, type_name

INT64 = range(-(2**63), 2**63)
EXACT_FLOAT_MAX = 2.0**53
NAME_BYTES_MAX = 255
SHOWN_MAX = 80
"""Characters of a value in a reason."""
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


def infer_scalar(value: Any, path: str) -> pa.DataType:
    """The type that a value asks for which is neither null, an object nor an array."""
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        if value not in INT64:
            raise MisfitError(f"{path}: {shortened(value)} does not fit a long")
        return pa.int64()
    return pa.float64() if isinstance(value, float) else pa.string()


def _inside(base: pa.StructType | None, name: str) -> pa.DataType | None:
    if base is None:
        return None
    position = base.get_field_index(name)
    return None if position < 0 else base.field(position).type


def check_name(name: str, where: str, folded: Mapping[str, str]) -> None:
    """Could this be a column, in each of the formats, beside those of these case-folded names?"""
    if not name or len(name.encode()) > NAME_BYTES_MAX or _UNFIT_NAME.search(name):
        raise MisfitError(
            f"{shortened(where)} cannot name a column: no spaces, dots or any of ,;{{}}()= are allowed in it"
        )
    other = folded.get(name.casefold(), name)
    if other != name:
        raise MisfitError(f"{shortened(where)} differs only in case from the column {other!r}")


def widened_scalar(kind: pa.DataType, value: Any, path: str, in_table: bool) -> pa.DataType:
    """The type of a column of `kind` that is to take `value` too: `kind` itself, the same object, if it fits.

    `in_table`: the table has the column already, and a long one cannot become double any more.
    """
    if pa.types.is_integer(kind) and isinstance(value, int) and not isinstance(value, bool):
        return _widened_integer(kind, value, path)
    if pa.types.is_int64(kind) and not in_table and isinstance(value, float):
        return pa.float64()
    if _fits(kind, value):
        return _widened_integer(kind, int(value), path) if pa.types.is_integer(kind) else kind
    raise MisfitError(f"{path}: {shortened(value)} does not fit the column's type, {type_name(kind)}")


def _widened_integer(kind: pa.DataType, value: int, path: str) -> pa.DataType:
    if value not in INT64:
        raise MisfitError(f"{path}: {shortened(value)} does not fit a long")
    if value in range(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1)):
        return kind
    if not pa.types.is_int32(kind):  # No format widens a byte or a short, which only another engine makes.
        raise MisfitError(f"{path}: {shortened(value)} does not fit the column's type, {type_name(kind)}")
    return pa.int64()


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


def capped_fields(fields: list[pa.Field], known: pa.StructType, columns_max: int) -> list[pa.Field]:
    """`fields` without the last of those that are not `known`, so that there are `columns_max` at most, fields of
    objects counted; what is known stays."""
    return _capped(fields, known, _Room(columns_max - count_fields(known)))


class _Room:
    def __init__(self, left: int) -> None:
        self.left = left


def count_fields(kind: pa.DataType) -> int:
    """All fields inside of a type, at whatever depth."""
    if pa.types.is_struct(kind):
        return sum(1 + count_fields(field.type) for field in kind.fields)
    return count_fields(kind.value_type) if pa.types.is_list(kind) else 0


def _capped(fields: list[pa.Field], known: pa.StructType | None, room: _Room) -> list[pa.Field]:
    kept = []
    for field in fields:
        before = _inside(known, field.name)
        if before is None:
            if room.left <= 0:
                continue
            room.left -= 1
        kind = _capped_type(field.type, before, room)
        if kind is None:  # An object of which nothing is left.
            room.left += 1
        else:
            kept.append(field.with_type(kind))
    return kept


def _capped_type(kind: pa.DataType, known: pa.DataType | None, room: _Room) -> pa.DataType | None:
    if pa.types.is_struct(kind):
        fields = _capped(list(kind.fields), known, room)
        return pa.struct(fields) if fields else None
    if pa.types.is_list(kind):
        inner = _capped_type(kind.value_type, None if known is None else known.value_type, room)
        return None if inner is None else pa.list_(pa.field("element", inner))
    return kind


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


def shortened(value: Any, *, quoted: bool = True) -> str:
    """A value or a name of somebody else's, for a sentence."""
    try:
        text = repr(value) if quoted else str(value)
    except ValueError:  # Python refuses to print integers of many thousand digits.
        text = "an enormous number"
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."
