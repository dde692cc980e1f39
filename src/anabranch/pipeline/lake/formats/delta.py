"""A table in Delta, through deltalake: its own transaction identifiers carry the pipeline's state.

Every commit of a batch sets, in the same log entry as its files, `anabranch/<topic>/owner`, `/batch`, `/rows`, `/dlq`,
`/read`, `/partitions`, one `/offset/<partition>` each, and the topic's identity as two numbers, `/topic/high` and
`/topic/low`. Delta keeps the last version of every identifier through checkpoints of its log, and refuses a commit if
another one set the same identifier in between. None can be taken away: what is not known any more is set to -1, and an
identity to 0. `/kept/owner` and `/kept/batch` repeat whose commit set all of them: an older version of this program
sets the first four and the offsets alone. `/kept/version` is the table's version that the commit made: after it the log
is searched for a RESTORE, which takes no identifier back.

Partition columns are not in the files: Delta takes them from the entry. `day(time)` becomes a column `time_day`, and
the table's property `anabranch.partitionBy` tells it from a plain column of that name.
"""

import json
import math
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

import pyarrow as pa

from anabranch.errors import TableError, TableMissingError, TableMovedError
from anabranch.pipeline.lake.change import NO_TOPIC_ID, Change, DataFile, SourceState, known_id
from anabranch.pipeline.lake.formats.delta_restore import Restores
from anabranch.pipeline.lake.formats.neighbours import check_alone
from anabranch.pipeline.lake.formats.storage import is_file, listed, read_text
from anabranch.pipeline.lake.partitioning import agreed, field_names, reserved_names
from anabranch.pipeline.lake.rows.arrow_types import plain_schema, small_schema
from anabranch.pipeline.lake.settings import UNITS, PartitionField, PipelineSettings, partition_field

PARTITION_BY = "anabranch.partitionBy"
UNKNOWN = -1
TOPIC_HALVES = ("topic/high", "topic/low")
"""A version has 64 bits, and a topic's identity 128."""


def open_delta(settings: PipelineSettings, schema: pa.Schema | None) -> "DeltaTable":
    from deltalake import DeltaTable as Lake
    from deltalake.exceptions import TableNotFoundError

    address = settings.table_uri
    try:
        return DeltaTable(Lake(address), settings)
    except TableNotFoundError as error:
        check_alone(address, "delta")
        if schema is None:
            raise TableMissingError(f"There is no table {settings.table} in {settings.warehouse}.") from error
    parts = settings.partitions()
    names = field_names(parts, schema.names)
    made = [name for part, name in zip(parts, names, strict=True) if part.unit]
    fields = [*plain_schema(schema), *(pa.field(name, pa.string()) for name in made)]
    if urlsplit(address).scheme == "file":
        Path(urlsplit(address).path).mkdir(parents=True, exist_ok=True)
    Lake.create(
        address,
        pa.schema(fields),
        mode="ignore",
        partition_by=names,
        configuration={PARTITION_BY: json.dumps([part.text for part in parts])} if parts else None,
        raise_if_key_not_exists=False,  # The property is ours, and Delta has never heard of it.
    )
    return DeltaTable(Lake(address), settings)


def _noted(text: str | None, names: Sequence[str]) -> list[PartitionField] | None:
    """What the table was made with; None if it does not say so, or is partitioned otherwise by now."""
    parts = [] if text is None else [partition_field(one) for one in json.loads(text)]
    are_these = [part.name for part in parts] == [
        name.rstrip("_") if part.unit else name for part, name in zip(parts, names, strict=False)
    ]
    return parts if are_these and len(parts) == len(names) else None


def _guessed(name: str, schema: pa.Schema) -> PartitionField:
    """By the name alone: `at_day` is a day of `at` if that is a column of times."""
    column, _, unit = name.rstrip("_").rpartition("_")
    position = schema.get_field_index(column)
    is_made = unit in UNITS and position >= 0 and pa.types.is_timestamp(schema.field(position).type)
    return PartitionField(column, unit) if is_made else PartitionField(name)


class DeltaTable:
    """See `table.Table`."""

    widens = False  # Delta could, but deltalake knows nothing of its feature typeWidening.

    def __init__(self, table: Any, settings: PipelineSettings) -> None:
        self._table, self._settings = table, settings
        self._restores = Restores(settings.table_uri)
        self._identifier = f"anabranch/{settings.topic}/"
        self.root = self.data_folder = settings.table_uri
        self._names: list[str] = table.metadata().partition_columns
        self.parts = agreed(settings.table, self._have(settings.partitions()), settings.partitions())
        self.reserved = reserved_names(self.parts, self._names)

    def _have(self, wanted: Sequence[PartitionField]) -> Sequence[PartitionField]:
        """What the table says, else a guess by names, in which the wanted may be right against it."""
        noted = _noted(self._table.metadata().configuration.get(PARTITION_BY), self._names)
        if noted is not None:
            return noted
        guess = [_guessed(name, self._whole_schema()) for name in self._names]
        return wanted if [part.name for part in guess] == [part.name for part in wanted] else guess

    def refresh(self) -> None:
        self._table.update_incremental()

    def schema(self) -> pa.Schema:
        """Without the columns that are made from others for the partitions."""
        made = {name for part, name in zip(self.parts, self._names, strict=True) if part.unit}
        return pa.schema([field for field in self._whole_schema() if field.name not in made])

    def file_schema(self) -> pa.Schema:
        return pa.schema([field for field in self._whole_schema() if field.name not in self._names])

    def _whole_schema(self) -> pa.Schema:
        return small_schema(pa.schema(self._table.schema().to_arrow()))

    def evolve(self, schema: pa.Schema) -> None:
        from deltalake import Schema
        from deltalake.exceptions import DeltaError

        known = self._whole_schema()
        fields = Schema.from_arrow(plain_schema(schema)).fields
        changed = [field for field in fields if _is_news(field.name, known, schema)]
        try:
            with _moved_is_said():
                self._table.alter.add_columns(changed)
        except DeltaError as error:
            names = ", ".join(field.name for field in changed)
            raise TableError(
                f"The table cannot take {names} as the records need it: {error}. Delta widens no column; "
                "write into a new table, or give a JSON Schema that sends such records to the dead letters."
            ) from error

    def state(self) -> SourceState | None:
        owner = self._version("owner")
        if owner is None:
            return None
        is_kept = self._is_kept()
        restored = self._restored() if is_kept else None
        if restored is not None:
            return restored.state()
        offsets = {
            number: self._version(f"offset/{number}") for number in range(self._version("partitions") or 0)
        }
        known = {number: offset for number, offset in offsets.items() if offset not in (None, UNKNOWN)}
        read = self._version("read") if is_kept else None
        return SourceState(
            owner,
            self._version("batch") or 0,
            known,
            self._version("rows") or 0,
            self._version("dlq") or 0,
            None if read == UNKNOWN else read,
            self._topic_id() if is_kept else None,
        )

    def _is_kept(self) -> bool:
        """Is all of the state of one commit? Yes, of those before `kept` came, as far as anybody knows."""
        kept = self._version("kept/owner"), self._version("kept/batch")
        return kept in ((None, None), (self._version("owner"), self._version("batch")))

    def _restored(self) -> "DeltaTable | None":
        """The table at the version that it was restored to since our last commit."""
        ours = self._version("kept/version")
        target = None if ours is None else self._restores.last(ours, self._table.version())
        return None if target is None else DeltaTable(self._restores.restored(target), self._settings)

    def _topic_id(self) -> UUID | None:
        halves = [self._version(name) or 0 for name in TOPIC_HALVES]
        return known_id(UUID(bytes=struct.pack(">qq", *halves)))

    def _version(self, name: str) -> int | None:
        version: int | None = self._table.transaction_version(self._identifier + name)
        return version

    def version(self) -> int | None:
        return int(self._table.version())

    def files(self) -> list[DataFile]:
        actions = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return [self._described(action) for action in actions]

    def _described(self, action: dict[str, Any]) -> DataFile:
        values = tuple(_text(action[f"partition.{name}"]) for name in self._names)
        path = f"{self.data_folder}/{unquote(action['path'])}"
        return DataFile(path, action["num_records"], action["size_bytes"], values)

    def commit(self, change: Change) -> None:
        from deltalake import CommitProperties
        from deltalake.transaction import AddAction, RemoveAction

        now_ms = time.time_ns() // 1_000_000
        changes_data = change.state is not None
        actions: list[Any] = [
            AddAction(self._entry(file), file.bytes, self._values(file), now_ms, changes_data, _numbers(file))
            for file in change.add
        ]
        actions += [
            RemoveAction(self._entry(file), changes_data, now_ms, file.bytes, self._values(file))
            for file in change.remove
        ]
        self._check_present(change)
        properties = CommitProperties(app_transactions=self._transactions(change.state), max_commit_retries=0)
        with _moved_is_said():
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                partition_by=self._names,
                commit_properties=properties,
            )
        self.refresh()  # Unlike its other operations, this one leaves the handle where it was.

    def _check_present(self, change: Change) -> None:
        """Delta would take away what is not in it, and add a file that a sweep has removed since it was written."""
        live = {file.path for file in self.files()} if change.remove else set()
        gone = {file.path for file in change.remove} - live
        if gone:
            raise TableMovedError(f"{', '.join(sorted(gone))} is no longer in the table.")
        for file in change.add:
            if not is_file(file.path):
                raise TableError(f"{file.path} is gone before it was committed: was it swept as an orphan?")

    def _entry(self, file: DataFile) -> str:
        return file.path.removeprefix(self.data_folder + "/")

    def _values(self, file: DataFile) -> dict[str, str | None]:
        return dict(zip(self._names, file.partition, strict=True))

    def _transactions(self, state: SourceState | None) -> list[Any]:
        from deltalake import Transaction

        if state is None:
            return []
        versions = {"owner": state.owner, "batch": state.batch, "rows": state.rows, "dlq": state.dlq}
        versions["read"] = UNKNOWN if state.read is None else state.read
        versions |= {"kept/owner": state.owner, "kept/batch": state.batch}
        versions["kept/version"] = self._table.version() + 1
        versions["partitions"] = partitions = max(state.offsets, default=-1) + 1
        versions |= {f"offset/{number}": state.offsets.get(number, UNKNOWN) for number in range(partitions)}
        versions |= zip(
            TOPIC_HALVES, struct.unpack(">qq", (state.topic_id or NO_TOPIC_ID).bytes), strict=True
        )
        return [Transaction(self._identifier + name, version) for name, version in versions.items()]

    def expire(self, before_ms: int) -> int:
        """Removes files that were taken out of the table before, and lets its log forget by its own retention."""
        hours = math.ceil(max(0, time.time_ns() // 1_000_000 - before_ms) / 3_600_000)
        removed = self._table.vacuum(hours, dry_run=False, enforce_retention_duration=False)
        self._table.create_checkpoint()
        self._table.cleanup_metadata()
        return len(removed)

    def may_sweep(self, path: str) -> bool:
        """Data files alone. Names that begin so are Delta's own, such as its log and `_change_data`, but for folders of
        a partition."""
        steps = path.removeprefix(f"{self.root}/").split("/")
        return not any(step.startswith(("_", ".")) and "=" not in step for step in steps)

    def referenced(self) -> set[str]:
        """Live files, and all that the log still speaks of: a reader of an older version may want them."""
        paths = {file.path for file in self.files()}
        for found in listed(f"{self.data_folder}/_delta_log"):
            if found.path.endswith(".json"):
                paths |= {f"{self.data_folder}/{unquote(path)}" for path in _mentioned(read_text(found.path))}
        return paths


def _mentioned(log_entry: str | None) -> Iterator[str]:
    """The files that one entry of the log adds or removes."""
    for line in (log_entry or "").splitlines():
        action = json.loads(line)
        for kind in ("add", "remove"):
            if kind in action:
                yield action[kind]["path"]


def _is_news(name: str, known: pa.Schema, wanted: pa.Schema) -> bool:
    position = known.get_field_index(name)
    return position < 0 or not known.field(position).type.equals(wanted.field(name).type)


def _numbers(file: DataFile) -> str:
    return json.dumps({"numRecords": file.rows})


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


class _moved_is_said:
    """Turns deltalake's word for a lost race into ours."""

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        from deltalake.exceptions import CommitFailedError

        if isinstance(error, CommitFailedError):
            raise TableMovedError(f"The table was changed by somebody else: {error}") from error
