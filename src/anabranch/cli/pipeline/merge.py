"""`anabranch pipeline merge`: small objects in the object store made into large ones by a Spark job.

A cluster does this by itself; the job is for more than its leader can keep up with, and safe beside it.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from anabranch.cli.client import Broker, broker_options
from anabranch.cli.common import Command, format_option, show_json
from anabranch.cli.pipeline.spark import SparkStart, credentials_option, one_job, spark_options

if TYPE_CHECKING:
    from anabranch.pipeline.jobs.merge import Merged


@click.command(cls=Command)
@click.option(
    "--topic", "topics", multiple=True, help="A topic in the object store; may be repeated. [default: all]"
)
@credentials_option
@spark_options
@broker_options
@format_option()
def merge(
    topics: tuple[str, ...],
    credentials_file: str | None,
    spark_start: SparkStart,
    broker: Broker,
    format: str,
) -> None:
    """Make large objects of small ones. Tasks must reach the object store."""
    broker.admin()
    from anabranch.pipeline.jobs.merge import merge_objects, plan_merges

    done: list[Merged] = []
    if plan_merges(broker.bootstrap, topics):  # Without anything to do, Spark need not start.
        consequence = "Every record is where it was, or in its new place."
        with one_job(spark_start, "merge", unit="objects", consequence=consequence) as session:
            done = merge_objects(session, broker.bootstrap, topics, credentials_file)
    _show(done, format)


def _show(done: "list[Merged]", format: str) -> None:
    if format == "json":
        show_json({"objects": [asdict(each) for each in done]})
        return
    if not done:
        click.echo("There are no small objects to merge.")
        return
    before, size = sum(each.objects_before for each in done), sum(each.bytes for each in done)
    click.echo(f"Read {before} objects, {size} bytes; wrote {len(done)}.")
    left = sum(each.partitions - each.replaced for each in done)
    if left:
        reasons = "; ".join(sorted({reason for each in done for reason in each.reasons}))
        click.echo(
            f"{left} parts of partitions stay as they are ({reasons}): what was written for them is collected."
        )
