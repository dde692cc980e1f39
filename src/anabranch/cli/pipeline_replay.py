"""`anabranch pipeline replay`: a range of a topic into another topic."""

import click

from anabranch.cli.client import Broker, broker_options
from anabranch.cli.common import Command, format_option, show_json
from anabranch.cli.pipeline_ranges import as_json, range_of, range_options
from anabranch.cli.pipeline_spark import SparkStart, one_job, spark_options
from anabranch.cli.starts import Start


@click.command(cls=Command)
@click.option("--topic", required=True, help="The topic to read.")
@click.option("--to-topic", required=True, help="Where the records go; made if it is not there.")
@range_options
@click.option("--to-bootstrap", metavar="HOST:PORT", help="The broker to write to. [the same]")
@click.option("--keep-partitions", is_flag=True, help="Each record into the partition of the same number.")
@click.option("--partitions", type=click.IntRange(min=1), help="How many, if the topic has to be made.")
@spark_options
@broker_options
@format_option()
def replay(
    topic: str, to_topic: str, start: Start, until: Start, to_bootstrap: str | None, keep_partitions: bool,
    partitions: int | None, spark_start: SparkStart, broker: Broker, format: str,
) -> None:  # fmt: skip
    """Copy a range of a topic into another, with keys, headers and times."""
    from anabranch.cli.pipeline_topics import require_topic
    from anabranch.pipeline.replay import replay_range
    from anabranch.pipeline.topics import TopicAddress

    target = Broker(to_bootstrap or broker.bootstrap, broker.seconds_max)
    if topic == to_topic and target.bootstrap == broker.bootstrap:
        raise click.UsageError(f"--to-topic {to_topic} is the topic itself: name another.")
    begins, ends = range_of(broker, topic, start, until)
    if keep_partitions and partitions is None:
        partitions = len(begins)
    require_topic(target, to_topic, partitions)
    consequence = f"What was written stays in {to_topic}; a second run writes it again."
    with one_job(spark_start, "replay", unit="parts", consequence=consequence) as session:
        records = replay_range(
            session,
            TopicAddress(broker.bootstrap, topic),
            as_json(topic, begins),
            as_json(topic, ends),
            TopicAddress(target.bootstrap, to_topic),
            keep_partitions=keep_partitions,
        )
    if format == "json":
        show_json({"topic": to_topic, "records": records})
    else:
        click.echo(f"Replayed {records} records of {topic} into {to_topic}.")
