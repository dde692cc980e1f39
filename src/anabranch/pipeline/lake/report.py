"""What tasks tell the driver: a few rows per task, never records."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from anabranch.pipeline.lake.change import DataFile
from anabranch.pipeline.lake.rows.infer import capped_fields, merged_fields

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPARK_SCHEMA = "kind string, path string, rows long, bytes long, detail string"
NAMES = ("kind", "path", "rows", "bytes", "detail")
ARROW_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("detail", pa.string()),
    ]
)

Line = tuple[str, str | None, int, int, str | None]


def line(kind: str, path: str | None = None, rows: int = 0, bytes_: int = 0, detail: object = None) -> Line:
    return kind, path, rows, bytes_, None if detail is None else json.dumps(detail)


def file_line(kind: str, file: DataFile) -> Line:
    return line(kind, file.path, file.rows, file.bytes, list(file.partition))


def schema_line(schema: pa.Schema) -> Line:
    return line("grown", detail=base64.b64encode(schema.serialize().to_pybytes()).decode())


def as_batch(lines: Sequence[Line]) -> pa.RecordBatch:
    columns = zip(*lines, strict=True)
    arrays = [pa.array(column, part.type) for column, part in zip(columns, ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def collect(
    frame: "DataFrame", task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
) -> "Report":
    """Run this task over the frame and take together what its parts report."""
    collected = Report()
    rows = frame.mapInArrow(task, SPARK_SCHEMA).collect()
    collected.take(tuple(row[name] for name in NAMES) for row in rows)
    return collected


@dataclass
class Report:
    """All tasks of one batch taken together."""

    read: int = 0
    applied: int = 0
    """Records of an upsert that need no row of their own: deletes, and those a later one replaced."""
    starts: dict[int, int] = field(default_factory=dict)
    """By partition: the first offset that was read."""
    offsets: dict[int, int] = field(default_factory=dict)
    """By partition: the one after the last."""
    added: list[DataFile] = field(default_factory=list)
    removed: list[DataFile] = field(default_factory=list)
    rewritten: list[DataFile] = field(default_factory=list)
    """Rows the table had before, in new files: they stand for those of `removed`; and rows of `dropped`."""
    dropped: list[DataFile] = field(default_factory=list)
    """Those of `added` that have outdated records in them: the others are in `rewritten`."""
    outdated: list[DataFile] = field(default_factory=list)
    """Keys whose row in the table is later than the record that was read."""
    keys: list[DataFile] = field(default_factory=list)
    rejected: list[DataFile] = field(default_factory=list)
    grown: list[pa.Schema] = field(default_factory=list)

    def take(self, lines: Iterable[Line]) -> None:
        files = {
            "file": self.added,
            "removed": self.removed,
            "outdated": self.outdated,
            "keys": self.keys,
            "rejected": self.rejected,
        }
        for kind, path, rows, bytes_, detail in lines:
            if kind in files:
                assert path is not None
                files[kind].append(DataFile(path, rows, bytes_, tuple(json.loads(detail or "[]"))))
            elif kind == "grown":
                raw = base64.b64decode(json.loads(detail or ""))
                self.grown.append(pa.ipc.read_schema(pa.py_buffer(raw)))
            elif kind == "applied":
                self.applied += rows
            else:
                self._take_read(rows, json.loads(detail or "{}"))

    def _take_read(self, rows: int, ranges: dict[str, tuple[int, int]]) -> None:
        self.read += rows
        for partition, (start, end) in ranges.items():
            number = int(partition)
            self.starts[number] = min(start, self.starts.get(number, start))
            self.offsets[number] = max(end, self.offsets.get(number, end))

    def grown_schema(self, known: pa.Schema, columns_max: int) -> pa.Schema | None:
        """The columns after all tasks' discoveries; None if there were none. What is more than `columns_max` is left
        out: its records do not fit when they are parsed again."""
        fields = list(known)
        base = pa.struct(fields)
        for schema in self.grown:
            fields = merged_fields(fields, list(schema), base)
        return pa.schema(capped_fields(fields, base, columns_max)) if self.grown else None

    @property
    def rows_added(self) -> int:
        return sum(file.rows for file in self.added)

    @property
    def rows_rejected(self) -> int:
        return sum(file.rows for file in self.rejected)

    def to_add(self) -> tuple[DataFile, ...]:
        """What the commit adds to the table."""
        return (*(file for file in self.added if file not in self.dropped), *self.rewritten)

    def new_files(self) -> list[str]:
        """Files for the table; nothing needs them if the batch is not committed."""
        return [file.path for file in self.to_add()]

    def leftovers(self) -> list[str]:
        """Files that nothing needs once the batch is committed, or has to begin again."""
        return [file.path for file in (*self.keys, *self.rejected, *self.outdated, *self.dropped)]
