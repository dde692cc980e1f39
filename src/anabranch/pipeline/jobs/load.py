"""The load job: files of rows (CSV, JSON, Parquet) into a topic, a record for each row.

The value is the row as JSON, nulls kept; one column may be the key, one the time. A column of numbers is taken for
milliseconds since 1970, one of text for an ISO date and time in UTC. A row that cannot be read stops the job: nothing
is left out in silence. What a stopped job has written stays, so a second run writes it again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anabranch.errors import OptionError
from anabranch.pipeline.jobs.topics import TopicAddress, write_records

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

INPUTS = ("csv", "json", "parquet")
_BY_SUFFIX = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}
_PACKED = (".gz", ".bz2", ".zst", ".zstd", ".snappy", ".lz4")
_READER_OPTIONS = {
    "csv": {"header": "true", "inferSchema": "true", "mode": "FAILFAST"},
    "json": {"mode": "FAILFAST"},
    "parquet": {},
}


@dataclass(frozen=True)
class LoadSettings:
    files: Sequence[str]
    input: str
    to: TopicAddress
    key: str | None = None
    timestamp: str | None = None
    reader_options: Mapping[str, str] = field(default_factory=dict)
    """Options of Spark's reader for this kind of file; they win over ours."""


def input_of(files: Sequence[str]) -> str:
    """What these files are, by how their names end; OptionError if that does not say, or says two things."""
    found = {_kind(file) for file in files}
    if len(found) == 1 and (kind := found.pop()) is not None:
        return kind
    raise OptionError(f"The names of the files do not tell what they are: say --input {', '.join(INPUTS)}.")


def _kind(file: str) -> str | None:
    name = file.lower().rstrip("/")
    for packed in _PACKED:
        name = name.removesuffix(packed)
    return next((kind for suffix, kind in _BY_SUFFIX.items() if name.endswith(suffix)), None)


def load_files(spark: "SparkSession", settings: LoadSettings) -> int:
    """Runs the job; how many records were written."""
    return write_records(records_of_files(spark, settings), settings.to)


def records_of_files(spark: "SparkSession", settings: LoadSettings) -> "DataFrame":
    """What is to be written, once the columns are known; OptionError if the key or the time is none of them."""
    return records_of_rows(read_files(spark, settings), settings.key, settings.timestamp)


def read_files(spark: "SparkSession", settings: LoadSettings) -> "DataFrame":
    options = {**_READER_OPTIONS[settings.input], **settings.reader_options}
    if settings.input == "csv" and all(".tsv" in file.lower() for file in settings.files):
        options.setdefault("sep", "\t")
    reader = spark.read.format(settings.input).options(**options)
    return reader.load(list(settings.files))


def records_of_rows(
    rows: "DataFrame", key: str | None, timestamp: str | None, left_out: Collection[str] = ()
) -> "DataFrame":
    """Each row as a record: value (JSON), key and timestamp, the latter two only if a column is named. Columns that
    are left out of the value can still be named."""
    from pyspark.sql import functions

    _check_columns(rows, key, timestamp)
    names = [name for name in rows.columns if name not in left_out]
    value = functions.to_json(functions.struct(*map(_quoted, names)), {"ignoreNullFields": "false"})
    columns: list[Column] = [value.cast("binary").alias("value")]
    if key is not None:
        columns.append(_quoted(key).cast("string").cast("binary").alias("key"))
    if timestamp is not None:
        columns.append(_time_of(rows, timestamp).alias("timestamp"))
    return rows.select(*columns)


def _quoted(column: str) -> "Column":
    from pyspark.sql import functions

    return functions.col("`" + column.replace("`", "``") + "`")


def _check_columns(rows: "DataFrame", key: str | None, timestamp: str | None) -> None:
    for option, column in (("--key", key), ("--timestamp", timestamp)):
        if column is not None and column not in rows.columns:
            raise OptionError(f"{option} {column}: there is no such column, but {', '.join(rows.columns)}.")


def _time_of(rows: "DataFrame", column: str) -> "Column":
    from pyspark.sql import functions
    from pyspark.sql.types import NumericType

    if isinstance(rows.schema[column].dataType, NumericType):
        return functions.timestamp_millis(_quoted(column).cast("long"))
    return _quoted(column).cast("timestamp")
