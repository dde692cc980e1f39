"""The replay job: a range of a topic, or a table, into a topic.

A range keeps keys, values, headers and times, and partitions if asked to; a row of a table becomes a record as in the
load job, without the columns that say which record it came from. Records are written at least once.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from anabranch.pipeline.jobs.load import records_of_rows
from anabranch.pipeline.jobs.table_rows import read_table
from anabranch.pipeline.jobs.topics import TopicAddress, read_range, write_records
from anabranch.pipeline.lake.settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT = ("key", "value", "headers", "timestamp")


class Replay(Protocol):
    def run(self, spark: "SparkSession", to: TopicAddress) -> int:
        """How many records were written."""


@dataclass(frozen=True)
class TopicReplay:
    """From the first offsets to the ends, each as JSON like {"topic": {"0": 17}}."""

    source: TopicAddress
    starting: str
    ending: str
    partition_count: int
    keep_partitions: bool = False

    def run(self, spark: "SparkSession", to: TopicAddress) -> int:
        columns = (*KEPT, "partition") if self.keep_partitions else KEPT
        records = read_range(spark, self.source, self.starting, self.ending)
        return write_records(records.select(*columns), to)


@dataclass(frozen=True)
class TableReplay:
    """All rows that the table has now; `key` and `timestamp` are columns."""

    table: PipelineSettings
    key: str | None = None
    timestamp: str | None = None

    def run(self, spark: "SparkSession", to: TopicAddress) -> int:
        from anabranch.pipeline.lake.rows.parse import TRACE

        rows = read_table(spark, self.table)
        return write_records(records_of_rows(rows, self.key, self.timestamp, left_out=TRACE.names), to)
