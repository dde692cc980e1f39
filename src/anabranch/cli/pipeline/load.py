"""`anabranch pipeline load`: files of rows into a topic."""

import glob
import os

import click

from anabranch.cli.client import Broker, broker_options
from anabranch.cli.common import Command, WrongCommandLine, format_option, pairs_of, show_json
from anabranch.cli.pipeline.spark import SparkStart, one_job, require_spark, spark_options
from anabranch.cli.pipeline.table import options_named
from anabranch.cli.pipeline.topics import config_option, require_topic
from anabranch.pipeline.jobs.load import INPUTS, LoadSettings, input_of, records_of_files
from anabranch.pipeline.jobs.topics import TopicAddress, write_records

KEPT_FOR_EVER = {"retention.ms": "-1"}
"""For a topic made for records with times of their own: retention by time would take old ones away at once."""


@click.command(cls=Command)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--topic", required=True, help="Where the records go; made if it is not there.")
@click.option("--input", "kind", type=click.Choice(INPUTS), help="What the files are. [by their names]")
@click.option("--key", metavar="COLUMN", help="The column that becomes the record's key. [none]")
@click.option(
    "--timestamp", metavar="COLUMN", help="The column of the record's time: ISO text, or ms since 1970. [now]"
)
@click.option("--partitions", type=click.IntRange(min=1), help="How many, if the topic has to be made.")
@config_option
@click.option(
    "--option", "options", metavar="NAME=VALUE", multiple=True,
    help="An option of Spark's reader, for example nullValue=NA or multiLine=true; may be repeated.",
)  # fmt: skip
@spark_options
@broker_options
@format_option()
def load(
    files: tuple[str, ...],
    topic: str,
    kind: str | None,
    key: str | None,
    timestamp: str | None,
    partitions: int | None,
    configs: tuple[str, ...],
    options: tuple[str, ...],
    spark_start: SparkStart,
    broker: Broker,
    format: str,
) -> None:
    """Load files into a topic, a record for each row.

    FILEs are CSV (with a header line), JSON (a row per line) or Parquet. The value is the row as JSON, nulls kept.
    A topic made for records with a --timestamp keeps them for ever, unless --config retention.ms says otherwise: the
    old ones would be gone at once.
    """
    reader_options = pairs_of(options, "--option", "header=true")
    topic_configs = {
        **({} if timestamp is None else KEPT_FOR_EVER),
        **pairs_of(configs, "--config", "retention.ms=60000"),
    }
    chosen = kind or input_of(files)
    _require_files(files)
    broker.require_answer()
    require_spark()
    require_topic(broker, topic, partitions, topic_configs, only_check=True)
    settings = LoadSettings(
        files, chosen, TopicAddress(broker.bootstrap, topic), key, timestamp, reader_options
    )
    consequence = "What was written stays in the topic; a second run writes it again."
    with one_job(spark_start, "load", unit="parts", consequence=consequence) as session:
        with options_named():
            rows = records_of_files(session, settings)
        require_topic(broker, topic, partitions, topic_configs)  # Not for files that cannot be loaded.
        records = write_records(rows, settings.to)
    if format == "json":
        show_json({"topic": topic, "records": records})
    else:
        click.echo(f"Loaded {records} records into {topic}.")


def _require_files(files: tuple[str, ...]) -> None:
    """Those we can see. Addresses, and lists in braces, are for Spark to find."""
    for file in files:
        is_seen = os.path.exists(file) or "://" in file or "{" in file or any(glob.iglob(file))
        if not is_seen:
            raise WrongCommandLine(f"There is no file {file}.")
