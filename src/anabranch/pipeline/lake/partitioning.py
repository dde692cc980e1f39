"""Rows sorted out by what a table is partitioned by: a column, or an hour, day or month of a time column."""

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.errors import TableError
from anabranch.pipeline.lake.rows.arrow_types import type_name
from anabranch.pipeline.lake.settings import PartitionField

FORMATS = {"hour": "%Y-%m-%d-%H", "day": "%Y-%m-%d", "month": "%Y-%m"}

NO_VALUE = "null"
NAME_MAX = 64
_UNUSUAL = re.compile(r"[^A-Za-z0-9_.-]")

Values = tuple[str | None, ...]
"""One text (or null) per partition field."""


def check_partitions(schema: pa.Schema, parts: Sequence[PartitionField]) -> None:
    """Can a table of these columns be partitioned so? TableError says why not."""
    for part in parts:
        position = schema.get_field_index(part.column)
        if position < 0:
            raise TableError(
                f"The table cannot be partitioned by {part.column}: there is no such column among "
                f"{', '.join(schema.names)}."
            )
        kind = schema.field(position).type
        is_time = pa.types.is_timestamp(kind)
        if part.unit and not is_time:
            raise TableError(
                f"{part.unit}({part.column}) needs a column of times, and {part.column} is of type {type_name(kind)}."
            )
        if not part.unit and (is_time or pa.types.is_nested(kind) or _has_no_text(kind)):
            raise TableError(
                f"The table cannot be partitioned by {part.column} of type {type_name(kind)}"
                + (f": take day({part.column})." if is_time else ".")
            )


def field_names(parts: Sequence[PartitionField], columns: Sequence[str]) -> list[str]:
    """What a new table calls them: `time_day`, and with an underscore after it if a column has that name already."""
    taken = {name.casefold() for name in columns}
    names = []
    for part in parts:
        name = part.name
        while part.unit and name.casefold() in taken:
            name += "_"
        names.append(name)
    return names


def reserved_names(parts: Sequence[PartitionField], names: Sequence[str]) -> frozenset[str]:
    """Those that no column can have any more, without regard to case."""
    return frozenset(name.casefold() for part, name in zip(parts, names, strict=True) if part.unit)


def check_new_columns(names: Sequence[str], reserved: frozenset[str]) -> None:
    for name in names:
        if name.casefold() in reserved:
            raise TableError(
                f"The column {name} cannot be added: the table is partitioned by a field of that name. Leave it out of "
                "the schema, or write into a new table, which gives its field another name."
            )


def _has_no_text(kind: pa.DataType) -> bool:
    """Bytes need not be text, and a float's text depends on who writes it."""
    return bool(pa.types.is_floating(kind) or pa.types.is_binary(kind))


def agreed(
    table: str, have: Sequence[PartitionField], wanted: Sequence[PartitionField]
) -> tuple[PartitionField, ...]:
    """What a table that is there is partitioned by; TableError if something else is wanted of it."""
    if wanted and list(wanted) != list(have):
        said = ", ".join(part.text for part in have) or "nothing"
        raise TableError(f"The table {table} is partitioned by {said}: partition_by must say so, or nothing.")
    return tuple(have)


def split(rows: pa.Table, parts: Sequence[PartitionField]) -> Iterator[tuple[Values, pa.Table]]:
    """The rows of each combination of values, in no particular order."""
    if not parts:
        yield (), rows
        return
    texts = [_text(rows.column(part.column), part.unit) for part in parts]
    groups = pa.Table.from_arrays(
        [*texts, pa.array(range(rows.num_rows), pa.int64())], names=[*map(str, range(len(texts))), "row"]
    ).group_by([str(position) for position in range(len(texts))])
    for group in groups.aggregate([("row", "list")]).to_pylist():
        yield tuple(group[str(position)] for position in range(len(texts))), rows.take(group["row_list"])


def _text(column: pa.ChunkedArray, unit: str | None) -> pa.ChunkedArray:
    if unit is not None:
        return pc.strftime(column, FORMATS[unit])
    return pc.cast(column, pa.string())


def folder_of(parts: Sequence[PartitionField], values: Values) -> str:
    """`carrier=UA/time_day=2013-01-01/`, or nothing.

    For people: the values that count are in the table's metadata. So signs that formats would escape, each in its own
    way, are replaced, and two values may share a folder.
    """
    named = zip(parts, values, strict=True)
    return "".join(f"{_plain(part.name)}={_plain(value or NO_VALUE)}/" for part, value in named)


def _plain(text: str) -> str:
    return _UNUSUAL.sub("_", text)[:NAME_MAX]
