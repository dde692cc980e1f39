"""What a pipeline from a topic to a table is told, checked before Spark starts.

Nothing here imports Spark, Arrow or a table format: a wrong value costs a sentence, not the start of a JVM.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from anabranch.errors import OptionError

FORMATS = ("iceberg", "delta", "parquet")
MODES = ("append", "upsert")
UPSERT_RECORDS_MAX = 1_000_000
"""Per batch of an upsert, unless the pipeline is told another limit."""
UNITS = ("hour", "day", "month")
DLQ_SUFFIX = ".dlq"
NO_NAMESPACE = "default"
"""The namespace of a table whose name says none."""
_BY_START = "where the pipeline begins is said by --from (starting_offsets), and it has no end"
SAID_BY_THE_PIPELINE = {
    "bootstrap": "the broker is said by --bootstrap (bootstrap)",
    **dict.fromkeys(("topic", "topicPattern", "assign"), "a pipeline reads the one topic that --topic (topic) names"),
    **dict.fromkeys(
        (
            "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
            "startingOffsetsByTimestampStrategy", "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp",
        ),
        _BY_START,
    ),
    "maxOffsetsPerTrigger": "records per batch are limited by --max-per-batch (max_offsets_per_trigger)",
    "group": "the group is named by --group (group)",
    "includeHeaders": "a pipeline always reads headers",
}  # fmt: skip
"""Options of the source that are not for `options`, and what says them instead."""
_PARTITION = re.compile(r"(?:(?P<unit>[a-z]+)\((?P<timed>[^()]+)\)|(?P<plain>[^()]+))\Z")
_TABLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*)*\Z")

Step = Callable[[str], None]
"""Told the name of each step of a batch as it is reached: see `sink.STEPS`."""


@dataclass(frozen=True)
class PartitionField:
    """By what a table is partitioned: a column as it is, or an hour, day or month of a time column."""

    column: str
    unit: str | None = None

    @property
    def name(self) -> str:
        return self.column if self.unit is None else f"{self.column}_{self.unit}"

    @property
    def text(self) -> str:
        """As `partition_by` says it."""
        return self.column if self.unit is None else f"{self.unit}({self.column})"


@dataclass(frozen=True)
class PipelineSettings:
    """One pipeline: which records, into which table, and how."""

    bootstrap: str
    topic: str
    warehouse: str
    table: str
    checkpoint: str = ""
    """Where Spark keeps its progress; by default a folder of the warehouse named after table and topic."""
    to: str = "iceberg"
    mode: str = "append"
    key: tuple[str, ...] = ()
    """The columns an upsert goes by; the key of the record unless some are named."""
    schema: str = "records"
    """`records`: from what they hold; `raw`: bytes as they are; else the path of a JSON Schema file."""
    columns_max: int = 1000
    """That the records may give the table, fields of objects counted; those that bring more are dead letters."""
    partition_by: tuple[str, ...] = ()
    """For a new table; one that is there knows it, and must not be told otherwise."""
    group: str | None = None
    catalog: Mapping[str, str] = field(default_factory=dict)
    """Of pyiceberg, if it is not the one embedded in the warehouse: its `name`, and properties of its own."""
    starting_offsets: str = "earliest"
    max_offsets_per_trigger: int | None = None
    trigger_seconds: float = 5.0
    once: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of the source, such as failOnDataLoss; not those that the pipeline says itself."""

    def __post_init__(self) -> None:
        _one_of("to", self.to, FORMATS)
        _one_of("mode", self.mode, MODES)
        for name in ("bootstrap", "topic", "warehouse", "group"):
            if getattr(self, name) is not None and not getattr(self, name).strip():
                raise OptionError(f"The pipeline needs {name}: it is empty.")
        if not _TABLE.match(self.table):
            raise OptionError(
                f"{self.table!r} is no name for a table: letters, digits, _ and -, with dots between."
            )
        self._check_schema()
        self._check_numbers()
        self._check_options()
        if self.key and self.mode != "upsert":
            raise OptionError("key names the columns of an upsert: leave it out, or set mode to upsert.")
        if self.catalog and self.to != "iceberg":
            raise OptionError(f"catalog belongs to Iceberg, and this pipeline writes {self.to}.")
        if not self.is_local:
            self._check_remote()
        self.partitions()

    def _check_remote(self) -> None:
        if self.to == "parquet":
            raise OptionError(
                "A Parquet table needs a local folder: its commits are renames. Take Iceberg or Delta."
            )
        if self.to == "iceberg" and not self.catalog:
            raise OptionError(
                f"The embedded catalog is a local file, and the warehouse is {self.warehouse}: name a catalog."
            )

    def _check_schema(self) -> None:
        if self.schema not in ("records", "raw") and not Path(self.schema).is_file():
            raise OptionError(
                f"schema is {self.schema!r}: neither records nor raw, and there is no JSON Schema file of that name."
            )

    def _check_numbers(self) -> None:
        if self.max_offsets_per_trigger is not None and self.max_offsets_per_trigger <= 0:
            raise OptionError(f"max_offsets_per_trigger must be above 0, not {self.max_offsets_per_trigger}.")
        if self.columns_max <= 0:
            raise OptionError(f"columns_max must be above 0, not {self.columns_max}.")
        if not 0 <= self.trigger_seconds < math.inf:
            raise OptionError(f"trigger_seconds cannot be {self.trigger_seconds}: 0 or more.")

    def _check_options(self) -> None:
        """As the source does, but now: the rest of what it is told is ours to say."""
        from anabranch.pipeline.source.options import canonical_names, reader_options

        for given, name in canonical_names(self.options).items():
            if name in SAID_BY_THE_PIPELINE:
                raise OptionError(
                    f"{given} cannot be an option of the source here: {SAID_BY_THE_PIPELINE[name]}."
                )
        if self.options:
            reader_options({**self.options, "bootstrap": self.bootstrap, "topic": self.topic})

    def partitions(self) -> tuple[PartitionField, ...]:
        return tuple(partition_field(text) for text in self.partition_by)

    @property
    def batch_records_max(self) -> int | None:
        """An upsert holds its batch in memory until the last record of each key is known: it always has a limit."""
        if self.max_offsets_per_trigger is None and self.mode == "upsert":
            return UPSERT_RECORDS_MAX
        return self.max_offsets_per_trigger

    @property
    def dlq_topic(self) -> str:
        return self.topic + DLQ_SUFFIX

    @property
    def is_local(self) -> bool:
        """Whether the warehouse is a folder here."""
        return urlsplit(self.warehouse).scheme in ("", "file")

    @property
    def warehouse_uri(self) -> str:
        """The warehouse as an address: an absolute `file://` one for a local folder."""
        if urlsplit(self.warehouse).scheme:
            return self.warehouse.rstrip("/")
        return f"file://{Path(self.warehouse).absolute()}"

    @property
    def checkpoint_uri(self) -> str:
        if not self.checkpoint:
            return f"{self.warehouse_uri}/_checkpoints/{self._short_name}/{self.topic}"
        if urlsplit(self.checkpoint).scheme:
            return self.checkpoint.rstrip("/")
        return f"file://{Path(self.checkpoint).absolute()}"

    @property
    def staging_uri(self) -> str:
        """Where executors put what is not for the table: they need not reach the checkpoint."""
        return f"{self.staging_root_uri}/{self.topic}"

    @property
    def staging_root_uri(self) -> str:
        """Of all pipelines into this table."""
        return f"{self.warehouse_uri}/_staging/{self._short_name}"

    @property
    def table_uri(self) -> str:
        """The folder that a warehouse without a catalog of somebody else's has for the table."""
        return f"{self.warehouse_uri}/{self.table_name.replace('.', '/')}"

    @property
    def _short_name(self) -> str:
        """One for `rows` and `default.rows`, which are one table: folders go by it."""
        short = self.table.removeprefix(f"{NO_NAMESPACE}.")
        return self.table if "." in short else short

    @property
    def table_name(self) -> str:
        """With the namespace that stands for none."""
        return self.table if "." in self.table else f"{NO_NAMESPACE}.{self.table}"


def partition_field(text: str) -> PartitionField:
    found = _PARTITION.match(text.strip())
    if found is None or (found["unit"] and found["unit"] not in UNITS):
        raise OptionError(
            f"partition_by is {text!r}: a column, or one of {', '.join(f'{unit}(column)' for unit in UNITS)}."
        )
    return PartitionField(found["plain"] or found["timed"], found["unit"])


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(f"{name} is {value!r}: it can be {', '.join(known[:-1])} or {known[-1]}.")
