"""The files of one batch: parsed and written by executors, with the table's columns grown as the records need it.

Nothing here commits records. The table may not be there yet: one that is to be partitioned or kept by columns which
only the records will show is made with the first of them.
"""

import logging
from typing import TYPE_CHECKING

from anabranch.errors import TableError, TableMissingError, TableMovedError
from anabranch.pipeline.lake.settings import PipelineSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from anabranch.pipeline.lake.change import DataFile
    from anabranch.pipeline.lake.files import FilePlan
    from anabranch.pipeline.lake.formats.table import Table
    from anabranch.pipeline.lake.report import Report

PASSES_MAX = 20
"""How often new columns may send a batch back to its beginning."""
EVOLVE_MAX = 10
"""How often columns are added again because somebody else changed the table at the same time."""

logger = logging.getLogger("anabranch.pipeline")


class BatchFiles:
    """Makes files for one table. Lives in the driver; what executors run is handed to them as plain values."""

    def __init__(self, spark: "SparkSession", settings: PipelineSettings, ordered: bool = False) -> None:
        """`ordered`: the records of a batch follow what the table has of their partitions."""
        self._spark = spark
        self._ordered = ordered
        self._settings = settings
        self._given, self._required = given_columns(settings)
        self.table: Table | None = self._open()

    def _open(self) -> "Table | None":
        """The table if it is there or can be made now."""
        from anabranch.pipeline.lake.formats.table import open_table

        wanted = {part.column for part in self._settings.partitions()} | set(self._upsert_key())
        if self._settings.schema == "records" and not wanted <= set(self._given.names):
            try:
                table = open_table(self._settings)
            except TableMissingError:
                return None
        else:
            table = self._made()
        _evolve(table, self._given)
        return table

    def _made(self) -> "Table":
        from anabranch.pipeline.lake.formats.table import open_table
        from anabranch.pipeline.lake.partitioning import check_partitions

        check_partitions(self._given, self._settings.partitions())
        return open_table(self._settings, self._given)

    def _columns(self) -> "pa.Schema":
        return self._given if self.table is None else self.table.schema()

    def _upsert_key(self) -> tuple[str, ...]:
        from anabranch.pipeline.lake.upsert import RAW_KEY, RECORD_KEY

        if self._settings.mode != "upsert":
            return ()
        return self._settings.key or (RAW_KEY if self._settings.schema == "raw" else RECORD_KEY,)

    def write(self, frame: "DataFrame", batch: int) -> "Report":
        """Parse and write; again from the start as long as columns are found that the table does not have."""
        for _ in range(PASSES_MAX):
            report = self._write_once(frame, batch)
            grown = report.grown_schema(self._columns(), self._settings.columns_max)
            if grown is None and (self.table is not None or not report.added):
                return report
            remove([*report.leftovers(), *report.new_files()])
            self._grow(grown or self._columns())
        raise TableError(
            f"Batch {batch} has new columns again after {PASSES_MAX} passes: give it a JSON Schema."
        )

    def _write_once(self, frame: "DataFrame", batch: int) -> "Report":
        from anabranch.pipeline.lake.files import WriteTask
        from anabranch.pipeline.lake.report import collect

        required = tuple(tuple(path) for path in self._required)
        task = WriteTask(
            self._plan(batch),
            self._settings.schema,
            required,
            self._upsert_key(),
            self._settings.columns_max,
        )
        return collect(self._placed(frame), task)

    def _placed(self, frame: "DataFrame") -> "DataFrame":
        """For an upsert all records of a key come together: by the record's key, or, if it goes by columns that are
        only known once the record is parsed, all in one task."""
        if self._settings.mode != "upsert":
            return frame
        return frame.repartition(1) if self._settings.key else frame.repartition("key")

    def _plan(self, batch: int) -> "FilePlan":
        """As long as there is no table, files are only written to find out its columns."""
        from anabranch.pipeline.lake.files import FilePlan

        staging = self._settings.staging_uri
        columns = self._columns()
        if self.table is None:
            return FilePlan(staging, staging, batch, columns, columns, ())
        return FilePlan(
            self.table.data_folder,
            staging,
            batch,
            columns,
            self.table.file_schema(),
            self.table.parts,
            self.table.reserved,
            self.table.widens,
        )

    def _grow(self, schema: "pa.Schema") -> None:
        if self.table is None:
            self._given = schema
            self.table = self._made()
        else:
            new = sorted(set(schema.names) - set(self._columns().names))
            logger.info("new columns: %s", ", ".join(new) or "inside of others")
            _evolve(self.table, schema)

    def rewrite_touched(self, report: "Report", batch: int) -> None:
        """For an upsert: the table's files without the rows this batch replaces, instead of what the report has."""
        from anabranch.pipeline.lake.report import collect
        from anabranch.pipeline.lake.rewrite import RewriteTask

        remove([file.path for file in (*report.rewritten, *report.outdated)])
        report.removed, report.rewritten, report.dropped, report.outdated = [], [], [], []
        files = self.table.files() if report.keys and self.table is not None else []
        if files:
            paths = tuple(file.path for file in report.keys)
            task = RewriteTask(self._plan(batch), self._upsert_key(), paths, self._ordered)
            rewritten = collect(self._spread(files), task)
            report.removed, report.rewritten = rewritten.removed, rewritten.added
            report.outdated = rewritten.outdated
        if report.outdated and report.added:
            self._drop_outdated(report, batch)

    def _drop_outdated(self, report: "Report", batch: int) -> None:
        from anabranch.pipeline.lake.report import collect
        from anabranch.pipeline.lake.rewrite import DropTask

        paths = tuple(file.path for file in report.outdated)
        task = DropTask(self._plan(batch), self._upsert_key(), paths)
        dropped = collect(self._spread(report.added), task)
        report.dropped = dropped.removed
        report.rewritten += dropped.added

    def outdated(self, report: "Report") -> int:
        """How many records of this batch were older than the row of their key."""
        from anabranch.pipeline.lake.rewrite import distinct_keys

        return distinct_keys(tuple(file.path for file in report.outdated)).num_rows if report.outdated else 0

    def _spread(self, files: "list[DataFile]") -> "DataFrame":
        rows = [(file.to_json(),) for file in files]
        tasks = max(1, min(len(rows), self._spark.sparkContext.defaultParallelism * 2))
        return self._spark.createDataFrame(rows, "file string").repartition(tasks)

    def send_rejected(self, report: "Report") -> int:
        """To the dead letter topic; returns how many the broker has taken."""
        from anabranch.pipeline.lake.dlq import SendTask, client_settings, make_topic
        from anabranch.pipeline.lake.report import collect

        if not report.rejected:
            return 0
        client = client_settings(self._settings.bootstrap, self._settings.options)
        make_topic(client, self._settings.dlq_topic)
        frame = self._spark.createDataFrame([(file.path,) for file in report.rejected], "path string")
        return collect(frame, SendTask(client, self._settings.dlq_topic)).read


def remove(paths: list[str]) -> None:
    from anabranch.pipeline.lake.formats import storage

    storage.remove(paths)


def given_columns(settings: PipelineSettings) -> "tuple[pa.Schema, list[tuple[str, ...]]]":
    """What is known of the columns before any record was seen, and which of them must not be null."""
    import pyarrow as pa

    from anabranch.pipeline.lake.rows.json_schema import read_json_schema
    from anabranch.pipeline.lake.rows.parse import RAW, TRACE

    if settings.schema == "raw":
        return RAW, []
    if settings.schema == "records":
        return TRACE, []
    given = read_json_schema(settings.schema)
    return pa.schema([*TRACE, *given.columns]), given.required


def _evolve(table: "Table", schema: "pa.Schema") -> None:
    """Somebody else may evolve it at the same time: then look again, perhaps nothing is left to do."""
    from anabranch.pipeline.lake.partitioning import check_new_columns
    from anabranch.pipeline.lake.rows.evolution import grown_columns

    for attempt in range(EVOLVE_MAX):
        wanted = grown_columns(table.schema(), schema, table.widens)
        if wanted is None:
            return
        check_new_columns(sorted(set(wanted.names) - set(table.schema().names)), table.reserved)
        try:
            table.evolve(wanted)
            return
        except TableMovedError:
            if attempt + 1 == EVOLVE_MAX:
                raise
            table.refresh()
