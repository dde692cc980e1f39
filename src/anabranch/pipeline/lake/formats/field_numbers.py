"""Columns of a file found by Iceberg's field numbers: a name may have changed hands since the file was written.

The result has today's names and no column that is gone, so that whoever goes on by name is right. A file without
numbers, as another engine may have added it, stays as it is: there the name is all there is.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.errors import TableError
from anabranch.pipeline.lake.rows.arrow_types import small_type

NUMBER = b"PARQUET:field_id"


def named_as_today(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same rows, each column under the name that its number has in the schema."""
    positions = _positions(table.schema)
    if not positions or not _positions(schema):
        return table
    kept = [field for field in schema if _number(field) in positions]
    columns = [_column(table.column(positions[_number(field)]), field) for field in kept]
    return pa.Table.from_arrays(columns, names=[field.name for field in kept])


def names_then(file: pa.Schema, schema: pa.Schema) -> list[str]:
    """What the columns of the schema are called in a file, as far as it has them."""
    positions = _positions(file)
    if not positions or not _positions(schema):
        return [name for name in schema.names if name in file.names]
    return [file.field(positions[_number(field)]).name for field in schema if _number(field) in positions]


def _number(field: pa.Field) -> bytes:
    return bytes((field.metadata or {}).get(NUMBER, b""))


def _positions(fields: Iterable[pa.Field]) -> dict[bytes, int]:
    return {_number(field): position for position, field in enumerate(fields) if _number(field)}


def _column(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    chunks = column.chunks or [pa.array([], column.type)]
    return pa.chunked_array([_array(chunk, field.type, field.name) for chunk in chunks])


def _array(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    if not pa.types.is_nested(array.type):
        return array
    small = array.cast(small_type(array.type))
    if pa.types.is_struct(small.type) and pa.types.is_struct(kind):
        return _struct(small, kind, path)
    if pa.types.is_list(small.type) and pa.types.is_list(kind):
        return _list(small, kind, path)
    if set(_inside(small.type)) != set(_inside(kind)):
        raise TableError(
            f"Fields inside the column {path} were renamed, dropped or added since a file of the table was written, "
            f"and a column of type {kind} cannot be written anew so. Rewrite its files with the engine that did it."
        )
    return array


def _struct(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    positions = _positions(array.type.fields)
    parts = []
    for field in kind.fields:
        if _number(field) in positions:
            part = array.field(positions[_number(field)])
            parts.append(_array(part, field.type, f"{path}.{field.name}"))
        else:
            parts.append(pa.nulls(len(array), field.type))
    fields = [pa.field(field.name, part.type) for field, part in zip(kind.fields, parts, strict=True)]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())


def _list(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """`flatten` leaves out what lies under nulls, so the lengths say where each list is."""
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int64())).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    values = _array(array.flatten(), kind.value_type, f"{path}.element")
    return pa.ListArray.from_arrays(offsets, values, mask=array.is_null())


def _inside(kind: pa.DataType) -> Iterator[tuple[bytes, str]]:
    """Number and name of every field of every object within."""
    for position in range(kind.num_fields):
        field = kind.field(position)
        if pa.types.is_struct(kind):
            yield _number(field), field.name
        yield from _inside(field.type)
