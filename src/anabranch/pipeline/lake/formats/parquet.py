"""A table of plain Parquet files, with a small log beside them that says which of them count.

    <table>/data/...                        the files, in folders by partition value
    <table>/_log/00000000000000000007.json  state 7: columns, live files, how far each pipeline has come

A state is written aside, synced, and given its name by a hard link, which fails if the name is taken: the commit. So
two writers cannot both make state 8, and a kill leaves at most a file without its name. The newest state is the table;
older ones stay readable until `maintain` forgets them. Local folders only.
"""

import base64
import json
import os
import time
import uuid
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa

from anabranch.errors import TableError, TableMissingError, TableMovedError
from anabranch.pipeline.lake.change import Change, DataFile, SourceState
from anabranch.pipeline.lake.formats.neighbours import check_alone
from anabranch.pipeline.lake.partitioning import agreed
from anabranch.pipeline.lake.rows.arrow_types import plain_schema
from anabranch.pipeline.lake.settings import PipelineSettings, partition_field

LOG_FOLDER = "_log"


@dataclass(frozen=True)
class TableState:
    """One state of the table, whole."""

    version: int
    schema: pa.Schema
    partition_by: tuple[str, ...]
    files: tuple[DataFile, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)
    """By topic: how far its pipeline has come."""
    made_ms: int = 0

    def to_json(self) -> str:
        return json.dumps(
            {
                "version": self.version,
                "made_ms": self.made_ms,
                "columns": [f"{column.name} {column.type}" for column in self.schema],
                "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
                "partition_by": list(self.partition_by),
                "sources": self.sources,
                "files": [json.loads(file.to_json()) for file in self.files],
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str) -> "TableState":
        value = json.loads(text)
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value["schema"])))
        files = tuple(DataFile.from_json(json.dumps(file)) for file in value["files"])
        return cls(
            value["version"], schema, tuple(value["partition_by"]), files, value["sources"], value["made_ms"]
        )


def open_parquet(settings: PipelineSettings, schema: pa.Schema | None) -> "ParquetTable":
    folder = Path(urlsplit(settings.table_uri).path)
    table = ParquetTable(folder, settings)
    if table.is_missing():
        check_alone(table.root, "parquet")
        if schema is None:
            raise TableMissingError(f"There is no table {settings.table} in {settings.warehouse}.")
        table.create(schema)
    table.refresh()
    return table


class ParquetTable:
    """See `table.Table`."""

    widens = True

    def __init__(self, folder: Path, settings: PipelineSettings) -> None:
        self._log = folder / LOG_FOLDER
        self._topic, self._partition_by = settings.topic, settings.partition_by
        self._wanted = self.parts = settings.partitions()
        self.root = f"file://{folder}"
        self.data_folder = f"{self.root}/data"
        self.reserved: frozenset[str] = frozenset()
        self._state = TableState(-1, pa.schema([]), ())

    def is_missing(self) -> bool:
        return not self._versions()

    def _versions(self) -> list[int]:
        if not self._log.is_dir():
            return []
        return sorted(int(path.stem) for path in self._log.glob("*.json") if path.stem.isdigit())

    def create(self, schema: pa.Schema) -> None:
        self._log.mkdir(parents=True, exist_ok=True)
        try:
            self._publish(TableState(0, plain_schema(schema), tuple(self._partition_by)))
        except TableMovedError:
            return  # Somebody was quicker: theirs is as good.

    def refresh(self) -> None:
        versions = self._versions()
        if not versions:
            raise TableError(f"The table's log {self._log} is empty or gone.")
        self._state = TableState.from_json(self._path(versions[-1]).read_text())
        have = [partition_field(text) for text in self._state.partition_by]
        self.parts = agreed(str(self._log.parent), have, self._wanted)

    def _path(self, version: int) -> Path:
        return self._log / f"{version:020d}.json"

    def schema(self) -> pa.Schema:
        return self._state.schema

    def file_schema(self) -> pa.Schema:
        return self._state.schema

    def evolve(self, schema: pa.Schema) -> None:
        self._publish(replace(self._next(), schema=plain_schema(schema)))

    def state(self) -> SourceState | None:
        text = self._state.sources.get(self._topic)
        return None if text is None else SourceState.from_json(text)

    def version(self) -> int | None:
        return self._state.version

    def files(self) -> list[DataFile]:
        return list(self._state.files)

    def commit(self, change: Change) -> None:
        gone = {file.path for file in change.remove}
        live = {file.path for file in self._state.files}
        if not gone <= live:
            raise TableMovedError(f"{', '.join(sorted(gone - live))} is no longer in the table.")
        for file in change.add:
            if not Path(file.path.removeprefix("file://")).is_file():
                raise TableError(f"{file.path} is gone before it was committed: was it swept as an orphan?")
        kept = tuple(file for file in self._state.files if file.path not in gone)
        sources = dict(self._state.sources)
        if change.state is not None:
            sources[self._topic] = change.state.to_json()
        self._publish(replace(self._next(), files=kept + change.add, sources=sources))

    def _next(self) -> TableState:
        return replace(self._state, version=self._state.version + 1)

    def _publish(self, state: TableState) -> None:
        stamped = replace(state, made_ms=time.time_ns() // 1_000_000)
        aside = self._log / f"new-{uuid.uuid4().hex}"
        with aside.open("x") as file:
            file.write(stamped.to_json())
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(aside, self._path(state.version))
        except FileExistsError as error:
            raise TableMovedError(f"State {state.version} of the table was made by somebody else.") from error
        finally:
            aside.unlink()
        _sync_folder(self._log)
        self._state = stamped

    def expire(self, before_ms: int) -> int:
        """A state is old when the one after it is."""
        versions = self._versions()
        old = 0
        for version, following in pairwise(versions):
            if TableState.from_json(self._path(following).read_text()).made_ms >= before_ms:
                break
            self._path(version).unlink()
            old += 1
        return old

    def may_sweep(self, path: str) -> bool:
        return path.startswith(f"{self.data_folder}/")

    def referenced(self) -> set[str]:
        states = [TableState.from_json(self._path(version).read_text()) for version in self._versions()]
        return {file.path for state in states for file in state.files}


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # A new name is lost in a power cut unless its folder is synced.
    finally:
        os.close(descriptor)
