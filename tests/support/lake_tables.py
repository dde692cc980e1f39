"""Rows as the source gives them, and tables read back: for tests of the lake sink."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.pipeline.lake.rows.arrow_types import small_schema
from anabranch.pipeline.lake.settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE_ROWS = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, partition int, "
    "offset long, timestamp timestamp, timestampType int, _generation int, _branch string"
)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

Record = tuple[bytes | None, bytes | None]
"""Key and value."""


def frame(
    spark: "SparkSession",
    records: list[Record],
    *,
    start: int = 0,
    partition: int = 0,
    slices: int = 2,
    topic: str = "t",
    time: datetime = NOON,
) -> "DataFrame":
    """These records as a batch of a topic, from this offset on."""
    rows = [
        (key, value, [("trace", b"\x01")], topic, partition, start + number, time, 0, 0, None)
        for number, (key, value) in enumerate(records)
    ]
    return spark.createDataFrame(rows, SOURCE_ROWS).repartition(slices)


def json_records(values: list[Any]) -> list[Record]:
    """With keys k0, k1, ..."""
    return [(f"k{number}".encode(), json.dumps(value).encode()) for number, value in enumerate(values)]


def settings(folder: Path, **changes: Any) -> PipelineSettings:
    given = {"bootstrap": "127.0.0.1:1", "topic": "t", "warehouse": str(folder), "table": "rows", **changes}
    return PipelineSettings(**given)


def read_rows(settings: PipelineSettings) -> pa.Table:
    """The table as its own library reads it, sorted by partition and offset."""
    return _READERS[settings.to](settings).sort_by([("_partition", "ascending"), ("_offset", "ascending")])


def _read_iceberg(settings: PipelineSettings) -> pa.Table:
    from pyiceberg.catalog.sql import SqlCatalog

    folder = settings.warehouse_uri.removeprefix("file://")
    catalog = SqlCatalog("anabranch", uri=f"sqlite:///{folder}/catalog.db", warehouse=settings.warehouse_uri)
    table = catalog.load_table(settings.table_name).scan().to_arrow()
    catalog.engine.dispose()
    return table


def _read_delta(settings: PipelineSettings) -> pa.Table:
    from deltalake import DeltaTable

    table = pa.table(DeltaTable(_folder(settings)).scan().read_all())
    return table.cast(small_schema(table.schema))


def _read_parquet(settings: PipelineSettings) -> pa.Table:
    """As somebody without our code would: the newest state of the log, and the files it names."""
    newest = max(Path(_folder(settings), "_log").glob("*.json"))
    files = [file[0].removeprefix("file://") for file in json.loads(newest.read_text())["files"]]
    return pa.concat_tables(
        [pq.read_table(file, partitioning=None) for file in files], promote_options="permissive"
    )


def _folder(settings: PipelineSettings) -> str:
    return f"{settings.warehouse_uri}/{settings.table_name.replace('.', '/')}".removeprefix("file://")


_READERS = {"iceberg": _read_iceberg, "delta": _read_delta, "parquet": _read_parquet}
