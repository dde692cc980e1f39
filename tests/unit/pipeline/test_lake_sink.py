"""What the sink decides about a batch, with reports made up instead of Spark's and a Parquet table of no rows."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast
from uuid import UUID

import pyarrow as pa
import pytest

from anabranch.errors import TableError
from anabranch.pipeline.lake.formats.table import Table, open_table
from anabranch.pipeline.lake.report import Report
from anabranch.pipeline.lake.rows.parse import TRACE
from anabranch.pipeline.lake.settings import PipelineSettings
from anabranch.pipeline.lake.sink import LakeSink
from support.checkpoints import note_offsets
from support.lake_tables import settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_SPARK = cast("SparkSession", None)
NO_FRAME = cast("DataFrame", None)


class _Files:
    """In place of `BatchFiles`: every batch is a number of tombstones, or of records that do not fit."""

    tombstones, rejected = 0, 0
    has_table = True

    def __init__(self, spark: object, given: PipelineSettings, ordered: bool) -> None:
        self._given = given
        self.table: Table | None = self._made() if self.has_table else None

    def _made(self) -> Table:
        return open_table(self._given, pa.schema(TRACE))

    def write(self, frame: object, batch: int) -> Report:
        self.table = self._made() if self.has_table else None
        return Report(read=self.tombstones + self.rejected, applied=self.tombstones)

    def rewrite_touched(self, report: Report, batch: int) -> None: ...

    def send_rejected(self, report: Report) -> int:
        return self.rejected

    def outdated(self, report: Report) -> int:
        return 0


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> type[_Files]:
    class Files(_Files): ...

    monkeypatch.setattr("anabranch.pipeline.lake.sink.BatchFiles", Files)
    return Files


@pytest.fixture
def given(tmp_path: Path, files: type[_Files]) -> PipelineSettings:
    return settings(tmp_path, to="parquet")


def _sink(given: PipelineSettings, on_step: Callable[[str], None] | None = None) -> LakeSink:
    return LakeSink(NO_SPARK, given, on_step, ordered=True)


def _note(given: PipelineSettings, batch: int, offsets: dict[int, int]) -> None:
    note_offsets(Path(given.checkpoint_uri.removeprefix("file://")), batch, given.topic, offsets, UUID(int=1))


def test_a_table_made_again_under_a_running_pipeline_is_not_filled_from_the_middle(
    given: PipelineSettings,
) -> None:
    sink = _sink(given)
    sink.write(NO_FRAME, 0)
    shutil.rmtree(Path(given.warehouse) / "default")
    open_table(given, pa.schema(TRACE))
    with pytest.raises(TableError, match=r"Was it made again\? Remove the checkpoint"):
        sink.write(NO_FRAME, 1)


def test_a_table_set_back_to_what_was_taken_over_is_not_filled_from_the_middle(
    given: PipelineSettings, tmp_path: Path
) -> None:
    _sink(given).write(NO_FRAME, 0)
    log = Path(given.warehouse) / "default" / "rows" / "_log"
    before = set(log.iterdir())
    shutil.rmtree(given.checkpoint_uri.removeprefix("file://"))
    fresh = _sink(given)
    fresh.write(NO_FRAME, 0)
    for state in set(log.iterdir()) - before:
        state.unlink()
    with pytest.raises(TableError, match=r"Was it restored\? Remove the checkpoint"):
        fresh.write(NO_FRAME, 1)


def test_a_table_that_goes_before_what_took_it_over_has_written_is_missed(given: PipelineSettings) -> None:
    _sink(given).write(NO_FRAME, 0)
    shutil.rmtree(given.checkpoint_uri.removeprefix("file://"))
    fresh = _sink(given)
    shutil.rmtree(Path(given.warehouse) / "default")
    open_table(given, pa.schema(TRACE))
    with pytest.raises(TableError, match="Was it made again"):
        fresh.write(NO_FRAME, 0)
    with pytest.raises(TableError, match="belongs to a table that is not there any more"):
        _sink(given)


def test_a_partition_never_goes_back(given: PipelineSettings) -> None:
    """An old copy of a checkpoint may end a batch of gaps, without a record to tell, before the table does."""
    sink = _sink(given)
    _note(given, 0, {0: 5, 1: 2})
    sink.write(NO_FRAME, 0)
    _note(given, 1, {0: 3, 1: 4})
    sink.write(NO_FRAME, 1)
    state = sink.table.state()
    assert state is not None
    assert state.offsets == {0: 5, 1: 4}


def test_a_batch_that_another_process_has_committed_meanwhile_is_done(given: PipelineSettings) -> None:
    """Whoever is told to stop waits for the end of what was begun."""
    steps: list[str] = []
    quicker = _sink(given)

    def on_step(step: str) -> None:
        steps.append(step)
        if step == "written":
            quicker.write(NO_FRAME, 0)

    assert _sink(given, on_step).write(NO_FRAME, 0).skipped == 1
    assert steps == ["writing", "written", "done"]


def test_batches_before_the_table_is_made_are_in_its_counts(
    given: PipelineSettings, files: type[_Files]
) -> None:
    files.has_table, files.rejected = False, 10
    _sink(given).write(NO_FRAME, 0)
    again = _sink(given)
    assert again.write(NO_FRAME, 0).skipped == 1  # It was killed before Spark had noted the batch.
    again.write(NO_FRAME, 1)
    files.has_table, files.rejected, files.tombstones = True, 1, 5
    last = _sink(given)
    last.write(NO_FRAME, 2)
    last.write(NO_FRAME, 3)
    state = last.table.state()
    assert state is not None
    assert (state.read, state.rows, state.dlq, state.batch) == (32, 10, 22, 3)
