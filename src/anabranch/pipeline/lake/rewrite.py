"""What an upsert does to the files a table has: rows whose key has a later record go, and the others stay.

A row may also be later than the batch's record of its key: a letter that was tried again, a range of old offsets, a
slower partition. Then the row stays, and the record is outdated: the batch's own files are written anew without it.

A pipeline that follows its topic reads every partition in order, so what it brings is later than any row of the same
partition that it brought before. A row with a higher offset is then one of an older topic of that name, which was
deleted and made again, or of a backfill further on, whose records are still to come: it goes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anabranch.pipeline.lake import report
from anabranch.pipeline.lake.change import DataFile
from anabranch.pipeline.lake.formats.storage import place
from anabranch.pipeline.lake.order import COLUMNS, Place, are_apart, comes_later
from anabranch.pipeline.lake.rows.arrow_types import conform
from anabranch.pipeline.lake.upsert import read_parquet, read_rows, row_parts
from anabranch.pipeline.spark.workers import settle

if TYPE_CHECKING:
    from anabranch.pipeline.lake.files import FilePlan

UNKNOWN_TOPIC = ""
_ROW = "__row"
_OLD, _NEW = "__old", "__new"


class Judged(NamedTuple):
    stay: pa.Array
    """Positions of the rows that the table keeps."""
    outdated: pa.Table
    """Keys whose row is later than the record that came."""


@dataclass(frozen=True)
class RewriteTask:
    """`mapInArrow`'s function over the table's files: those with rows to replace are written anew without them."""

    plan: "FilePlan"
    key: tuple[str, ...]
    key_files: tuple[str, ...]
    ordered: bool = False
    """Do the records follow what the table has of their partitions?"""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        touched = pa.concat_tables([read_parquet(path) for path in self.key_files])
        bounds = pc.min_max(touched.column(self.key[0])).as_py()
        for batch in batches:
            lines: list[report.Line] = []
            for text in batch.column(0).to_pylist():
                file = DataFile.from_json(text)
                if self._may_hold(file, bounds):
                    lines += self._rewrite(file, touched)
            if lines:
                yield report.as_batch(lines)

    def _may_hold(self, file: DataFile, bounds: dict[str, Any]) -> bool:
        """By the footer's smallest and largest first key column; yes, if it does not say."""
        files, inner = place(file.path)
        footer = pq.read_metadata(inner, filesystem=files)
        paths = [footer.schema.column(position).path for position in range(footer.num_columns)]
        if self.key[0] not in paths:
            return True
        groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
        return any(_overlap(group.column(paths.index(self.key[0])).statistics, bounds) for group in groups)

    def _rewrite(self, file: DataFile, touched: pa.Table) -> list[report.Line]:
        from anabranch.pipeline.lake.files import write_table

        known = self._keys_and_places(file)
        judged = judge(known, touched, self.key, self.ordered)
        lines = []
        if len(judged.stay) < known.num_rows:
            lines += _written_anew(self.plan, file, read_rows(file, self.plan).take(judged.stay))
        if judged.outdated.num_rows:
            keys = write_table(self.plan.new_staging_path("outdated"), judged.outdated)
            lines.append(report.file_line("outdated", keys))
        return lines

    def _keys_and_places(self, file: DataFile) -> pa.Table:
        """All that is compared: most files have no row to replace, and need not be read as a whole."""
        names = list(dict.fromkeys([*self.key, *COLUMNS]))
        columns = pa.schema([self.plan.columns.field(name) for name in names])
        nothing = conform(columns.empty_table(), columns)
        return pa.concat_tables([nothing, *row_parts(file, self.plan, names)])


@dataclass(frozen=True)
class DropTask:
    """`mapInArrow`'s function over the batch's own files: those with outdated records are written anew without them."""

    plan: "FilePlan"
    key: tuple[str, ...]
    outdated_files: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        outdated = distinct_keys(self.outdated_files)
        for batch in batches:
            lines: list[report.Line] = []
            for text in batch.column(0).to_pylist():
                file = DataFile.from_json(text)
                rows = read_rows(file, self.plan)
                kept = without(rows, outdated, self.key)
                if kept.num_rows < rows.num_rows:
                    lines += _written_anew(self.plan, file, kept)
            if lines:
                yield report.as_batch(lines)


def _written_anew(plan: "FilePlan", file: DataFile, rows: pa.Table) -> list[report.Line]:
    from anabranch.pipeline.lake.files import write_rows

    lines = [report.file_line("removed", file)]
    if rows.num_rows:
        lines.append(report.file_line("file", write_rows(plan, file.partition, rows)))
    return lines


def _overlap(numbers: Any, bounds: dict[str, Any]) -> bool:
    if numbers is None or not numbers.has_min_max or type(numbers.min) is not type(bounds["min"]):
        return True
    return bool(numbers.min <= bounds["max"] and numbers.max >= bounds["min"])


def judge(rows: pa.Table, touched: pa.Table, key: tuple[str, ...], ordered: bool = False) -> Judged:
    """Which rows stay although, or because, these keys were touched by records of these places.

    Only keys and places are joined: a join cannot carry nested columns.
    """
    numbered = _places(rows, key, _OLD).append_column(_ROW, _numbers(rows))
    met = numbered.join(_places(touched, key, _NEW, rows.schema), keys=list(key), join_type="inner")
    met = _with_topics(met, ordered)
    old, new = _fields(_OLD), _fields(_NEW)
    later = met.filter(comes_later(old, new) & are_apart(old, new) if ordered else comes_later(old, new))
    untouched = pc.invert(_among(_numbers(rows), met))
    stay = pc.indices_nonzero(pc.or_(untouched, _among(_numbers(rows), later)))
    return Judged(stay, later.select(list(key)))


def _places(table: pa.Table, key: tuple[str, ...], prefix: str, kinds: pa.Schema | None = None) -> pa.Table:
    keys = [table.column(name) for name in key]
    if kinds is not None:
        keys = [column.cast(kinds.field(name).type) for name, column in zip(key, keys, strict=True)]
    places = [table.column(name) for name in COLUMNS]
    return pa.Table.from_arrays([*keys, *places], names=[*key, *(prefix + name for name in COLUMNS)])


def _among(numbers: pa.Array, met: pa.Table) -> pa.Array:
    return pc.is_in(numbers, met.column(_ROW).combine_chunks())


def _numbers(table: pa.Table) -> pa.Array:
    return pa.array(range(table.num_rows), pa.int64())


def _fields(prefix: str) -> Place:
    return Place(*(pc.field(prefix + name) for name in COLUMNS))


def _with_topics(met: pa.Table, ordered: bool) -> pa.Table:
    """Rows older than the column `_topic` have none. They are taken for rows of the record's own topic if that lets
    the record replace them, as it always did; otherwise the times decide."""
    topic = met.column(_OLD + COLUMNS.topic)
    follows = pc.equal(met.column(_OLD + COLUMNS.partition), met.column(_NEW + COLUMNS.partition))
    if not ordered:
        is_later = pc.less(met.column(_OLD + COLUMNS.offset), met.column(_NEW + COLUMNS.offset))
        follows = pc.and_(follows, is_later)
    assumed = pc.if_else(follows, met.column(_NEW + COLUMNS.topic), UNKNOWN_TOPIC)
    position = met.schema.get_field_index(_OLD + COLUMNS.topic)
    return met.set_column(position, _OLD + COLUMNS.topic, pc.coalesce(topic, assumed))


def without(rows: pa.Table, touched: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """The rows whose key is not among these."""
    numbered = rows.select(list(key)).append_column(_ROW, _numbers(rows))
    typed = pa.Table.from_arrays(
        [touched.column(name).cast(rows.schema.field(name).type) for name in key], names=list(key)
    )
    kept = numbered.join(typed, keys=list(key), join_type="left anti").column(_ROW)
    return rows if len(kept) == rows.num_rows else rows.take(kept.sort())


def distinct_keys(paths: tuple[str, ...]) -> pa.Table:
    keys = pa.concat_tables([read_parquet(path) for path in paths])
    return keys.group_by(keys.column_names).aggregate([])
