"""Rows to topics: the writer behind `df.write.format("anabranch")` and `writeStream`.

The columns are those of Spark's Kafka sink: `value`, and if they are there `key`, `headers`, `topic`, `partition` and
`timestamp`; others are passed over, so that what was read can be written as it is. The option `topic` wins over the
column. A key goes to the partition that the topic's config `anabranch.partitioner` gives it. At least once: a task that
fails or is repeated may leave records behind that come again; one that succeeds has had every record acknowledged by
all copies.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from anabranch.errors import OptionError, PipelineError
from anabranch.pipeline.source.options import WriterOptions, writer_options
from anabranch.pipeline.source.schema import HEADERS, HEADERS_TYPE
from anabranch.pipeline.spark.workers import settle
from anabranch.pipeline.writer.key_partitions import KeyPartitions
from anabranch.record.partitioner import LIBRDKAFKA_PARTITIONER

if TYPE_CHECKING:
    import confluent_kafka
    import pyarrow as pa
    from pyspark.sql.types import StructType

BYTES_TYPES = ("binary", "string")
TYPES = {
    "value": BYTES_TYPES,
    "key": BYTES_TYPES,
    HEADERS: (HEADERS_TYPE,),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
WAIT_SECONDS = 0.1
RECORD_BYTES_MAX = 1_000_000_000
"""As much as librdkafka allows: the topic's own limit is the one that counts."""
NOW_MS = 0
"""librdkafka takes it for the present: a record of the very first ms of 1970 cannot be sent with its time."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):  # type: ignore[misc]
    """What a task has written, all of it acknowledged."""

    records: int


def checked_writer(options: Mapping[str, str], schema: "StructType") -> tuple[WriterOptions, tuple[str, ...]]:
    """The options and the columns that are used, once both make sense; said before a task runs."""
    found = writer_options(options)
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    return found, checked_columns(kinds, found.topic)


def checked_columns(kinds: Mapping[str, str], topic: str | None) -> tuple[str, ...]:
    if "value" not in kinds:
        raise OptionError(
            f"A column value is needed, of type string or binary; there are {', '.join(kinds)}."
        )
    for name, allowed in TYPES.items():
        if name in kinds and kinds[name] not in allowed:
            raise OptionError(f"The column {name} must be of type {' or '.join(allowed)}, not {kinds[name]}.")
    if topic is None and "topic" not in kinds:
        raise OptionError("Where to? Give the option topic, or a column topic with a name in each row.")
    return tuple(name for name in TYPES if name in kinds)


class BatchTopicWriter(DataSourceArrowWriter):  # type: ignore[misc]
    def __init__(self, options: WriterOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return write_all(self.options, self.columns, iterator)


class StreamTopicWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    def __init__(self, options: WriterOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return write_all(self.options, self.columns, iterator)


# --- on executors -------------------------------------------------------------------------------------------------


def write_all(
    options: WriterOptions, columns: tuple[str, ...], batches: "Iterable[pa.RecordBatch]"
) -> Written:
    """Produce every row and wait for all acknowledgements; the first that fails, fails the task."""
    settle()
    with closing(Sending(options)) as sending:
        for batch in batches:
            sending.send(_rows(batch, columns, options.topic))
        sending.finish()
        return Written(sending.count)


class Sending:
    """One producer, its rows, and what became of them."""

    def __init__(self, options: WriterOptions) -> None:
        self._producer = _producer(options, self._failed)
        self._key_partitions = KeyPartitions(self._producer, {"bootstrap.servers": options.bootstrap})
        self._trouble: str | None = None
        self.count = 0

    def send(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            self._produce(row)
            self.count += 1
        self._producer.poll(0)
        self._check()

    def finish(self) -> None:
        while self._producer.flush(WAIT_SECONDS):
            self._check()
        self._check()

    def close(self) -> None:
        """Give up what was not sent, and let the producer go: it and we hold on to each other."""
        self._producer.purge()
        del self._producer, self._key_partitions

    def _produce(self, row: dict[str, Any]) -> None:
        if "partition" not in row:
            chosen = self._key_partitions.partition_for(row["topic"], row["key"])
            if chosen is not None:
                row["partition"] = chosen
        while True:
            try:
                self._producer.produce(**row)
            except BufferError:  # Its queue is full: let it send some.
                self._producer.poll(WAIT_SECONDS)
                self._check()
            else:
                return

    def _failed(self, error: "confluent_kafka.KafkaError | None", record: "confluent_kafka.Message") -> None:
        if error is not None and self._trouble is None:
            self._trouble = f"A record for {record.topic()} was not acknowledged: {error.str()}."

    def _check(self) -> None:
        if self._trouble is not None:
            raise PipelineError(self._trouble)


def _producer(options: WriterOptions, on_delivery: Any) -> "confluent_kafka.Producer":
    import confluent_kafka

    return confluent_kafka.Producer(
        {
            "client.id": "anabranch-pipeline",
            "message.max.bytes": RECORD_BYTES_MAX,
            **options.producer,
            "bootstrap.servers": options.bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": LIBRDKAFKA_PARTITIONER,
            "delivery.report.only.error": True,
            "on_delivery": on_delivery,
        }
    )


# --- rows ---------------------------------------------------------------------------------------------------------


def _rows(batch: "pa.RecordBatch", columns: tuple[str, ...], topic: str | None) -> Iterator[dict[str, Any]]:
    """What `produce` is called with, for each row."""
    values = {name: batch.column(name) for name in columns}
    lists = {
        name: values[name].to_pylist() for name in ("key", "value", HEADERS, "partition") if name in values
    }
    if topic is None:
        lists["topic"] = values["topic"].to_pylist()
    if "timestamp" in values:
        lists["timestamp"] = _milliseconds(values["timestamp"])
    for numbers in zip(*lists.values(), strict=True):
        yield _row(dict(zip(lists, numbers, strict=True)), topic)


def _row(row: dict[str, Any], topic: str | None) -> dict[str, Any]:
    sent = {"topic": topic or row.get("topic"), "value": row["value"], "key": row.get("key")}
    if sent["topic"] is None:
        raise PipelineError("A row has no topic: fill the column, or give the option topic.")
    if row.get(HEADERS):
        sent["headers"] = [(header["key"], header["value"]) for header in row[HEADERS]]
    if row.get("partition") is not None:
        sent["partition"] = row["partition"]
    if row.get("timestamp") is not None:
        sent["timestamp"] = row["timestamp"]
    return sent


def _milliseconds(column: "pa.Array") -> list[int | None]:
    import pyarrow as pa

    times = [None if each is None else each // 1000 for each in column.cast(pa.int64()).to_pylist()]
    for each in times:
        if each is not None and each <= NOW_MS:
            raise PipelineError(
                f"A row's timestamp is {each} ms: the producer cannot send times before 1970, or its start. Leave it "
                "null for the present, or drop the column."
            )
    return times
