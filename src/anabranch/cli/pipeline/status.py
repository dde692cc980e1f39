"""`anabranch pipeline status`: how far a pipeline is, asked of its table, checkpoint and broker, without Spark."""

from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.client import Broker, broker_options
from anabranch.cli.common import Command, Failure, format_option, show_json, show_table
from anabranch.cli.pipeline.run import check_counts
from anabranch.cli.pipeline.spark import require_spark
from anabranch.cli.pipeline.table import partition_option, settings_of, table_options

if TYPE_CHECKING:
    from anabranch.pipeline.jobs.status import PipelineStatus


@click.command(cls=Command)
@click.option("--topic", required=True, help="The topic that the pipeline reads.")
@table_options()
@partition_option
@click.option("--checkpoint", default="", metavar="DIR", help="As it was said to `run`. [in the warehouse]")
@click.option("--group", metavar="NAME", help="As it was said to `run`.")
@broker_options
@format_option()
def status(
    topic: str, place: dict[str, Any], partition_by: tuple[str, ...], checkpoint: str, group: str | None,
    broker: Broker, format: str,
) -> None:  # fmt: skip
    """Show how far a pipeline is.

    What it has read, written and rejected, by its table's own commits, and how far it is behind its topic.
    """
    told = {**place, "partition_by": partition_by, "checkpoint": checkpoint, "group": group}
    settings = settings_of(**told, bootstrap=broker.bootstrap, topic=topic)
    broker.require_answer()
    require_spark()
    from anabranch.pipeline.jobs.status import pipeline_status

    found = pipeline_status(settings)
    if not found.partitions and found.batch < 0:
        raise Failure(
            f"There is no topic {topic} at {broker.bootstrap}, and {found.table} has nothing of it."
        )
    if format == "json":
        show_json(found.as_json())
    else:
        _show(found)
    check_counts(found.read, found.written, found.dlq)


def _show(found: "PipelineStatus") -> None:
    rows = [
        ("read", found.read),
        ("written", found.written),
        ("dlq", found.dlq),
        ("last batch in the table", found.batch if found.batch >= 0 else None),
        ("last batch of the checkpoint", found.batch_finished if found.batch_finished >= 0 else None),
        ("state of the table", found.snapshot),
        ("rows in the table", found.rows),
        ("files of the table", found.files),
        ("bytes of the table", found.size_bytes),
        ("consumer group", found.group),
    ]
    show_table([found.table, f"#from {found.topic}"], rows)
    if not found.is_same_topic:
        click.echo(f"{found.topic} was deleted and made again: the table has rows of the old topic only.")
    show_table(
        ["#partition", "#in the table", "#committed by the group", "#end offset", "#lag"],
        [
            (one.partition, one.table_offset, one.group_offset, one.end_offset, one.lag)
            for one in found.partitions
        ],
    )
