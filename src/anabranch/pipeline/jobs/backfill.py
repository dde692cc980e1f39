"""The backfill job: a range of a topic into a table, as one batch in parallel, exactly once.

It keeps its own place in the table, under a name made of the topic, its identity and the range: it neither moves nor
disturbs the pipeline that follows the same topic, and the same backfill a second time adds nothing. A topic that was
deleted and made again under its name is another one, and so is its range. What that pipeline has taken already is
taken again by a backfill of the same offsets: the range says what is wanted.
"""

import hashlib
import logging
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any
from uuid import UUID

from anabranch.errors import TableMissingError
from anabranch.pipeline.jobs.topics import TopicAddress, read_range
from anabranch.pipeline.lake.settings import PipelineSettings, Step
from anabranch.pipeline.source.same_topic import id_of, named_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.pipeline.lake.sink import Counts

logger = logging.getLogger("anabranch.pipeline")


@dataclass(frozen=True)
class NamedPipeline(PipelineSettings):
    """A pipeline whose place in the table is not that of its topic: `topic` is the name of the place."""

    dead_letters: str = ""

    @property
    def dlq_topic(self) -> str:
        return self.dead_letters


def named(settings: PipelineSettings, name: str, dead_letters: str) -> NamedPipeline:
    """Its checkpoint is its own too: where one was given, below it."""
    told: dict[str, Any] = {field.name: getattr(settings, field.name) for field in fields(PipelineSettings)}
    checkpoint = f"{settings.checkpoint.rstrip('/')}/{name}" if settings.checkpoint else ""
    return NamedPipeline(**{**told, "topic": name, "dead_letters": dead_letters, "checkpoint": checkpoint})


def backfill_name(topic: str, starting: str, ending: str, topic_id: UUID | None = None) -> str:
    """The same for the same range of the same topic, whoever asks."""
    told = f"{starting} {ending}" if topic_id is None else f"{starting} {ending} {topic_id}"
    return f"{topic}@{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def run_backfill(
    spark: "SparkSession",
    settings: PipelineSettings,
    starting: str,
    ending: str,
    on_step: Step | None = None,
) -> "Counts":
    """Runs the job. Its counts say `skipped` if the table has this range already."""
    from anabranch.pipeline.lake.sink import Counts, LakeSink

    topic_id = id_of(named_topic(settings))
    if topic_id is not None and _is_in_table(_own(settings, starting, ending, None)):
        _say_unknown(settings)
        return Counts(skipped=1)
    sink = LakeSink(spark, _own(settings, starting, ending, topic_id), on_step, topic_id=topic_id)
    if sink.identity.predecessor is not None:
        return Counts(skipped=1)  # Its checkpoint was lost, but the table knows.
    address = TopicAddress(settings.bootstrap, settings.topic, dict(settings.options))
    return sink.write(read_range(spark, address, starting, ending), 0)


def _say_unknown(settings: PipelineSettings) -> None:
    """By whoever did not keep the topic's identity yet: nobody can tell whether it is the same topic."""
    logger.warning(
        "%s has this range of %s already, by a version that did not keep which topic of that name it was. If the topic "
        "was deleted and made again since, take the range in two parts: each is another one.",
        settings.table,
        settings.topic,
    )


def _own(settings: PipelineSettings, starting: str, ending: str, topic_id: UUID | None) -> NamedPipeline:
    return named(settings, backfill_name(settings.topic, starting, ending, topic_id), settings.dlq_topic)


def _is_in_table(own: NamedPipeline) -> bool:
    from anabranch.pipeline.lake.formats.table import open_table

    try:
        return open_table(own).state() is not None
    except TableMissingError:
        return False
