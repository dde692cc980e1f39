"""`anabranch pipeline run`: a topic into a table, exactly once.

It goes on until it is told to stop, or with `--once` until it has what was there when it began; the next run of the
same checkpoint carries on where this one ended.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.client import Broker, broker_options
from anabranch.cli.common import Command, Failure, Function, format_option, pairs_of, show_json
from anabranch.cli.pipeline.ranges import as_json, from_option, offsets_at
from anabranch.cli.pipeline.spark import SparkStart, running_spark, spark_options, spinner, stopping
from anabranch.cli.pipeline.table import require_table_place, settings_of, shape_options, table_options
from anabranch.cli.records.starts import Kind, Start

if TYPE_CHECKING:
    from anabranch.pipeline.jobs.run import Counts

LAST_STEP = "done"
"""The last of `anabranch.pipeline.lake.sink.STEPS`, which a test compares."""


def source_option(function: Function) -> Function:
    """`--option`, which arrives as the dict `source`: what the data source is told besides."""

    def collect(_: click.Context, __: click.Parameter, options: tuple[str, ...]) -> dict[str, str]:
        return pairs_of(options, "--option", "failOnDataLoss=false")

    return click.option(
        "--option", "source", metavar="NAME=VALUE", multiple=True, callback=collect,
        help="An option of the source, for example failOnDataLoss=false; may be repeated.",
    )(function)  # fmt: skip


@click.command(cls=Command)
@click.option("--topic", required=True, help="The topic to read.")
@table_options()
@shape_options
@from_option
@click.option(
    "--checkpoint", default="", metavar="DIR", help="Where its progress is kept. [in the warehouse]"
)
@click.option("--group", metavar="NAME", help="The consumer group that shows its progress.")
@click.option(
    "--max-per-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="Records per batch at most. [upsert: 1000000]",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look for new records.",
)
@click.option("--once", is_flag=True, help="Stop when what is there now is in the table.")
@source_option
@spark_options
@broker_options
@format_option()
def run(
    topic: str, place: dict[str, Any], shape: dict[str, Any], partition_by: tuple[str, ...], start: Start,
    checkpoint: str, group: str | None, max_per_batch: int | None, every: float, once: bool,
    source: dict[str, str], spark_start: SparkStart, broker: Broker, format: str,
) -> None:  # fmt: skip
    """Keep a table up with a topic, exactly once.

    It runs until Ctrl-C, or with --once until what is there now is in the table. The next run goes on where this one
    ended. What does not fit the table goes to TOPIC.dlq with the reason.
    """
    told = {**place, **shape, "partition_by": partition_by, "bootstrap": broker.bootstrap, "topic": topic}
    told |= {"checkpoint": checkpoint, "group": group, "trigger_seconds": every, "once": once}
    told |= {"max_offsets_per_trigger": max_per_batch, "options": source}
    settings_of(**told)  # What is wrong with the options is said before the broker is asked anything.
    settings = settings_of(**told, starting_offsets=_starting(broker, topic, start))
    require_table_place(settings)
    from anabranch.pipeline.jobs.run import run_pipeline

    with (
        running_spark(spark_start, "run") as session,
        spinner(f"{topic} into {settings.table}") as say,
        stopping("Stopping after the present batch.") as asked,
    ):
        watch = Watch(asked, say)
        counts = run_pipeline(
            session, settings, on_batch=watch.on_batch, on_step=watch.on_step, stop=watch.stop
        )
    show_counts(counts, format)


def _starting(broker: Broker, topic: str, start: Start) -> str:
    """`earliest` where it can be said so: partitions that come later are then read from their beginning too."""
    offsets = offsets_at(broker, topic, start)
    return {Kind.BEGINNING: "earliest", Kind.END: "latest"}.get(start.kind) or as_json(topic, offsets)


class Watch:
    """Follows a running pipeline: shows its counts, and lets it stop only between two batches."""

    def __init__(self, asked: threading.Event, say: Callable[[str], None]) -> None:
        self._asked, self._say = asked, say
        self._is_busy = False
        self._read = self._dlq = 0

    def on_step(self, step: str) -> None:
        self._is_busy = step != LAST_STEP

    def on_batch(self, batch: int, counts: "Counts") -> None:
        self._read += counts.read
        self._dlq += counts.dlq
        self._say(
            f"batch {batch}: {counts.read} records; {self._read} read in all, {self._dlq} of them not fit"
        )

    def stop(self) -> bool:
        return self._asked.is_set() and not self._is_busy


def show_counts(counts: "Counts", format: str) -> None:
    """The last line of a command that fills a table."""
    told = {"read": counts.read, "written": counts.written, "dlq": counts.dlq, "batches": counts.batches}
    if format == "json":
        show_json(told)
    else:
        click.echo(", ".join(f"{count} {name}" for name, count in told.items()) + ".")
    check_counts(counts.read, counts.written, counts.dlq)


def check_counts(read: int, written: int, dlq: int) -> None:
    """Failure if a record is not accounted for."""
    if read != written + dlq:
        raise Failure(f"{read} records were read, but {written + dlq} are accounted for.")
