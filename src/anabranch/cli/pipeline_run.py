"""`anabranch pipeline run`: a topic into a table, exactly once.

It goes on until it is told to stop, or with `--once` until it has what was there when it began; the next run of the
same checkpoint carries on where this one ended.
"""

from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.client import Broker, broker_options
from anabranch.cli.common import Command, Failure, format_option, show_json
from anabranch.cli.pipeline_ranges import as_json, from_option, offsets_at
from anabranch.cli.pipeline_spark import SparkStart, running_spark, spark_options, spinner, stopping
from anabranch.cli.pipeline_table import settings_of, shape_options, table_options
from anabranch.cli.starts import Kind, Start

if TYPE_CHECKING:
    from anabranch.pipeline.run import Counts


@click.command(cls=Command)
@click.option("--topic", required=True, help="The topic to read.")
@table_options
@shape_options
@from_option
@click.option(
    "--checkpoint", default="", metavar="DIR", help="Where its progress is kept. [in the warehouse]"
)
@click.option("--group", metavar="NAME", help="The consumer group that shows its progress.")
@click.option("--max-per-batch", type=click.IntRange(min=1), metavar="N", help="Records per batch at most.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look for new records.",
)
@click.option("--once", is_flag=True, help="Stop when what is there now is in the table.")
@spark_options
@broker_options
@format_option()
def run(
    topic: str, place: dict[str, Any], shape: dict[str, Any], start: Start, checkpoint: str, group: str | None,
    max_per_batch: int | None, every: float, once: bool, spark_start: SparkStart, broker: Broker, format: str,
) -> None:  # fmt: skip
    """Keep a table up with a topic, exactly once: until Ctrl-C, or with --once until what is there is taken."""
    told = {
        **place,
        **shape,
        "bootstrap": broker.bootstrap,
        "topic": topic,
        "checkpoint": checkpoint,
        "group": group,
    }
    told |= {"max_offsets_per_trigger": max_per_batch, "trigger_seconds": every, "once": once}
    settings_of(**told)  # What is wrong with the options is said before the broker is asked anything.
    settings = settings_of(**told, starting_offsets=_starting(broker, topic, start))
    from anabranch.pipeline.run import run_pipeline

    with running_spark(spark_start, "run") as session, spinner(f"{topic} into {settings.table}") as say:

        def on_batch(counts: "Counts") -> None:
            say(f"{counts.read} read, {counts.written} written, {counts.dlq} dlq, {counts.batches} batches")

        with stopping("Stopping after the present batch.") as asked:
            counts = run_pipeline(session, settings, on_batch=on_batch, stop=asked)
    show_counts(counts, format)


def _starting(broker: Broker, topic: str, start: Start) -> str:
    """`earliest` where it can be said so: partitions that come later are then read from their beginning too."""
    offsets = offsets_at(broker, topic, start)
    return {Kind.BEGINNING: "earliest", Kind.END: "latest"}.get(start.kind) or as_json(topic, offsets)


def show_counts(counts: "Counts", format: str) -> None:
    """The last line of a command that fills a table."""
    told = {"read": counts.read, "written": counts.written, "dlq": counts.dlq, "batches": counts.batches}
    if format == "json":
        show_json(told)
    else:
        click.echo(", ".join(f"{count} {name}" for name, count in told.items()) + ".")
    if counts.read != counts.written + counts.dlq:
        raise Failure(
            f"{counts.read} records were read, but {counts.written + counts.dlq} are accounted for."
        )
