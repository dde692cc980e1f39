"""A topic into a table: Spark reads, the lake sink writes, batch after batch.

Exactly once: the table's own commit holds the number of the batch and the offsets reached. If the checkpoint is lost
the pipeline goes on from those offsets, and says so in the log of `anabranch.pipeline`; and if they are of a topic that
was deleted and made again since, at the beginning of the new one.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anabranch.errors import BrokerUnreachableError, DataLossError, PipelineError
from anabranch.pipeline.jobs.group_progress import commit_progress
from anabranch.pipeline.lake.change import known_id
from anabranch.pipeline.lake.settings import PipelineSettings, Step
from anabranch.pipeline.lake.sink import Counts, LakeSink, offsets_option
from anabranch.pipeline.source.offsets import EARLIEST_OFFSET, Point
from anabranch.pipeline.source.same_topic import check_same_topic, id_of, named_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from anabranch.pipeline.client.client import Topic
    from anabranch.pipeline.lake.change import SourceState

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
    topic = named_topic(settings)
    check_same_topic(settings, topic)
    sink = LakeSink(spark, settings, on_step, ordered=True, topic_id=id_of(topic))
    sink.check_checkpoint()
    batches = _Batches(sink, on_batch)
    query = (
        _stream(spark, settings, _starting_offsets(settings, sink, topic))
        .writeStream.foreachBatch(batches.take)
        .option("checkpointLocation", settings.checkpoint_uri)
        .trigger(**_trigger(settings))
        .start()
    )
    try:
        _wait(query, stop)
    except Exception as error:
        raise _cause(error, batches, sink, settings) from error
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


def _stream(spark: "SparkSession", settings: PipelineSettings, starting_offsets: str) -> "DataFrame":
    reader = (
        spark.readStream.format("anabranch")
        .option("bootstrap", settings.bootstrap)
        .option("topic", settings.topic)
        .option("includeHeaders", "true")
        .option("startingOffsets", starting_offsets)
    )
    if settings.batch_records_max is not None:
        reader = reader.option("maxOffsetsPerTrigger", str(settings.batch_records_max))
    if settings.group is not None:
        reader = reader.option("group", settings.group)
    for name, value in settings.options.items():
        reader = reader.option(name, value)
    return reader.load()


def _starting_offsets(settings: PipelineSettings, sink: LakeSink, topic: "Topic | None") -> str:
    """Spark looks at these only where there is no checkpoint."""
    before = sink.identity.predecessor
    if before is None:
        return settings.starting_offsets
    if topic is None:
        raise PipelineError(f"There is no topic {settings.topic} at {settings.bootstrap}.")
    is_another = before.is_of_another(known_id(topic.id))
    if sink.is_new:
        _say_where(settings, before, is_another)
    if is_another:
        return Point.EARLIEST.value
    # Some partitions may have come since the table's last commit.
    return offsets_option(settings.topic, {**dict.fromkeys(topic.leaders, EARLIEST_OFFSET), **before.offsets})


def _say_where(settings: PipelineSettings, before: "SourceState", is_another: bool) -> None:
    if is_another:
        logger.warning(
            "%s has records of a topic %s that was deleted and made again since: beginning at the beginning of the new "
            "one. The rows of the old one stay.",
            settings.table,
            settings.topic,
        )
    else:
        logger.warning(
            "The checkpoint %s is new, but %s already has records of %s: going on behind them, from %s.",
            settings.checkpoint_uri,
            settings.table,
            settings.topic,
            before.offsets,
        )


def _trigger(settings: PipelineSettings) -> dict[str, Any]:
    if settings.once:
        return {"availableNow": True}
    return {"processingTime": f"{settings.trigger_seconds:g} seconds"}


def _wait(query: Any, stop: Callable[[], bool] | None) -> None:
    while not query.awaitTermination(LOOK_SECONDS):
        if stop is not None and stop():
            query.stop()
            return


def _cause(error: Exception, batches: _Batches, sink: LakeSink, settings: PipelineSettings) -> Exception:
    """What the sink raised, if it was that; else Spark's own words, as far as they help."""
    if batches.failure is not None:
        return batches.failure
    if isinstance(error, PipelineError):
        return error
    found = _known_loss(sink, settings) if DataLossError.__name__ in str(error) else None
    return found or PipelineError(f"The query stopped: {error}")


def _known_loss(sink: LakeSink, settings: PipelineSettings) -> Exception | None:
    """Of a source that found records gone: what we can say better than it, since we know the table."""
    from anabranch.pipeline.lake.offset_log import last_batch

    batch = last_batch(settings.checkpoint_uri)
    if batch > last_batch(settings.checkpoint_uri, "commits") and sink.has_all_of(batch):
        return DataLossError(
            f"The records of batch {batch}, which Spark wants to repeat, are gone from {settings.topic}. None of them "
            f"is lost: the table has batch {batch}. Remove the checkpoint {settings.checkpoint_uri}: the table says "
            "where to go on."
        )
    try:
        check_same_topic(settings, named_topic(settings))
    except DataLossError as error:
        return error
    except BrokerUnreachableError:
        logger.info("%s does not answer: it is not known which topic it has now", settings.bootstrap)
    return None
