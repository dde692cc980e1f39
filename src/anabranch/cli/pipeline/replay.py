"""`anabranch pipeline replay`: a range of a topic, or a table, into a topic."""

from typing import Any

import click

from anabranch.cli.client import Broker, broker_options
from anabranch.cli.common import Command, format_option, pairs_of, show_json
from anabranch.cli.pipeline.ranges import as_json, range_of, range_options
from anabranch.cli.pipeline.spark import SparkStart, one_job, require_spark, spark_options
from anabranch.cli.pipeline.table import partition_option, settings_of, table_options
from anabranch.cli.pipeline.topics import config_option, require_topic
from anabranch.cli.records.starts import Start
from anabranch.pipeline.jobs.replay import Replay, TableReplay, TopicReplay
from anabranch.pipeline.jobs.topics import TopicAddress


@click.command(cls=Command)
@click.option("--topic", help="The topic to read; or say --table.")
@click.option("--to-topic", required=True, help="Where the records go; made if it is not there.")
@range_options
@click.option("--keep-partitions", is_flag=True, help="Of a topic: into the partition of the same number.")
@table_options(required=False)
@partition_option
@click.option("--key", metavar="COLUMN", help="Of a table: the column that becomes the key. [none]")
@click.option("--timestamp", metavar="COLUMN", help="Of a table: the column of the record's time. [now]")
@click.option("--to-bootstrap", metavar="HOST:PORT", help="The broker to write to. [the same]")
@click.option("--partitions", type=click.IntRange(min=1), help="How many, if the topic has to be made.")
@config_option
@spark_options
@broker_options
@format_option()
def replay(
    topic: str | None, to_topic: str, start: Start, until: Start, keep_partitions: bool,
    place: dict[str, Any] | None, partition_by: tuple[str, ...], key: str | None, timestamp: str | None,
    to_bootstrap: str | None, partitions: int | None, configs: tuple[str, ...], spark_start: SparkStart, broker: Broker,
    format: str,
) -> None:  # fmt: skip
    """Copy a range of a topic, or a table, to a topic.

    Records of a topic keep their keys, headers and times; rows of a table become JSON.
    """
    topic_configs = pairs_of(configs, "--config", "retention.ms=60000")
    target = TopicAddress(to_bootstrap or broker.bootstrap, to_topic)
    plan: Replay
    if topic is not None and place is None:
        _refuse_for_topics(topic, broker, target, key, timestamp)
        plan = _of_topic(topic, broker, start, until, keep_partitions)
        partitions = plan.partition_count if keep_partitions else partitions
    elif place is not None and topic is None:
        told = {**place, "partition_by": partition_by, "bootstrap": broker.bootstrap, "topic": to_topic}
        plan = TableReplay(settings_of(**told), key, timestamp)
        _require_columns(plan)
    else:
        raise click.UsageError("Say what to replay: either --topic, or --table and --warehouse.")
    require_spark()  # Before a topic is made.
    require_topic(Broker(target.bootstrap, broker.seconds_max), to_topic, partitions, topic_configs)
    consequence = f"What was written stays in {to_topic}; a second run writes it again."
    with one_job(spark_start, "replay", unit="parts", consequence=consequence) as session:
        records = plan.run(session, target)
    if format == "json":
        show_json({"topic": to_topic, "records": records})
    else:
        click.echo(f"Replayed {records} records into {to_topic}.")


def _refuse_for_topics(
    topic: str, broker: Broker, target: TopicAddress, key: str | None, timestamp: str | None
) -> None:
    if key is not None or timestamp is not None:
        raise click.UsageError("--key and --timestamp are for tables: records of a topic keep theirs.")
    if TopicAddress(broker.bootstrap, topic) == target:
        raise click.UsageError(f"--to-topic {topic} is the topic itself: name another.")


def _require_columns(plan: TableReplay) -> None:
    """Of a table that is there: said before a topic is made and Spark starts."""
    require_spark()
    from anabranch.pipeline.lake.formats.table import open_table

    names = open_table(plan.table).schema().names
    for option, column in (("--key", plan.key), ("--timestamp", plan.timestamp)):
        if column is not None and column not in names:
            raise click.UsageError(f"{option} {column}: there is no such column, but {', '.join(names)}.")


def _of_topic(topic: str, broker: Broker, start: Start, until: Start, keep_partitions: bool) -> TopicReplay:
    begins, ends = range_of(broker, topic, start, until)
    source = TopicAddress(broker.bootstrap, topic)
    return TopicReplay(source, as_json(topic, begins), as_json(topic, ends), len(begins), keep_partitions)
