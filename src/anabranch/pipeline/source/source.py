"""`format("anabranch")`: topics as Spark's data source, in Python alone.

Spark makes an `AnabranchSource` from the options and asks it for a reader or writer. Readers plan on the driver and
read on executors; they hold nothing but options, so that they can be sent there. A DataFrame is planned once: a second
action on it reads the same offsets.

No filters are taken (`pushFilters`), and none may be: Spark 4.3 keeps the plan that was made with the filters of one
query and uses it for the next query on the same DataFrame, whatever that one asks for. Rows are dropped silently.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from anabranch.errors import OptionError
from anabranch.pipeline.source import schema as columns
from anabranch.pipeline.source.object_plan import tasks_of
from anabranch.pipeline.source.options import ReaderOptions, check_for_stream, reader_options, stream_only
from anabranch.pipeline.source.plan import Range
from anabranch.pipeline.source.planner import Planner
from anabranch.pipeline.source.reading import read_ranges
from anabranch.pipeline.spark.workers import settle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

NAME = "anabranch"


class AnabranchSource(DataSource):  # type: ignore[misc]
    """Topics of an anabranch node, or of any Kafka."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        """Also the first moment at which a wrong option can be refused."""
        settle()
        return columns.ddl(include_headers=reader_options(self.options).include_headers)

    def reader(self, schema: "StructType") -> DataSourceReader:
        options = checked(self.options, schema)
        for name in stream_only(self.options):
            logger.warning("%s is for streams, and of no effect in a batch", name)
        return BatchReader(options, schema)

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        from anabranch.pipeline.source.stream_source import StreamReader

        check_for_stream(self.options)
        return StreamReader(checked(self.options, schema), schema)

    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceWriter:
        from anabranch.pipeline.writer.topic_writer import BatchTopicWriter, checked_writer

        if overwrite:
            raise OptionError("Records are appended to a topic, never overwritten: use mode('append').")
        return BatchTopicWriter(*checked_writer(self.options, schema))

    def streamWriter(self, schema: "StructType", overwrite: bool) -> DataSourceStreamWriter:
        from anabranch.pipeline.writer.topic_writer import StreamTopicWriter, checked_writer

        if overwrite:
            raise OptionError("Records are appended to a topic, never overwritten: use outputMode('append').")
        return StreamTopicWriter(*checked_writer(self.options, schema))


def checked(options: Mapping[str, str], schema: "StructType") -> ReaderOptions:
    """The options, which fit the schema that is wanted."""
    found = reader_options(options)
    named = {field.name: field.dataType.simpleString() for field in schema.fields}
    columns.check_columns(named, include_headers=found.include_headers)
    return found


class RangePartition(InputPartition):  # type: ignore[misc]
    """What one task reads: a range of one partition, or of several whose records share objects."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


def partitions_of(options: ReaderOptions, ranges: Sequence[Range]) -> list[RangePartition]:
    tasks = tasks_of(ranges, options.partitions_min, options.records_per_partition_max)
    return [RangePartition(task) for task in tasks]


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """A range of offsets or times, read once."""

    def __init__(self, options: ReaderOptions, schema: "StructType") -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> list[RangePartition]:
        settle()
        with closing(Planner(self.options)) as planner:
            return partitions_of(self.options, planner.batch_ranges())

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(self.options, self.schema, partition)


def read_partition(
    options: ReaderOptions, schema: "StructType", partition: InputPartition
) -> "Iterator[pa.RecordBatch]":
    """The records of one task; of the one that Spark makes up where there is nothing to read, none."""
    settle()
    if not isinstance(partition, RangePartition):
        return iter(())
    from pyspark.sql.pandas.types import to_arrow_schema

    return read_ranges(options, partition.ranges, to_arrow_schema(schema, timezone="UTC"))
