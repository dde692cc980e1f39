"""The replay job: a range of a topic, or a table, into a topic.

A range keeps keys, values, headers and times, and partitions if asked to; a row of a table becomes a record as in the
load job. Records are written at least once.
"""

from typing import TYPE_CHECKING

from anabranch.pipeline.lake.settings import PipelineSettings
from anabranch.pipeline.load import records_of_rows
from anabranch.pipeline.table_rows import read_table
from anabranch.pipeline.topics import TopicAddress, read_range, write_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT = ("key", "value", "headers", "timestamp")


def replay_range(
    spark: "SparkSession",
    source: TopicAddress,
    starting: str,
    ending: str,
    to: TopicAddress,
    *,
    keep_partitions: bool = False,
) -> int:
    """Runs the job; how many records were written."""
    columns = (*KEPT, "partition") if keep_partitions else KEPT
    return write_records(read_range(spark, source, starting, ending).select(*columns), to)


def replay_table(
    spark: "SparkSession",
    table: PipelineSettings,
    to: TopicAddress,
    *,
    key: str | None = None,
    timestamp: str | None = None,
) -> int:
    """Runs the job over all rows that the table has now; how many records were written."""
    return write_records(records_of_rows(read_table(spark, table), key, timestamp), to)
