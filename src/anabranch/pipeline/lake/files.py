"""What an executor does with its share of a batch: parse it, write Parquet files, report them.

One file per task and combination of partition values, under names that no other attempt of the task can have: a task
that fails half-way, or runs twice, leaves files that no commit ever names, and `maintain` sweeps them. Records that do
not fit are written aside into `staging`, for `dlq.py` to send once it is certain that this attempt counts.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anabranch.pipeline.lake import report
from anabranch.pipeline.lake.change import DataFile
from anabranch.pipeline.lake.formats.storage import make_folder_of, place
from anabranch.pipeline.lake.partitioning import Values, folder_of, split
from anabranch.pipeline.lake.rows.arrow_types import conform
from anabranch.pipeline.lake.rows.parse import JsonParser, Parsed, RawParser
from anabranch.pipeline.lake.settings import PartitionField
from anabranch.pipeline.lake.upsert import Upserts
from anabranch.pipeline.spark.workers import settle

CHUNK_ROWS_MAX = 100_000
CHUNK_BYTES_MAX = 32 * 2**20
WRITERS_MAX = 64
"""Files open at once in one task; beyond it the oldest is finished, and its value may get a second file."""
COMPRESSION = "zstd"


@dataclass(frozen=True)
class FilePlan:
    """Where files go and what they look like; travels to the executors."""

    folder: str
    staging: str
    batch: int
    columns: pa.Schema
    """Of the table."""
    schema: pa.Schema
    """Of the files, which may leave columns to their folder's name."""
    parts: tuple[PartitionField, ...]
    reserved: frozenset[str] = frozenset()
    """Names that no new column can have, in small letters."""
    widens: bool = True
    """Can an int column become a long one?"""

    def new_path(self, values: Values) -> str:
        return f"{self.folder}/{folder_of(self.parts, values)}{self._new_name()}"

    def new_staging_path(self, kind: str) -> str:
        return f"{self.staging}/{kind}-{self._new_name()}"

    def _new_name(self) -> str:
        return f"{self.batch:08d}-{uuid.uuid4().hex}.parquet"


@dataclass(frozen=True)
class WriteTask:
    """`mapInArrow`'s function: records in, lines of a report out."""

    plan: FilePlan
    schema_kind: str
    required: tuple[tuple[str, ...], ...]
    upsert_key: tuple[str, ...]
    """Empty: append."""
    columns_max: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        share = _Share(self)
        for chunk in _chunks(batches):
            share.take(chunk)
        yield report.as_batch(share.finish())

    def parser(self) -> JsonParser | RawParser:
        if self.schema_kind == "raw":
            return RawParser()
        plan = self.plan
        fixed = self.schema_kind != "records"
        return JsonParser(
            plan.columns,
            fixed,
            self.required,
            plan.reserved,
            plan.widens,
            self.upsert_key,
            self.columns_max,
        )


class _Share:
    """One task's part of the batch while it is being written."""

    def __init__(self, task: WriteTask) -> None:
        self._task = task
        self._parser = task.parser()
        self._files = FileSet(task.plan)
        self._rejects = RejectFile(task.plan)
        self._upserts = Upserts(task.upsert_key, task.schema_kind == "raw") if task.upsert_key else None
        self._read = 0
        self._ranges: dict[str, tuple[int, int]] = {}

    def take(self, records: pa.Table) -> None:
        self._read += records.num_rows
        self._note_offsets(records)
        if self._upserts is not None:
            records = self._upserts.take_tombstones(records, self._rejects)
        parsed = self._parser.parse(records)
        if isinstance(self._parser, JsonParser) and self._parser.has_grown:
            return  # Everything is parsed again once the table has the new columns.
        self._keep(parsed, records)

    def _keep(self, parsed: Parsed, records: pa.Table) -> None:
        if parsed.reasons.null_count < len(parsed.reasons):
            refused = pc.is_valid(parsed.reasons)
            self._rejects.take(records.filter(refused), parsed.reasons.filter(refused))
        if self._upserts is not None:
            self._upserts.take_rows(parsed.rows, records.take(parsed.origin), self._rejects)
        else:
            self._files.write(parsed.rows)

    def _note_offsets(self, records: pa.Table) -> None:
        found = records.group_by("partition").aggregate([("offset", "min"), ("offset", "max")])
        for row in found.to_pylist():
            name, first, end = str(row["partition"]), row["offset_min"], row["offset_max"] + 1
            known = self._ranges.get(name, (first, end))
            self._ranges[name] = min(first, known[0]), max(end, known[1])

    def finish(self) -> list[report.Line]:
        lines = [report.line("read", rows=self._read, detail=self._ranges)]
        if isinstance(self._parser, JsonParser) and self._parser.has_grown:
            lines.append(
                report.schema_line(self._parser.schema)
            )  # The driver takes away the files named below.
        elif self._upserts is not None:
            lines += self._finish_upserts(self._upserts)
        lines += [report.file_line("file", file) for file in self._files.finish()]
        return lines + [report.file_line("rejected", file) for file in self._rejects.finish()]

    def _finish_upserts(self, upserts: Upserts) -> list[report.Line]:
        latest = upserts.latest(self._task.plan.columns)
        self._files.write(latest.rows)
        if latest.keys.num_rows == 0:
            return []
        path = self._task.plan.new_staging_path("keys")
        keys = write_table(path, latest.keys)
        return [report.file_line("keys", keys), report.line("applied", rows=latest.applied)]


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Spark hands over ten thousand rows at a time: too few for a row group, and for a JSON reader."""
    kept: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        kept.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= CHUNK_ROWS_MAX or size >= CHUNK_BYTES_MAX:
            yield pa.Table.from_batches(kept)
            kept, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(kept)


class FileSet:
    """Open files, one per combination of partition values."""

    def __init__(self, plan: FilePlan) -> None:
        self._plan = plan
        self._open: dict[Values, ParquetFile] = {}
        self._done: list[DataFile] = []

    def write(self, rows: pa.Table) -> None:
        if rows.num_rows == 0:
            return
        for values, part in split(rows, self._plan.parts):
            self._file(values).write(conform(part, self._plan.schema))

    def _file(self, values: Values) -> "ParquetFile":
        if values not in self._open:
            if len(self._open) >= WRITERS_MAX:
                self._done.append(self._open.pop(next(iter(self._open))).close())
            self._open[values] = ParquetFile(self._plan.new_path(values), self._plan.schema, values)
        return self._open[values]

    def finish(self) -> list[DataFile]:
        self._done += [file.close() for file in self._open.values()]
        self._open = {}
        return self._done


class RejectFile:
    """Records that do not fit, with the reason, until they are sent to the dead letter topic."""

    def __init__(self, plan: FilePlan) -> None:
        self._plan = plan
        self._file: ParquetFile | None = None

    def take(self, records: pa.Table, reasons: pa.Array | str) -> None:
        if records.num_rows == 0:
            return
        if isinstance(reasons, str):
            reasons = pa.array([reasons] * records.num_rows, pa.string())
        table = records.append_column("reason", reasons)
        if self._file is None:
            # Without dictionaries the footer tells how large the records are, by which they are read in parts.
            path = self._plan.new_staging_path("rejected")
            self._file = ParquetFile(path, table.schema, (), dictionaries=False)
        self._file.write(table)

    def finish(self) -> list[DataFile]:
        return [] if self._file is None else [self._file.close()]


class ParquetFile:
    """One file being written; its row count comes from its own footer when it is closed."""

    def __init__(self, path: str, schema: pa.Schema, values: Values, dictionaries: bool = True) -> None:
        make_folder_of(path)
        self._path, self._values, self._schema = path, values, schema
        files, inner = place(path)
        self._stream = files.open_output_stream(inner)
        self._writer = pq.ParquetWriter(
            self._stream, schema, compression=COMPRESSION, use_dictionary=dictionaries
        )

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)

    def close(self) -> DataFile:
        self._writer.close()
        self._stream.close()
        files, inner = place(self._path)
        rows = pq.read_metadata(inner, filesystem=files).num_rows
        return DataFile(self._path, rows, files.get_file_info(inner).size, self._values)


def write_table(path: str, table: pa.Table) -> DataFile:
    file = ParquetFile(path, table.schema, ())
    file.write(table)
    return file.close()


def write_rows(plan: FilePlan, values: Values, rows: pa.Table) -> DataFile:
    """All of these rows as one data file of the partition with these values."""
    file = ParquetFile(plan.new_path(values), plan.schema, values)
    file.write(conform(rows, plan.schema))
    return file.close()
