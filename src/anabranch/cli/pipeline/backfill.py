"""`anabranch pipeline backfill`: a range of a topic into a table, once."""

from typing import Any

import click

from anabranch.cli.client import Broker, broker_options
from anabranch.cli.common import Command, format_option
from anabranch.cli.pipeline.ranges import as_json, range_of, range_options
from anabranch.cli.pipeline.run import show_counts, source_option
from anabranch.cli.pipeline.spark import SparkStart, one_job, spark_options
from anabranch.cli.pipeline.table import require_table_place, settings_of, shape_options, table_options
from anabranch.cli.records.starts import Start


@click.command(cls=Command)
@click.option("--topic", required=True, help="The topic to read.")
@range_options
@table_options()
@shape_options
@click.option(
    "--tasks", type=click.IntRange(min=1), metavar="N", help="Split the range into at least so many tasks."
)
@source_option
@spark_options
@broker_options
@format_option()
def backfill(
    topic: str, start: Start, until: Start, place: dict[str, Any], shape: dict[str, Any],
    partition_by: tuple[str, ...], tasks: int | None, source: dict[str, str], spark_start: SparkStart, broker: Broker,
    format: str,
) -> None:  # fmt: skip
    """Take a range of a topic into a table, once.

    The same range a second time adds nothing. It does not move the pipeline that `run` keeps, and takes again what
    that one has taken of the same range.
    """
    from anabranch.pipeline.jobs.backfill import run_backfill

    options = source if tasks is None else {**source, "minPartitions": str(tasks)}
    told = {**place, **shape, "partition_by": partition_by, "options": options}
    settings = settings_of(**told, bootstrap=broker.bootstrap, topic=topic)
    begins, ends = range_of(broker, topic, start, until)
    require_table_place(settings)
    consequence = "The table is as it was before: a backfill is one commit."
    with one_job(spark_start, "backfill", unit="parts", consequence=consequence) as session:
        counts = run_backfill(session, settings, as_json(topic, begins), as_json(topic, ends))
    if counts.skipped:
        click.echo(f"{settings.table} has this range already.", err=True)
    show_counts(counts, format)
