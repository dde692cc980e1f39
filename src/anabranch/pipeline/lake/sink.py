"""One batch of records into a table, exactly once.

    writing     executors parse their share and write files; new columns evolve the table and the batch starts over
    rejected    what does not fit is in the dead letter topic
    written     all files are there, and the counts add up; nothing is visible yet
    committed   one commit of the table: files, batch number, offsets
    done        left-over files are gone

A batch whose number the table already knows is skipped. Killed before the commit, a batch leaves files that nothing
refers to; killed after it, the table is right and Spark repeats the batch, which is then skipped.
"""

import json
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from anabranch.errors import LostRecordsError, TableError, TableMovedError
from anabranch.pipeline.lake.settings import PipelineSettings, Step

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from anabranch.pipeline.lake.change import SourceState
    from anabranch.pipeline.lake.files import FilePlan
    from anabranch.pipeline.lake.report import Report
    from anabranch.pipeline.lake.table import Table

STEPS = ("writing", "rejected", "written", "committed", "done")
PASSES_MAX = 20
"""How often new columns may send a batch back to its beginning."""
COMMITS_MAX = 10
"""How often a commit is tried again because somebody else (`maintain`, as a rule) was quicker."""

logger = logging.getLogger("anabranch.pipeline")


@dataclass
class Counts:
    """What a pipeline has done since it was started."""

    read: int = 0
    written: int = 0
    dlq: int = 0
    batches: int = 0
    skipped: int = 0
    """Batches that the table already had."""


class LakeSink:
    """Writes the batches of one pipeline. Lives in the driver; what executors run is handed to them as plain values."""

    def __init__(
        self,
        spark: "SparkSession",
        settings: PipelineSettings,
        on_step: Step | None = None,
        *,
        ordered: bool = False,
    ) -> None:
        """`ordered`: batches follow each other in the log, so the offsets in the table must agree with them."""
        self._spark = spark
        self._settings = settings
        self._ordered = ordered
        self._on_step = on_step or (lambda step: None)
        self.counts = Counts()
        self._given, self._required = _given_columns(settings)
        self._table: Table | None = self._open()
        from anabranch.pipeline.lake.identity import identify

        self.identity, self.is_new = identify(settings.checkpoint_uri, self._state())

    def _open(self) -> "Table | None":
        """The table if it is there or can be made now; with columns to be found in records it may have to wait."""
        from anabranch.pipeline.lake.partitioning import check_partitions
        from anabranch.pipeline.lake.table import open_table

        wanted = {part.column for part in self._settings.partitions()}
        known = wanted | set(self._upsert_key()) <= set(self._given.names)
        if self._settings.schema == "records" and not known:
            try:
                return open_table(self._settings)
            except TableError:
                return None
        check_partitions(self._given, self._settings.partitions())
        table = open_table(self._settings, self._given)
        _evolve(table, self._given)
        return table

    def _state(self) -> "SourceState | None":
        return None if self._table is None else self._table.state()

    def _columns(self) -> "pa.Schema":
        return self._given if self._table is None else self._table.schema()

    @property
    def table(self) -> "Table":
        if self._table is None:
            raise TableError(f"The table {self._settings.table} is made when its first records come.")
        return self._table

    def starting_offsets(self) -> dict[int, int] | None:
        """Where a pipeline without a checkpoint goes on, if the table knows."""
        before = self.identity.predecessor
        return None if before is None else before.offsets

    def write(self, frame: "DataFrame", batch: int) -> Counts:
        """One batch; returns what this batch was."""
        if self._table is not None:
            self._table.refresh()
        if self._has(batch):
            self._check_within(_ends(frame) if self._ordered else {}, batch)
            return self._skipped(batch)
        report = self._write_files(frame, batch)
        self._check_beyond(report.starts, batch)
        counts = self._checked(report, self._send_rejected(report), batch)
        self._on_step("written")
        if not self._commit(report, counts, batch):
            self._check_within(report.offsets, batch)
            self._remove([*report.leftovers(), *report.new_files()])
            return self._skipped(batch)
        self._on_step("committed")
        self._remove(report.leftovers())
        self._add(counts)
        self._on_step("done")
        return counts

    def _has(self, batch: int) -> bool:
        """Is this batch in the table already? TableError if the table is no longer ours to write."""
        self._check_owner()
        state = self._state()
        return state is not None and state.owner == self.identity.owner and batch <= state.batch

    def _check_within(self, ends: dict[int, int], batch: int) -> None:
        """A batch may be skipped only if all its records are in the table: an old copy of a checkpoint counts the same
        batches again, with other records in them."""
        reached = self._reached()
        if self._ordered and any(end > reached.get(partition, 0) for partition, end in ends.items()):
            raise TableError(
                f"Batch {batch} is in the table, but up to {reached} and not {ends}: the checkpoint "
                f"{self._settings.checkpoint_uri} is older than the table. Remove it: the table says where to go on."
            )

    def _check_beyond(self, starts: dict[int, int], batch: int) -> None:
        reached = self._reached()
        if self._ordered and any(start < reached.get(partition, 0) for partition, start in starts.items()):
            raise TableError(
                f"Batch {batch} begins at {starts}, but the table has records up to {reached}: they would be in it "
                f"twice. Remove the checkpoint {self._settings.checkpoint_uri}: the table says where to go on."
            )

    def _reached(self) -> dict[int, int]:
        state = self._state()
        return {} if state is None else state.offsets

    def _skipped(self, batch: int) -> Counts:
        logger.info("batch %d is in the table already: skipped", batch)
        self.counts.skipped += 1
        return Counts(skipped=1)

    def _check_owner(self) -> None:
        if not self.identity.may_follow(self._state()):
            raise TableError(
                f"Another pipeline has taken over {self._settings.table} from {self._settings.topic}: one with another "
                f"checkpoint than {self._settings.checkpoint_uri}. Stop one of them."
            )

    def _write_files(self, frame: "DataFrame", batch: int) -> "Report":
        """Parse and write; again from the start as long as columns are found that the table does not have."""
        self._on_step("writing")
        for _ in range(PASSES_MAX):
            report = self._write_once(frame, batch)
            grown = report.grown_schema(self._columns())
            if grown is None:
                self._create_if_missing()
                return self._rewrite_touched(report, batch)
            self._remove([*report.leftovers(), *report.new_files()])
            self._grow(grown)
        raise TableError(
            f"Batch {batch} has new columns again after {PASSES_MAX} passes: give it a JSON Schema."
        )

    def _write_once(self, frame: "DataFrame", batch: int) -> "Report":
        from anabranch.pipeline.lake.files import WriteTask
        from anabranch.pipeline.lake.report import collect

        key = self._upsert_key()
        settings = self._settings
        task = WriteTask(self._plan(batch), settings.schema, tuple(map(tuple, self._required)), key)
        return collect(self._placed(frame), task)

    def _placed(self, frame: "DataFrame") -> "DataFrame":
        """For an upsert all records of a key come together: by the record's key, or, if it goes by columns that are
        only known once the record is parsed, all in one task."""
        if self._settings.mode != "upsert":
            return frame
        return frame.repartition(1) if self._settings.key else frame.repartition("key")

    def _plan(self, batch: int) -> "FilePlan":
        from anabranch.pipeline.lake.files import FilePlan

        columns = self._columns()
        folder = f"{self._settings.warehouse_uri}/_unmade" if self._table is None else self._table.data_folder
        staging = f"{self._settings.checkpoint_uri}/staging"
        schema = columns if self._table is None else self._table.file_schema()
        parts = () if self._table is None else self._settings.partitions()
        return FilePlan(folder, staging, batch, columns, schema, parts)

    def _grow(self, schema: "pa.Schema") -> None:
        if self._table is None:
            self._given = schema
            self._create_if_missing()
        else:
            logger.info(
                "new columns: %s",
                ", ".join(sorted(set(schema.names) - set(self._columns().names))) or "nested",
            )
            _evolve(self._table, schema)

    def _create_if_missing(self) -> None:
        if self._table is None:
            from anabranch.pipeline.lake.partitioning import check_partitions
            from anabranch.pipeline.lake.table import open_table

            check_partitions(self._given, self._settings.partitions())
            self._table = open_table(self._settings, self._given)

    def _upsert_key(self) -> tuple[str, ...]:
        from anabranch.pipeline.lake.upsert import RAW_KEY, RECORD_KEY

        if self._settings.mode != "upsert":
            return ()
        return self._settings.key or (RAW_KEY if self._settings.schema == "raw" else RECORD_KEY,)

    def _rewrite_touched(self, report: "Report", batch: int) -> "Report":
        """For an upsert: the table's files without the keys that this batch touches."""
        from anabranch.pipeline.lake.report import collect
        from anabranch.pipeline.lake.upsert import RewriteTask

        files = self.table.files() if report.keys else []
        report.removed, report.rewritten = [], []
        if files:
            paths = tuple(file.path for file in report.keys)
            task = RewriteTask(self._plan(batch), self._upsert_key(), paths)
            rewritten = collect(self._spread(files), task)
            report.removed, report.rewritten = rewritten.removed, rewritten.added
        return report

    def _spread(self, files: list[Any]) -> "DataFrame":
        rows = [(file.to_json(),) for file in files]
        tasks = max(1, min(len(rows), self._spark.sparkContext.defaultParallelism * 2))
        return self._spark.createDataFrame(rows, "file string").repartition(tasks)

    def _send_rejected(self, report: "Report") -> int:
        from anabranch.pipeline.lake.dlq import SendTask, client_settings, make_topic
        from anabranch.pipeline.lake.report import collect

        if not report.rejected:
            return 0
        client = client_settings(self._settings.bootstrap, self._settings.options)
        make_topic(client, self._settings.dlq_topic)
        frame = self._spark.createDataFrame([(file.path,) for file in report.rejected], "path string")
        sent = collect(frame, SendTask(client, self._settings.dlq_topic)).read
        self._on_step("rejected")
        return sent

    def _checked(self, report: "Report", sent: int, batch: int) -> Counts:
        counts = Counts(report.read, report.rows_added + report.applied, sent, 1)
        if counts.read != counts.written + counts.dlq:
            raise LostRecordsError(
                f"Batch {batch}: {counts.read} records were read, but {counts.written} written and {counts.dlq} sent "
                f"to {self._settings.dlq_topic}. Nothing is committed."
            )
        return counts

    def _commit(self, report: "Report", counts: Counts, batch: int) -> bool:
        """Again if somebody else was quicker; False if that was this very batch, written by another process."""
        from anabranch.pipeline.lake.change import Change

        for _ in range(COMMITS_MAX):
            state = self._next_state(self.table.state(), report, counts, batch)
            try:
                self.table.commit(Change((*report.added, *report.rewritten), tuple(report.removed), state))
                return True
            except TableMovedError as error:
                logger.info("batch %d has to be committed again: %s", batch, error)
            self.table.refresh()
            if self._has(batch):
                return False
            self._remove([file.path for file in report.rewritten])
            self._rewrite_touched(report, batch)
        raise TableMovedError(
            f"Batch {batch} was overtaken by other commits {COMMITS_MAX} times: who writes so often?"
        )

    def _next_state(
        self, before: "SourceState | None", report: "Report", counts: Counts, batch: int
    ) -> "SourceState":
        from anabranch.pipeline.lake.change import SourceState

        base = before or SourceState(self.identity.owner, -1)
        return replace(
            base,
            owner=self.identity.owner,
            batch=batch,
            offsets={**base.offsets, **report.offsets},
            rows=base.rows + counts.written,
            dlq=base.dlq + counts.dlq,
        )

    def _remove(self, paths: list[str]) -> None:
        from anabranch.pipeline.lake.storage import remove

        remove(paths)

    def _add(self, counts: Counts) -> None:
        self.counts.read += counts.read
        self.counts.written += counts.written
        self.counts.dlq += counts.dlq
        self.counts.batches += 1


def _ends(frame: "DataFrame") -> dict[int, int]:
    """By partition: the offset after the last of these records."""
    rows = frame.groupBy("partition").agg({"offset": "max"}).collect()
    return {row["partition"]: row["max(offset)"] + 1 for row in rows}


def _given_columns(settings: PipelineSettings) -> "tuple[pa.Schema, list[tuple[str, ...]]]":
    import pyarrow as pa

    from anabranch.pipeline.lake.json_schema import read_json_schema
    from anabranch.pipeline.lake.parse import RAW, TRACE

    if settings.schema == "raw":
        return RAW, []
    if settings.schema == "records":
        return TRACE, []
    given = read_json_schema(settings.schema)
    return pa.schema([*TRACE, *given.columns]), given.required


def _evolve(table: "Table", schema: "pa.Schema") -> None:
    """Somebody else may evolve it at the same time: then look again, perhaps nothing is left to do."""
    from anabranch.pipeline.lake.evolution import grown_columns

    for attempt in range(COMMITS_MAX):
        wanted = grown_columns(table.schema(), schema)
        if wanted is None:
            return
        try:
            table.evolve(wanted)
            return
        except TableMovedError:
            if attempt + 1 == COMMITS_MAX:
                raise
            table.refresh()


def offsets_option(topic: str, offsets: dict[int, int]) -> str:
    """As the source takes them."""
    return json.dumps({topic: {str(partition): offset for partition, offset in sorted(offsets.items())}})
