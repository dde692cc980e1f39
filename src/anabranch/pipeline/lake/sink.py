"""One batch of records into a table, exactly once.

    writing     executors parse their share and write files; new columns evolve the table and the batch starts over
    written     all files are there, what does not fit is in the dead letter topic, and the counts add up
    committed   one commit of the table: files, batch number, offsets
    done        left-over files are gone

A batch whose number the table already knows is skipped. Killed before the commit, a batch leaves files that nothing
refers to; killed after it, the table is right and Spark repeats the batch, which is then skipped.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from anabranch.errors import LostRecordsError, TableError, TableMissingError, TableMovedError
from anabranch.pipeline.lake.batch_files import BatchFiles, remove
from anabranch.pipeline.lake.change import Change, SourceState
from anabranch.pipeline.lake.settings import PipelineSettings, Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from anabranch.pipeline.lake.report import Report
    from anabranch.pipeline.lake.table import Table

STEPS = ("writing", "written", "committed", "done")
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
    outdated: int = 0
    """Of those written by an upsert: records that are older than their key's row, and left it as it was."""


class LakeSink:
    """Writes the batches of one pipeline. Lives in the driver; what executors run is handed to them as plain values."""

    def __init__(
        self,
        spark: "SparkSession",
        settings: PipelineSettings,
        on_step: Step | None = None,
        *,
        ordered: bool = False,
        before_commit: Callable[[], None] | None = None,
    ) -> None:
        """`ordered`: batches follow each other in the log, so the offsets in the table must agree with them.

        `before_commit` is called each time that a commit is tried, once the table was read; it may raise.
        """
        self._settings = settings
        self._before_commit = before_commit or (lambda: None)
        self._ordered = ordered
        self._on_step = on_step or (lambda step: None)
        self.counts = Counts()
        self._files = BatchFiles(spark, settings, ordered)
        from anabranch.pipeline.lake.identity import identify

        self.identity, self.is_new = identify(settings.checkpoint_uri, self._state())

    def _state(self) -> "SourceState | None":
        return None if self._files.table is None else self._files.table.state()

    @property
    def table(self) -> "Table":
        if self._files.table is None:
            raise TableMissingError(f"The table {self._settings.table} is made when its first records come.")
        return self._files.table

    def starting_offsets(self) -> dict[int, int] | None:
        """Where a pipeline without a checkpoint goes on, if the table knows."""
        before = self.identity.predecessor
        return None if before is None else before.offsets

    def write(self, frame: "DataFrame", batch: int) -> Counts:
        """One batch; returns what this batch was."""
        if self._files.table is not None:
            self._files.table.refresh()
        if self._has(batch):
            self._check_within(_ends(frame) if self._ordered else {}, batch)
            return self._skipped(batch)
        self._check_follows(batch)
        self._on_step("writing")
        report = self._files.write(frame, batch)
        self._check_beyond(report.starts, batch)
        self._files.rewrite_touched(report, batch)
        counts = self._checked(report, self._files.send_rejected(report), batch)
        self._on_step("written")
        if not self._commit(report, counts, batch):
            self._check_within(report.offsets, batch)
            remove([*report.leftovers(), *self._unused(report)])
            return self._skipped(batch)
        self._on_step("committed")
        self._note_commit()
        counts.outdated = self._files.outdated(report)
        remove(report.leftovers())
        self._add(counts)
        self._on_step("done")
        return counts

    def _unused(self, report: "Report") -> list[str]:
        """Files of a batch that is in the table already. It may have been our own commit, whose answer was lost: what
        the table refers to stays."""
        used = {file.path for file in self.table.files()}
        return [path for path in report.new_files() if path not in used]

    def _has(self, batch: int) -> bool:
        """Is this batch in the table already? TableError if the table is no longer ours to write."""
        self._check_owner()
        state = self._state()
        return state is not None and state.owner == self.identity.owner and batch <= state.batch

    def _check_follows(self, batch: int) -> None:
        """A table that was brought back to an earlier state lacks what lies between it and the checkpoint."""
        state = self._state()
        if (
            self._ordered
            and state is not None
            and state.owner == self.identity.owner
            and batch > state.batch + 1
        ):
            raise TableError(
                f"Batch {batch} cannot follow batch {state.batch} of the table: what lies between is not in it. Was it "
                f"restored? Remove the checkpoint {self._settings.checkpoint_uri}: the table says where to go on."
            )

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
        if self._files.table is None:
            return True  # No record has made a row yet, so there is nothing to commit to.
        for attempt in range(COMMITS_MAX):
            if self._has(batch):  # Also the first time: new columns may have shown us a newer table.
                return False
            if attempt:
                self._files.rewrite_touched(report, batch)
            self._before_commit()
            state = self._next_state(self.table.state(), report, counts, batch)
            try:
                self.table.commit(Change(report.to_add(), tuple(report.removed), state))
                return True
            except TableMovedError as error:
                logger.info("batch %d has to be committed again: %s", batch, error)
            self.table.refresh()
        raise TableMovedError(
            f"Batch {batch} was overtaken by other commits {COMMITS_MAX} times: who writes so often?"
        )

    def _next_state(
        self, before: "SourceState | None", report: "Report", counts: Counts, batch: int
    ) -> "SourceState":
        base = before or SourceState(self.identity.owner, -1)
        return replace(
            base,
            owner=self.identity.owner,
            batch=batch,
            offsets={**base.offsets, **report.offsets},
            rows=base.rows + counts.written,
            dlq=base.dlq + counts.dlq,
        )

    def _note_commit(self) -> None:
        from anabranch.pipeline.lake.identity import with_a_commit

        if self._files.table is not None:
            self.identity = with_a_commit(self._settings.checkpoint_uri, self.identity)

    def _add(self, counts: Counts) -> None:
        self.counts.read += counts.read
        self.counts.written += counts.written
        self.counts.dlq += counts.dlq
        self.counts.outdated += counts.outdated
        self.counts.batches += 1


def _ends(frame: "DataFrame") -> dict[int, int]:
    """By partition: the offset after the last of these records."""
    rows = frame.groupBy("partition").agg({"offset": "max"}).collect()
    return {row["partition"]: row["max(offset)"] + 1 for row in rows}


def offsets_option(topic: str, offsets: dict[int, int]) -> str:
    """As the source takes them."""
    return json.dumps({topic: {str(partition): offset for partition, offset in sorted(offsets.items())}})
