"""One batch of records into a table, exactly once.

    writing     executors parse their share and write files; new columns evolve the table and the batch starts over
    written     all files are there, what does not fit is in the dead letter topic, and the counts add up
    committed   one commit of the table: files, batch number, offsets
    done        left-over files are gone

A batch whose number the table already knows is skipped, without reading it. Killed before the commit, a batch leaves
files that nothing refers to; killed after it, the table is right and Spark repeats the batch, which is then skipped.

Offsets are compared only within one topic. One that was deleted and made again under its name is another: its records
follow those of the old one, and its offsets take their place in the table's state.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

from anabranch.errors import DataLossError, LostRecordsError, TableError, TableMissingError, TableMovedError
from anabranch.pipeline.lake.batch_files import BatchFiles, remove
from anabranch.pipeline.lake.change import BatchEnd, Change, SourceState
from anabranch.pipeline.lake.settings import PipelineSettings, Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from anabranch.pipeline.lake.formats.table import Table
    from anabranch.pipeline.lake.report import Report

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
        topic_id: UUID | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> None:
        """`ordered`: batches follow each other in the log, so the offsets in the table must agree with them; of which
        topic they are is then in Spark's checkpoint. `topic_id` is the topic as it was when this began.

        `before_commit` is called each time that a commit is tried, once the table was read; it may raise.
        """
        self._settings = settings
        self._before_commit = before_commit or (lambda: None)
        self._ordered = ordered
        self._topic_id = topic_id
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

    def write(self, frame: "DataFrame", batch: int) -> Counts:
        """One batch; returns what this batch was."""
        if self._files.table is not None:
            self._files.table.refresh()
        planned = self._planned(batch)
        if self._has(batch):
            self._check_within(planned or self._read_end(frame), batch)
            return self._skipped(batch)
        if self._has_begun(batch):
            return self._skipped(batch)
        self._check_follows(batch)
        self._check_start(planned, batch)
        self._on_step("writing")
        report = self._files.write(frame, batch)
        end = planned or BatchEnd(report.offsets, self._topic_id)
        self._check_beyond(report.starts, end.topic_id, batch)
        self._files.rewrite_touched(report, batch)
        counts = self._checked(report, self._files.send_rejected(report), batch)
        self._on_step("written")
        if not self._commit(report, counts, end, batch):
            self._check_within(end, batch)
            remove([*report.leftovers(), *self._unused(report)])
            self._on_step("done")
            return self._skipped(batch)
        self._on_step("committed")
        self._note_commit()
        counts.outdated = self._files.outdated(report)
        remove(report.leftovers())
        self._add(counts)
        self._on_step("done")
        return counts

    def _planned(self, batch: int) -> BatchEnd | None:
        """By Spark's checkpoint, if it says: nothing has to be read for it, and the records may be gone by now."""
        from anabranch.pipeline.lake.offset_log import batch_end

        if not self._ordered:
            return None
        return batch_end(self._settings.checkpoint_uri, self._settings.topic, batch)

    def _read_end(self, frame: "DataFrame") -> BatchEnd:
        return BatchEnd(_ends(frame) if self._ordered else {}, self._topic_id)

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

    def check_checkpoint(self) -> None:
        """TableError if the table lacks what Spark's checkpoint says is finished; with no new records, no batch comes
        that would show it."""
        from anabranch.pipeline.lake.offset_log import last_batch

        self._check_owner()
        finished = last_batch(self._settings.checkpoint_uri, "commits")
        if finished >= 0:
            self._check_follows(finished + 1)

    def _has_begun(self, batch: int) -> bool:
        """Was this a batch without a row, before there was a table?"""
        begun = self.identity.begun
        return self._ordered and begun is not None and batch <= begun.batch

    def _check_follows(self, batch: int) -> None:
        """A table that was brought back to an earlier state lacks what lies between it and the checkpoint."""
        state = self._state()
        if not self._ordered:
            return
        if state is None:
            self._check_first(batch)
        elif batch > (state.batch + 1 if state.owner == self.identity.owner else 0):
            raise TableError(
                f"Batch {batch} cannot follow batch {state.batch} of the table: what lies between is not in it. Was it "
                f"restored? Remove the checkpoint {self._settings.checkpoint_uri}: the table says where to go on."
            )

    def _check_first(self, batch: int) -> None:
        if self.identity.knows_a_table:
            raise TableError(
                f"Batch {batch} cannot follow the earlier ones: the table {self._settings.table} has none of them. Was "
                f"it made again? Remove the checkpoint {self._settings.checkpoint_uri} to fill it from the start."
            )

    def _check_start(self, planned: BatchEnd | None, batch: int) -> None:
        """The offsets of the table, where a pipeline without a checkpoint begins, were compared with the topic of that
        moment. Spark asks for the first batch a little later."""
        before = self.identity.predecessor
        if planned is None or batch > 0 or before is None or before.is_of_another(self._topic_id):
            return
        if before.is_of_another(planned.topic_id):
            raise DataLossError(
                f"The topic {self._settings.topic} was deleted and made again while the pipeline was started. Remove "
                f"the checkpoint {self._settings.checkpoint_uri} to read the new one from its beginning."
            )

    def has_all_of(self, batch: int) -> bool:
        """Does the table have this batch, and by Spark's checkpoint all of its records?"""
        planned = self._planned(batch)
        return planned is not None and self._has(batch) and self._is_within(planned)

    def _is_within(self, end: BatchEnd) -> bool:
        reached = self._reached(end.topic_id)
        return all(at <= reached.get(partition, 0) for partition, at in end.offsets.items())

    def _check_within(self, end: BatchEnd, batch: int) -> None:
        """A batch may be skipped only if all its records are in the table: an old copy of a checkpoint counts the same
        batches again, with other records in them."""
        if self._ordered and not self._is_within(end):
            reached = self._reached(end.topic_id)
            raise TableError(
                f"Batch {batch} is in the table, but up to {reached} and not {end.offsets}: the checkpoint "
                f"{self._settings.checkpoint_uri} is older than the table. Remove it: the table says where to go on."
            )

    def _check_beyond(self, starts: dict[int, int], topic_id: UUID | None, batch: int) -> None:
        reached = self._reached(topic_id)
        if self._ordered and any(start < reached.get(partition, 0) for partition, start in starts.items()):
            raise TableError(
                f"Batch {batch} begins at {starts}, but the table has records up to {reached}: they would be in it "
                f"twice. Remove the checkpoint {self._settings.checkpoint_uri}: the table says where to go on."
            )

    def _reached(self, topic_id: UUID | None) -> dict[int, int]:
        """How far the table has come in this topic, and not in an older one of its name."""
        state = self._state()
        return {} if state is None or state.is_of_another(topic_id) else state.offsets

    def _skipped(self, batch: int) -> Counts:
        logger.info("batch %d is in the table already, or made no row: skipped", batch)
        self.counts.skipped += 1
        return Counts(skipped=1)

    def _check_owner(self) -> None:
        if not self.identity.may_follow(self._state()):
            raise TableError(
                f"Another pipeline has taken over {self._settings.table} from {self._settings.topic}: one with another "
                f"checkpoint than {self._settings.checkpoint_uri}. Stop one of them; or, if there is no other, remove "
                "the checkpoint: the table says where to go on."
            )

    def _checked(self, report: "Report", sent: int, batch: int) -> Counts:
        counts = Counts(report.read, report.rows_added + report.applied, sent, 1)
        if counts.read != counts.written + counts.dlq:
            raise LostRecordsError(
                f"Batch {batch}: {counts.read} records were read, but {counts.written} written and {counts.dlq} sent "
                f"to {self._settings.dlq_topic}. Nothing is committed."
            )
        return counts

    def _commit(self, report: "Report", counts: Counts, end: BatchEnd, batch: int) -> bool:
        """Again if somebody else was quicker; False if that was this very batch, written by another process."""
        if self._files.table is None:
            self._note_beginning(counts, end, batch)
            return True  # No record has made a row yet, so there is nothing to commit to.
        for attempt in range(COMMITS_MAX):
            if self._has(batch):  # Also the first time: new columns may have shown us a newer table.
                return False
            self._check_follows(batch)
            if attempt:
                self._files.rewrite_touched(report, batch)
            self._before_commit()
            state = self._next_state(self.table.state() or self._begun_before(batch), counts, end, batch)
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
        self, before: "SourceState | None", counts: Counts, end: BatchEnd, batch: int
    ) -> "SourceState":
        base = before or SourceState(self.identity.owner, -1)
        if base.is_of_another(end.topic_id):
            logger.warning(
                "%s has rows of an older topic %s: those of the one that has its name now are added to them.",
                self._settings.table,
                self._settings.topic,
            )
        reached = {} if base.is_of_another(end.topic_id) else base.offsets
        ends = {partition: max(at, reached.get(partition, 0)) for partition, at in end.offsets.items()}
        return replace(
            base,
            owner=self.identity.owner,
            batch=batch,
            offsets={**reached, **ends},
            rows=base.rows + counts.written,
            dlq=base.dlq + counts.dlq,
            read=base.records_read + counts.read,
            topic_id=end.topic_id or base.topic_id,
        )

    def _note_beginning(self, counts: Counts, end: BatchEnd, batch: int) -> None:
        """For the first commit, which may be one of a later run: its counts are those of all batches."""
        from anabranch.pipeline.lake.identity import with_a_beginning

        state = self._next_state(self._begun_before(batch), counts, end, batch)
        self.identity = with_a_beginning(self._settings.checkpoint_uri, self.identity, state)

    def _begun_before(self, batch: int) -> "SourceState | None":
        """A batch that is repeated is counted once."""
        begun = self.identity.begun
        return None if begun is None or batch <= begun.batch else begun

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
