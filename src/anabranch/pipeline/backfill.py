"""The backfill job: a range of a topic into a table, as one batch in parallel, exactly once.

It keeps its own place in the table, under a name made of the topic and the range: it neither moves nor disturbs the
pipeline that follows the same topic, and the same backfill a second time adds nothing. What that pipeline has taken
already is taken again by a backfill of the same offsets: the range says what is wanted.
"""

import hashlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from anabranch.pipeline.lake.settings import PipelineSettings, Step
from anabranch.pipeline.topics import TopicAddress, read_range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.pipeline.lake.sink import Counts


@dataclass(frozen=True)
class NamedPipeline(PipelineSettings):
    """A pipeline whose place in the table is not that of its topic: `topic` is the name of the place."""

    dead_letters: str = ""

    @property
    def dlq_topic(self) -> str:
        return self.dead_letters


def named(settings: PipelineSettings, name: str, dead_letters: str) -> NamedPipeline:
    told: dict[str, Any] = {field.name: getattr(settings, field.name) for field in fields(PipelineSettings)}
    return NamedPipeline(**{**told, "topic": name, "dead_letters": dead_letters})


def backfill_name(topic: str, starting: str, ending: str) -> str:
    """The same for the same range, whoever asks."""
    return f"{topic}@{hashlib.sha256(f'{starting} {ending}'.encode()).hexdigest()[:16]}"


def run_backfill(
    spark: "SparkSession",
    settings: PipelineSettings,
    starting: str,
    ending: str,
    on_step: Step | None = None,
) -> "Counts":
    """Runs the job. Its counts say `skipped` if the table has this range already."""
    from anabranch.pipeline.lake.sink import Counts, LakeSink

    own = named(settings, backfill_name(settings.topic, starting, ending), settings.dlq_topic)
    sink = LakeSink(spark, own, on_step)
    if sink.identity.predecessor is not None:
        return Counts(skipped=1)  # Its checkpoint was lost, but the table knows.
    address = TopicAddress(settings.bootstrap, settings.topic, dict(settings.options))
    return sink.write(read_range(spark, address, starting, ending), 0)
