"""`anabranch pipeline replay-dlq`: records that did not fit their table, tried again."""

from typing import Any

import click

from anabranch.cli.client import Broker, broker_options
from anabranch.cli.common import Command, format_option, show_json
from anabranch.cli.pipeline.run import source_option
from anabranch.cli.pipeline.spark import SparkStart, one_job, spark_options
from anabranch.cli.pipeline.table import require_table_place, settings_of, shape_options, table_options
from anabranch.pipeline.jobs.retry import RetryCounts, retry_dead_letters
from anabranch.pipeline.lake.settings import PipelineSettings


@click.command(cls=Command)
@click.option("--topic", required=True, help="The topic of the pipeline, not that of its dead letters.")
@table_options()
@shape_options
@source_option
@spark_options
@broker_options
@format_option()
def replay_dlq(
    topic: str, place: dict[str, Any], shape: dict[str, Any], partition_by: tuple[str, ...],
    source: dict[str, str], spark_start: SparkStart, broker: Broker, format: str,
) -> None:  # fmt: skip
    """Try again what did not fit its table.

    Takes what lies in TOPIC.dlq, with the options of the pipeline that rejected it. What does not fit this time either
    goes to the end of TOPIC.dlq; a record that is in the table already is left out. So is, with --mode upsert, one that
    a later record of its key has overtaken.
    """
    told = {**place, **shape, "partition_by": partition_by, "bootstrap": broker.bootstrap, "topic": topic}
    settings = settings_of(**told, options=source)
    if not _has_letters(broker, settings):
        click.echo(f"{topic} has no dead letters: there is no topic {settings.dlq_topic}.", err=True)
        _show(RetryCounts(), settings.dlq_topic, format)
        return
    require_table_place(settings)
    consequence = "The table is whole: a batch is one commit, and the next run goes on behind it."
    with one_job(spark_start, "replay-dlq", unit="parts", consequence=consequence) as session:
        counts = retry_dead_letters(session, settings)
    _show(counts, settings.dlq_topic, format)


def _has_letters(broker: Broker, settings: PipelineSettings) -> bool:
    """Their topic is made with the first of them, and may outlive the topic. Failure if neither is there."""
    admin = broker.admin()
    if settings.dlq_topic in broker.partitions(admin):
        return True
    broker.partitions_of(admin, settings.topic)
    return False


def _show(counts: RetryCounts, letters: str, format: str) -> None:
    if format == "json":
        show_json(vars(counts))
        return
    click.echo(f"{counts.read} letters read, {counts.written} written, {counts.repeated} repeated.")
    if counts.outdated:
        click.echo(f"{counts.outdated} are outdated: their keys have later records.")
    if counts.undecided:
        click.echo(
            f"{counts.undecided} are left where they are: the topic no longer goes back to them, so what became of "
            "their keys since cannot be told. Send them to the topic again if they are to count."
        )
    if counts.dlq:
        click.echo(
            f"{counts.dlq} do not fit yet: they are in {letters} again, each with the reason as a header."
        )
