"""`anabranch pipeline compact`: a compacted topic's log thinned out by a Spark job, a task for each partition.

Tasks write files aside; the node checks every record in them and alone puts them in place. Of a topic in the object
store they write objects, and the node names them in the place of the others.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from anabranch.cli.client import Broker, broker_options
from anabranch.cli.common import Command, Failure, format_option, show_json, show_table
from anabranch.cli.durations import seconds_option
from anabranch.cli.pipeline.spark import SparkStart, credentials_option, one_job, spark_options

if TYPE_CHECKING:
    from anabranch.pipeline.jobs.compact_partition import Compacted


@click.command(cls=Command)
@click.option("--topic", required=True, help="A topic whose cleanup.policy is compact.")
@seconds_option("--wait", "2m", "How long to wait for the node's answer.")
@credentials_option
@spark_options
@broker_options
@format_option()
def compact(
    topic: str,
    wait: float,
    credentials_file: str | None,
    spark_start: SparkStart,
    broker: Broker,
    format: str,
) -> None:
    """Keep only the last record of each key. Tasks must reach the node's data folder, or the object store."""
    broker.partitions_of(broker.admin(), topic)
    from anabranch.pipeline.jobs.compact import compact_topic, plan_tasks

    plan_tasks(broker.bootstrap, topic)  # A topic that cannot be compacted is said before Spark starts.
    consequence = "The log is as it was, or as the node has checked it."
    with one_job(spark_start, "compact", unit="partitions", consequence=consequence) as session:
        done = compact_topic(
            session, broker.bootstrap, topic, wait_seconds=wait, credentials_file=credentials_file
        )
    _show(topic, done, format)
    refused = [each for each in done if each.offer_id and not each.taken]
    if refused:
        named = ", ".join(f"{topic}-{each.partition} ({each.reason})" for each in refused)
        raise Failure(f"The node did not take what was offered for {named}. The log is as it was: try again.")


def _show(topic: str, done: "list[Compacted]", format: str) -> None:
    if format == "json":
        show_json({"topic": topic, "partitions": [asdict(each) for each in done]})
        return
    show_table(
        ["#partition", "#bytes before", "#bytes after", "outcome"],
        [
            (each.partition, each.bytes_before, each.bytes_after, "compacted" if each.taken else each.reason)
            for each in done
        ],
    )
