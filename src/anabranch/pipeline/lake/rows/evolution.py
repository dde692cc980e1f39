"""What a table's columns become when a schema asks for more: added, widened, or a refusal that names the column."""

import pyarrow as pa

from anabranch.errors import TableError
from anabranch.pipeline.lake.rows.arrow_types import type_name

_WIDER = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}


def grown_columns(known: pa.Schema, wanted: pa.Schema, widens: bool = True) -> pa.Schema | None:
    """`known` with what `wanted` has besides; None if that is nothing. TableError if a column stands against it.

    Columns of a table that cannot widen them stay as they are: what is too wide for them does not fit.
    """
    fields = list(known)
    places = {field.name: position for position, field in enumerate(fields)}
    for field in wanted:
        position = places.get(field.name)
        if position is None:
            fields.append(field)
            continue
        kind = _grown(fields[position].type, field.type, field.name, widens)
        fields[position] = fields[position].with_type(kind)
    grown = pa.schema(fields)
    return None if grown.equals(known) else grown


def _grown(known: pa.DataType, wanted: pa.DataType, name: str, widens: bool) -> pa.DataType:
    if known.equals(wanted) or (wanted, known) in _WIDER:
        return known
    if (known, wanted) in _WIDER:
        return wanted if widens else known
    if pa.types.is_struct(known) and pa.types.is_struct(wanted):
        inner = grown_columns(pa.schema(list(known.fields)), pa.schema(list(wanted.fields)), widens)
        return known if inner is None else pa.struct(list(inner))
    if pa.types.is_list(known) and pa.types.is_list(wanted):
        return pa.list_(pa.field("element", _grown(known.value_type, wanted.value_type, f"{name}[]", widens)))
    raise TableError(
        f"The table's column {name} is of type {type_name(known)}, and the schema wants {type_name(wanted)}: "
        "only int to long and float to double can change."
    )
