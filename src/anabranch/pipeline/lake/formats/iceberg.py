"""A table in Iceberg, through pyiceberg: the catalog embedded in the warehouse (SQLite), or any other by setting.

A pipeline's state is a property of the table, `anabranch.<topic>`, set in the transaction that adds the files, and
part of the snapshot's summary, `anabranch.state.<topic>`: a table that is rolled back keeps its properties.
pyiceberg tries a refused commit again by itself, which is right for rows that nobody else could have written, and
wrong for a batch that another process of the same pipeline may just have committed: so its retries are switched off
and the caller decides. Every commit makes a snapshot, one of a batch without rows too: a commit asserts the snapshot
it came after, and nothing about properties.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from anabranch.errors import TableError, TableMissingError, TableMovedError
from anabranch.pipeline.lake.change import Change, DataFile, SourceState
from anabranch.pipeline.lake.formats.neighbours import check_alone
from anabranch.pipeline.lake.partitioning import agreed, field_names, reserved_names
from anabranch.pipeline.lake.rows.arrow_types import small_schema
from anabranch.pipeline.lake.settings import UNITS, PartitionField, PipelineSettings

STATE_PROPERTY = "anabranch."
STATE_SUMMARY = "anabranch.state."
BATCH_SUMMARY = "anabranch.batch"
CATALOG_FILE = "catalog.db"
CREATED_WITH = {
    "write.metadata.delete-after-commit.enabled": "true",  # A new metadata file comes with every batch.
    "write.metadata.previous-versions-max": "20",
}


def open_iceberg(settings: PipelineSettings, schema: pa.Schema | None) -> "IcebergTable":
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    catalog = _catalog(settings, may_make=schema is not None)
    try:
        table = catalog.load_table(settings.table_name)
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        if not settings.catalog:
            check_alone(settings.table_uri, "iceberg")
        if schema is None:
            raise TableMissingError(
                f"There is no table {settings.table_name} in {settings.warehouse}."
            ) from error
        catalog.create_namespace_if_not_exists(settings.table_name.rsplit(".", 1)[0])
        table = _create(catalog, settings, schema)
    return IcebergTable(table, settings)


def _catalog(settings: PipelineSettings, *, may_make: bool) -> Any:
    from pyiceberg.catalog import load_catalog

    if settings.catalog:
        return load_catalog(settings.catalog.get("name", "anabranch"), **_properties(settings))
    folder = Path(settings.warehouse_uri.removeprefix("file://"))
    if may_make:
        folder.mkdir(parents=True, exist_ok=True)
    elif not (folder / CATALOG_FILE).is_file():
        # pyiceberg would make one: whoever only looks leaves nothing behind where there was nothing.
        check_alone(settings.table_uri, "iceberg")
        raise TableMissingError(
            f"There is no table {settings.table_name} in {settings.warehouse}: it has no {CATALOG_FILE}."
        )
    return load_catalog(
        "anabranch",
        type="sql",
        uri=f"sqlite:///{folder}/{CATALOG_FILE}",
        warehouse=settings.warehouse_uri,
    )


def _properties(settings: PipelineSettings) -> dict[str, str]:
    """A REST catalog knows its own places; to any other the warehouse says where tables go."""
    properties = {name: value for name, value in settings.catalog.items() if name != "name"}
    is_rest = properties.get("type") == "rest" or properties.get("uri", "").startswith("http")
    return properties if is_rest else {"warehouse": settings.warehouse_uri, **properties}


def _create(catalog: Any, settings: PipelineSettings, schema: pa.Schema) -> Any:
    """Made and partitioned in one transaction: the specification needs the numbers the columns get."""
    from pyiceberg.exceptions import TableAlreadyExistsError

    parts = settings.partitions()
    try:
        with catalog.create_table_transaction(
            settings.table_name, schema, properties={"format-version": "2", **CREATED_WITH}
        ) as transaction:
            check_alone(transaction.table_metadata.location, "iceberg")
            with transaction.update_spec() as spec:
                for part, name in zip(parts, field_names(parts, schema.names), strict=True):
                    spec.add_field(part.column, _transform(part), name if part.unit else None)
    except TableAlreadyExistsError:
        pass  # Somebody was quicker: theirs is as good.
    return catalog.load_table(settings.table_name)


def _transform(part: PartitionField) -> Any:
    from pyiceberg import transforms

    if part.unit is None:
        return transforms.IdentityTransform()
    return {
        "hour": transforms.HourTransform,
        "day": transforms.DayTransform,
        "month": transforms.MonthTransform,
    }[part.unit]()


def _parts(table: Any) -> list[PartitionField]:
    return [
        PartitionField(table.schema().find_column_name(part.source_id), _unit(part.transform))
        for part in table.spec().fields
    ]


def _unit(transform: Any) -> str | None:
    text = str(transform)
    if text != "identity" and text not in UNITS:
        raise TableError(f"The table is partitioned by {text} of a column, which a pipeline cannot write.")
    return None if text == "identity" else text


class IcebergTable:
    """See `table.Table`."""

    widens = True

    def __init__(self, table: Any, settings: PipelineSettings) -> None:
        self._table = table
        self._topic = settings.topic
        self._property = STATE_PROPERTY + settings.topic
        self.root: str = table.location()
        self.data_folder = f"{self.root}/data"
        self.parts = agreed(settings.table, _parts(table), settings.partitions())
        self.reserved = reserved_names(self.parts, [part.name for part in table.spec().fields])

    def refresh(self) -> None:
        self._table.refresh()

    def schema(self) -> pa.Schema:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        return small_schema(schema_to_pyarrow(self._table.schema()))

    def file_schema(self) -> pa.Schema:
        return self.schema()

    def evolve(self, schema: pa.Schema) -> None:
        with _moved_is_said(), self._table.transaction() as transaction:
            self._without_retries()
            with transaction.update_schema() as update:
                update.union_by_name(_without_numbers(schema))

    def state(self) -> SourceState | None:
        text = self._table.properties.get(self._property)
        found = None if text is None else state_text(self._table.metadata, self._topic, text)
        return None if found is None else SourceState.from_json(found)

    def version(self) -> int | None:
        snapshot = self._table.current_snapshot()
        return None if snapshot is None else int(snapshot.snapshot_id)

    def files(self) -> list[DataFile]:
        return [self._described(file) for file in self._live().values()]

    def commit(self, change: Change) -> None:
        with _moved_is_said(), self._table.transaction() as transaction:
            self._without_retries()
            # A snapshot also where no file changes: properties alone are set over whatever somebody else has set.
            self._stage_files(transaction, change)
            if change.state is not None:
                transaction.set_properties({self._property: change.state.to_json()})

    def _stage_files(self, transaction: Any, change: Change) -> None:
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        update = transaction.update_snapshot(snapshot_properties=self._summary(change.state))
        live = self._live() if change.remove else {}
        with update.overwrite() if change.remove else update.merge_append() as files:
            for file in change.add:
                files.append_data_file(
                    parquet_file_to_data_file(self._table.io, transaction.table_metadata, file.path)
                )
            for file in change.remove:
                if file.path not in live:
                    raise TableMovedError(f"{file.path} is no longer in the table.")
                files.delete_data_file(live[file.path])

    def _summary(self, state: SourceState | None) -> dict[str, str]:
        if state is None:
            return {}
        return {BATCH_SUMMARY: str(state.batch), STATE_SUMMARY + self._topic: state.to_json()}

    def expire(self, before_ms: int) -> int:
        old = [snapshot for snapshot in self._table.snapshots() if snapshot.timestamp_ms < before_ms]
        current = self._table.current_snapshot()
        count = sum(1 for snapshot in old if current is None or snapshot.snapshot_id != current.snapshot_id)
        if count:
            with _moved_is_said():
                moment = datetime.fromtimestamp(before_ms / 1000, UTC)
                self._table.maintenance.expire_snapshots().older_than(moment).commit()
        return count

    def may_sweep(self, path: str) -> bool:
        return path.startswith((f"{self.data_folder}/", f"{self.root}/metadata/"))

    def referenced(self) -> set[str]:
        paths: set[str] = {self._table.metadata_location}
        paths.update(entry.metadata_file for entry in self._table.metadata.metadata_log)
        for snapshot in self._table.snapshots():
            paths.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(self._table.io):
                if manifest.manifest_path in paths:
                    continue
                paths.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
                paths.update(entry.data_file.file_path for entry in entries)
        return paths

    def _live(self) -> dict[str, Any]:
        """Of the current snapshot, by address. Another engine's delete files would be lost by a rewrite."""
        live = {}
        for task in self._table.scan().plan_files():
            if task.delete_files:
                raise TableError(
                    f"{task.file.file_path} has delete files of another engine: compact the table there first."
                )
            live[task.file.file_path] = task.file
        return live

    def _described(self, file: Any) -> DataFile:
        values = tuple(None if value is None else str(value) for value in _values(file.partition))
        return DataFile(file.file_path, file.record_count, file.file_size_in_bytes, values)

    def _without_retries(self) -> None:
        """In our copy of the metadata alone: a commit begins from the one that the catalog has."""
        self._table.metadata.properties["commit.retry.num-retries"] = "0"


def state_text(metadata: Any, topic: str, newest: str) -> str | None:
    """The topic's state in the current snapshot: `newest`, its last one, unless the table was rolled back since.

    None if it was rolled back to before the topic's first commit; TableError if it cannot be known.
    """
    name = STATE_SUMMARY + topic
    others = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    lineage, at = [], metadata.current_snapshot_id
    while at in others:
        lineage.append(others.pop(at))
        at = lineage[-1].parent_snapshot_id
    unclear = at is not None
    for snapshot in lineage:
        found = _told(snapshot, name)
        if found is not None:
            return found
        if _told(snapshot, BATCH_SUMMARY) is not None and not _has_state(snapshot):
            unclear = True  # By whoever kept no state in the summary yet: of our topic or of another.
            break
    if not any(_told(snapshot, name) == newest for snapshot in others.values()):
        return newest
    if not unclear:
        return None
    raise TableError(
        f"The table was rolled back to a snapshot that does not say how far {topic} had come by then. Set the table to "
        "its newest snapshot again, or fill a new table."
    )


def _told(snapshot: Any, name: str) -> str | None:
    """By the snapshot's summary, which other engines need not give it."""
    told: str | None = None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)
    return told


def _has_state(snapshot: Any) -> bool:
    return any(name.startswith(STATE_SUMMARY) for name in snapshot.summary.additional_properties)


def _values(record: Any) -> Iterator[Any]:
    return (record[position] for position in range(len(record)))


def _without_numbers(schema: pa.Schema) -> pa.Schema:
    """Columns are matched by name; numbers of new ones are the catalog's to give."""
    from anabranch.pipeline.lake.rows.arrow_types import plain_schema

    return plain_schema(schema)


class _moved_is_said:
    """Turns pyiceberg's word for a lost race into ours."""

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        if isinstance(error, (CommitFailedException, ValidationException)):
            raise TableMovedError(f"The table was changed by somebody else: {error}") from error
