"""Many JSON records at once, through Arrow's own reader: the quick way of `parse.py`.

It takes a whole array of values or none of it. Whatever it takes, the slow way would have taken with the same result; a
test compares the two. So it is asked only about what is plain: objects of known columns, in UTF-8, not nested deeply.
"""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from anabranch.pipeline.lake.rows.arrow_types import conform, depth_of, plain_schema
from anabranch.pipeline.lake.rows.infer import DEPTH_MAX

BRACKETS_MAX = 200
"""Brackets in one value beyond which Arrow's reader is not asked: it recurses without a limit."""


def parse_quickly(values: pa.Array, columns: pa.Schema, fixed: bool) -> pa.Table | None:
    """All values at once, or None if any of them needs a closer look.

    Each begins with a brace and ends with one, and there are as many rows as values: then no value can hold two
    objects, and none half of one, since after a closing brace an unfinished object cannot go on with an opening one.
    """
    if len(values) == 0 or not len(columns) or values.null_count or not _looks_ordinary(values):
        return None
    if depth_of(pa.struct(columns)) > DEPTH_MAX:  # Else what fits the columns is no deeper than they are.
        return None
    joined = pa.py_buffer(b"\n".join(values.to_pylist()) + b"\n")
    try:
        table = pj.read_json(
            pa.BufferReader(joined),
            read_options=pj.ReadOptions(use_threads=False, block_size=joined.size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=_read_as(columns),
                newlines_in_values=True,
                unexpected_field_behavior="error" if fixed else "infer",
            ),
        )
        if table.num_rows != len(values) or not _has_only(table.schema, columns):
            return None
        return conform(table, plain_schema(columns))
    except pa.ArrowInvalid:
        return None  # Some value does not fit: the slow way finds out which.


def _looks_ordinary(values: pa.Array) -> bool:
    try:
        text = values.cast(pa.string())  # This is where UTF-8 is checked.
    except pa.ArrowInvalid:
        return False
    framed = pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}"))
    if not pc.all(framed).as_py():
        return False
    brackets = pc.add(pc.count_substring(text, "{"), pc.count_substring(text, "["))
    return bool(pc.max(brackets).as_py() <= BRACKETS_MAX)


def _read_as(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, _read_type(field.type)) for field in schema])


def _read_type(kind: pa.DataType) -> pa.DataType:
    """Times are read as text first, so that both ways parse them with the same function."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _read_type(part.type)) for part in kind.fields])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _read_type(kind.value_type)))
    return kind


def _has_only(found: pa.Schema, known: pa.Schema) -> bool:
    """Nothing typed was found beyond the known columns. A column that is all null says nothing yet."""
    kinds = {field.name: _read_type(field.type) for field in known}
    for field in found:
        if field.name not in kinds:
            if not pa.types.is_null(field.type):
                return False
        elif not field.type.equals(kinds[field.name]):
            return False
    return True
