"""A table's rows as a Spark frame: its live files, read by executors, in the columns the table has now.

The same for Iceberg, Delta and Parquet tables, through the door of `lake.table`; no jar of theirs is needed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch.pipeline.lake.settings import PipelineSettings
from anabranch.pipeline.spark.workers import settle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from anabranch.pipeline.lake.files import FilePlan


@dataclass(frozen=True)
class ReadTask:
    """`mapInArrow`'s function over the addresses of data files."""

    plan: "FilePlan"
    names: tuple[str, ...]

    def __call__(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        from anabranch.pipeline.lake.change import DataFile
        from anabranch.pipeline.lake.rows.arrow_types import conform
        from anabranch.pipeline.lake.upsert import row_parts

        settle()
        for batch in batches:
            for text in batch.column(0).to_pylist():
                for part in row_parts(DataFile.from_json(text), self.plan, self.names):
                    yield from conform(part, _only(self.plan.schema, self.names)).to_batches()


def read_table(
    spark: "SparkSession", settings: PipelineSettings, columns: Sequence[str] | None = None
) -> "DataFrame":
    """All rows that the table has now, of all columns or of these; TableError if there is no such table."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from anabranch.pipeline.lake.files import FilePlan
    from anabranch.pipeline.lake.formats.table import open_table
    from anabranch.pipeline.lake.rows.arrow_types import plain_schema

    table = open_table(settings)
    schema = plain_schema(table.schema())
    names = tuple(columns or schema.names)
    plan = FilePlan(table.data_folder, "", 0, table.schema(), schema, table.parts)
    files = [(file.to_json(),) for file in table.files()]
    wanted = from_arrow_schema(_only(schema, names), prefer_timestamp_ntz=True)
    listed = spark.createDataFrame(files, "file string").repartition(max(1, len(files)))
    return listed.mapInArrow(ReadTask(plan, names), wanted)


def _only(schema: "pa.Schema", names: Sequence[str]) -> "pa.Schema":
    import pyarrow as pa

    return pa.schema([schema.field(name) for name in names])
