"""A topic into a table: Spark reads, the lake sink writes, batch after batch.

Exactly once: the table's own commit holds the number of the batch and the offsets reached. If the checkpoint is lost
the pipeline goes on from those offsets, and says so in the log of `anabranch.pipeline`.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anabranch.errors import PipelineError
from anabranch.pipeline.client import Client
from anabranch.pipeline.group_progress import commit_progress
from anabranch.pipeline.lake.settings import PipelineSettings, Step
from anabranch.pipeline.lake.sink import Counts, LakeSink, offsets_option
from anabranch.pipeline.offsets import EARLIEST_OFFSET

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Counts", "PipelineSettings", "run_pipeline"]

LOOK_SECONDS = 0.2
"""How often a running query is asked whether it still runs, and the caller whether to stop."""

logger = logging.getLogger("anabranch.pipeline")


def run_pipeline(
    spark: "SparkSession",
    settings: PipelineSettings,
    *,
    on_batch: Callable[[int, Counts], None] | None = None,
    stop: Callable[[], bool] | None = None,
    on_step: Step | None = None,
) -> Counts:
    """Run until `stop` says so, or with `once` until everything that is there now is in the table.

    `on_batch` gets the number of each batch and what it was, `on_step` the name of each step within it. Whatever stops
    a batch is raised here as it was, and nothing of that batch is in the table.
    """
    sink = LakeSink(spark, settings, on_step, ordered=True)
    batches = _Batches(sink, on_batch)
    query = (
        _stream(spark, settings, sink)
        .writeStream.foreachBatch(batches.take)
        .option("checkpointLocation", settings.checkpoint_uri)
        .trigger(**_trigger(settings))
        .start()
    )
    try:
        _wait(query, stop)
    except Exception as error:
        raise _cause(error, batches) from error
    finally:
        query.stop()
    commit_progress(settings)
    return sink.counts


class _Batches:
    """What Spark calls for each batch; keeps what went wrong, since Spark passes on only its text."""

    def __init__(self, sink: LakeSink, on_batch: Callable[[int, Counts], None] | None) -> None:
        self._sink, self._on_batch = sink, on_batch
        self.failure: Exception | None = None

    def take(self, frame: "DataFrame", batch: int) -> None:
        try:
            counts = self._sink.write(frame, batch)
            if self._on_batch is not None:
                self._on_batch(batch, counts)
        except Exception as error:
            self.failure = error
            raise


def _stream(spark: "SparkSession", settings: PipelineSettings, sink: LakeSink) -> "DataFrame":
    reader = (
        spark.readStream.format("anabranch")
        .option("bootstrap", settings.bootstrap)
        .option("topic", settings.topic)
        .option("includeHeaders", "true")
        .option("startingOffsets", _starting_offsets(settings, sink))
    )
    if settings.max_offsets_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", str(settings.max_offsets_per_trigger))
    if settings.group is not None:
        reader = reader.option("group", settings.group)
    for name, value in settings.options.items():
        reader = reader.option(name, value)
    return reader.load()


def _starting_offsets(settings: PipelineSettings, sink: LakeSink) -> str:
    """Spark looks at these only where there is no checkpoint."""
    known = sink.starting_offsets()
    if known is None:
        return settings.starting_offsets
    if sink.is_new:
        logger.warning(
            "The checkpoint %s is new, but %s already has records of %s: going on behind them, from %s.",
            settings.checkpoint_uri,
            settings.table,
            settings.topic,
            known,
        )
    return offsets_option(settings.topic, {**dict.fromkeys(_partitions(settings), EARLIEST_OFFSET), **known})


def _partitions(settings: PipelineSettings) -> list[int]:
    """Some may have come since the table's last commit."""
    with Client(settings.bootstrap) as client:
        topic = client.cluster([settings.topic]).topics.get(settings.topic)
    if topic is None:
        raise PipelineError(f"There is no topic {settings.topic} at {settings.bootstrap}.")
    return sorted(topic.leaders)


def _trigger(settings: PipelineSettings) -> dict[str, Any]:
    if settings.once:
        return {"availableNow": True}
    return {"processingTime": f"{settings.trigger_seconds:g} seconds"}


def _wait(query: Any, stop: Callable[[], bool] | None) -> None:
    while not query.awaitTermination(LOOK_SECONDS):
        if stop is not None and stop():
            query.stop()
            return


def _cause(error: Exception, batches: _Batches) -> Exception:
    """What the sink raised, if it was that; else Spark's own words, as far as they help."""
    if batches.failure is not None:
        return batches.failure
    return error if isinstance(error, PipelineError) else PipelineError(f"The query stopped: {error}")
