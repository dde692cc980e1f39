"""Small tools over Arrow types: one form for strings and lists, columns without numbers, tables made to fit.

Libraries disagree about `string` and `large_string`, and about the metadata of fields. Inside the sink only the small
forms occur; a schema's field numbers (Iceberg's) travel as metadata of its fields and are compared by nobody.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

TIMESTAMP = pa.timestamp("us", "UTC")


def small_type(kind: pa.DataType) -> pa.DataType:
    return _mapped(kind, lambda field: field)


def small_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(small_type(field.type)) for field in schema])


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Without field numbers, everything nullable."""
    return pa.schema([pa.field(field.name, _mapped(field.type, _bare)) for field in schema])


def _bare(field: pa.Field) -> pa.Field:
    return pa.field(field.name, field.type)


def _mapped(kind: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """`change` is told each field once, when what is inside of it has been changed."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([change(part.with_type(_mapped(part.type, change))) for part in kind.fields])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = kind.value_field
        inner = change(inner.with_type(_mapped(inner.type, change)))
        return pa.list_(inner.with_name("element"))
    return kind


def depth_of(kind: pa.DataType) -> int:
    """Structs and lists inside one another, this one counted."""
    if pa.types.is_struct(kind):
        return 1 + max((depth_of(part.type) for part in kind.fields), default=0)
    return 1 + depth_of(kind.value_type) if pa.types.is_list(kind) else 0


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same rows with exactly these columns: missing ones are null, narrower ones are cast."""
    columns = []
    for field in schema:
        position = table.schema.get_field_index(field.name)
        if position < 0:
            columns.append(pa.nulls(table.num_rows, field.type))
        else:
            columns.append(_conformed(table.column(position), field.type))
    return pa.Table.from_arrays(columns, names=schema.names)


def _conformed(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type.equals(kind):
        return column
    return pa.chunked_array([conformed_array(chunk, kind) for chunk in column.chunks], kind)


def conformed_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type.equals(kind):
        return array
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        return _conformed_struct(array, kind)
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        return _conformed_list(array, kind)
    return array.cast(kind)


def _conformed_struct(array: pa.Array, kind: pa.DataType) -> pa.Array:
    parts = []
    for field in kind.fields:
        position = array.type.get_field_index(field.name)
        if position < 0:
            parts.append(pa.nulls(len(array), field.type))
        else:
            parts.append(conformed_array(array.field(position), field.type))
    return pa.StructArray.from_arrays(parts, fields=kind.fields, mask=array.is_null())


def _conformed_list(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """`flatten` leaves out what lies under nulls, so the lengths say where each list is."""
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int64())).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    values = conformed_array(array.flatten(), kind.value_type)
    return pa.ListArray.from_arrays(offsets, values, type=kind, mask=array.is_null())


def type_name(kind: pa.DataType) -> str:
    """As people say it."""
    names = {"int64": "long", "int32": "int", "float": "float", "double": "double", "bool": "boolean"}
    if pa.types.is_struct(kind):
        return "object"
    if pa.types.is_list(kind):
        return f"list of {type_name(kind.value_type)}"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    return names.get(str(kind), str(kind))
