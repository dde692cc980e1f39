"""Upsert: the last record of each key is the row, a tombstone takes the row away.

Within a batch all records of a key are in one task, and `order` says which of them is the last. Then every live file of
the table that holds one of the batch's keys is written anew without them (`rewrite`); the commit swaps the old files
for these and the new rows. So a table has at most one row per key, readers need to know nothing, and a batch costs as
much as the files it touches.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anabranch.pipeline.lake import order
from anabranch.pipeline.lake.change import DataFile
from anabranch.pipeline.lake.formats.field_numbers import named_as_today, names_then
from anabranch.pipeline.lake.formats.storage import place
from anabranch.pipeline.lake.rows.arrow_types import conform
from anabranch.pipeline.lake.rows.parse import TRACE

if TYPE_CHECKING:
    from anabranch.pipeline.lake.files import FilePlan, RejectFile

RECORD_KEY = "_key"
RAW_KEY = "key"
PART_ROWS_MAX = 10_000
PART_BYTES_MAX = 32 * 2**20
_ROW = "__row"


class Latest(NamedTuple):
    rows: pa.Table
    keys: pa.Table
    """Every key that was touched, the deleted ones too, and where its last record stood."""
    applied: int
    """Records that became no row: deletes and what was replaced within the batch."""


class Upserts:
    """The records of one task, until the last of each key is known."""

    def __init__(self, key: tuple[str, ...], raw: bool) -> None:
        self._key = key
        self._by_record_key = key == (RAW_KEY if raw else RECORD_KEY,)
        self._raw = raw
        self._rows: list[pa.Table] = []
        self._deleted: list[pa.Table] = []

    def take_tombstones(self, records: pa.Table, rejects: "RejectFile") -> pa.Table:
        """Sets the tombstones aside and returns the other records."""
        gone = pc.is_null(records.column("value"))
        if not pc.any(gone).as_py():
            return records
        tombstones = records.filter(gone)
        if self._by_record_key:
            self._take_deletes(tombstones, rejects)
        else:
            names = ", ".join(self._key)
            rejects.take(
                tombstones, f"a tombstone has no {names}, by which this table is kept: it cannot delete"
            )
        return records.filter(pc.invert(gone))

    def _take_deletes(self, tombstones: pa.Table, rejects: "RejectFile") -> None:
        keys = tombstones.column("key")
        usable = pc.is_valid(keys) if self._raw else pc.and_(pc.is_valid(keys), _is_text(keys))
        rejects.take(tombstones.filter(pc.invert(usable)), "a tombstone needs a key that a row can have")
        kept = tombstones.filter(usable)
        key = kept.column("key") if self._raw else kept.column("key").cast(pa.string())
        where = [kept.column(name.removeprefix("_")) for name in order.COLUMNS]
        deleted = pa.Table.from_arrays([key, *where], names=[*self._key, *order.COLUMNS])
        kinds = pa.schema([deleted.schema.field(0), *(TRACE.field(name) for name in order.COLUMNS)])
        self._deleted.append(conform(deleted, kinds))

    def take_rows(self, rows: pa.Table, records: pa.Table, rejects: "RejectFile") -> None:
        missing = None
        for name in self._key:
            absent = pc.is_null(_column(rows, name))
            missing = absent if missing is None else pc.or_(missing, absent)
        if pc.any(missing).as_py():
            rejects.take(
                records.filter(missing), f"an upsert needs {', '.join(self._key)}, which is null or missing"
            )
            rows = rows.filter(pc.invert(missing))
        self._rows.append(rows)

    def latest(self, columns: pa.Schema) -> Latest:
        rows = (
            pa.concat_tables([conform(part, columns) for part in self._rows])
            if self._rows
            else columns.empty_table()
        )
        if rows.num_rows == 0 and not self._deleted:
            return Latest(rows, rows, 0)  # Of records that all lack the key there may be no such column.
        touched = [_touched(rows, self._key, True)]
        touched += [_touched(part, self._key, False) for part in self._deleted]
        everything = pa.concat_tables(touched)
        last = order.last_of_each(everything, self._key)
        positions = last.column(_ROW)
        latest = rows.take(positions.filter(pc.greater_equal(positions, 0)))
        return Latest(latest, last.drop_columns(_ROW), everything.num_rows - latest.num_rows)


def _touched(table: pa.Table, key: tuple[str, ...], have_rows: bool) -> pa.Table:
    """Keys and places, with the row's position; -1 stands for a delete."""
    rows = pa.array(range(table.num_rows) if have_rows else [-1] * table.num_rows, pa.int64())
    names = dict.fromkeys([*key, *order.COLUMNS])
    return table.select(list(names)).append_column(_ROW, rows)


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    if rows.schema.get_field_index(name) < 0:
        return pa.chunked_array([pa.nulls(rows.num_rows)])
    return rows.column(name)


def _is_text(keys: pa.ChunkedArray) -> pa.ChunkedArray:
    def fits(key: bytes | None) -> bool:
        try:
            return key is None or key.decode("utf-8") is not None
        except UnicodeDecodeError:
            return False

    return pa.chunked_array([pa.array([fits(key) for key in keys.to_pylist()], pa.bool_())])


def read_parquet(path: str) -> pa.Table:
    files, inner = place(path)
    return pq.read_table(inner, filesystem=files, partitioning=None)


def parquet_parts(path: str, columns: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
    """A file piece by piece, however large it and its rows are; all columns, or those of these that it has."""
    files, inner = place(path)
    with files.open_input_file(inner) as stream:
        file = pq.ParquetFile(stream)
        names = file.schema_arrow.names
        wanted = names if columns is None else names_then(file.schema_arrow, columns)
        yield from file.iter_batches(_rows_per_part(file.metadata, wanted), columns=wanted)


def _rows_per_part(footer: pq.FileMetaData, names: Collection[str]) -> int:
    """By how large the rows of this file are on average."""
    size = 0
    for group in range(footer.num_row_groups):
        columns = [footer.row_group(group).column(position) for position in range(footer.num_columns)]
        wanted = [column for column in columns if column.path_in_schema.split(".")[0] in names]
        size += sum(column.total_uncompressed_size for column in wanted)
    return max(1, min(PART_ROWS_MAX, PART_BYTES_MAX * int(footer.num_rows) // max(1, size)))


def read_rows(file: DataFile, plan: "FilePlan") -> pa.Table:
    """A data file's rows in today's columns, with those that only its place in the table tells."""
    table = named_as_today(read_parquet(file.path), plan.columns)
    return _in_columns(table, file, plan, plan.columns)


def row_parts(file: DataFile, plan: "FilePlan", names: Sequence[str]) -> Iterator[pa.Table]:
    """The same piece by piece, and of these columns alone."""
    columns = pa.schema([plan.columns.field(name) for name in names])
    for part in parquet_parts(file.path, columns):
        table = named_as_today(pa.Table.from_batches([part]), columns)
        yield _in_columns(table, file, plan, columns)


def _in_columns(table: pa.Table, file: DataFile, plan: "FilePlan", columns: pa.Schema) -> pa.Table:
    for part, text in zip(plan.parts, file.partition, strict=True):
        if part.unit is None and part.column not in table.column_names and part.column in columns.names:
            value = pa.scalar(text, pa.string()).cast(columns.field(part.column).type)
            table = table.append_column(part.column, pa.repeat(value, table.num_rows))
    return conform(table, columns)
