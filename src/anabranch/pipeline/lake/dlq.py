"""The dead letter topic: records that could not become rows, as they were, with the reason.

Key, value and headers are the record's own; headers that begin with `anabranch.dlq.` are added: `reason`, `topic`,
`partition`, `offset`. They are sent before the table's commit, and again if the batch has to be repeated: at least
once, and the headers say which are the same. `replay-dlq` goes by these headers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from anabranch.errors import PipelineError
from anabranch.pipeline.lake import report
from anabranch.pipeline.lake.upsert import parquet_parts
from anabranch.pipeline.spark.workers import settle
from anabranch.pipeline.writer.key_partitions import KeyPartitions
from anabranch.record.partitioner import LIBRDKAFKA_PARTITIONER

HEADER = "anabranch.dlq."
ANY_PARTITION = -1
"""librdkafka chooses."""
SEND_SECONDS_MAX = 120
RECORD_BYTES_MAX = 1_000_000_000
"""As much as librdkafka allows: what came through one topic must not be too large for the next."""
TOPIC_CONFIG = {
    "retention.ms": "-1",
    "max.message.bytes": str(RECORD_BYTES_MAX),
    # A letter has the time of its record, whatever the broker does otherwise: rows are compared by it.
    "message.timestamp.type": "CreateTime",
}


@dataclass(frozen=True)
class SendTask:
    """`mapInArrow`'s function over files of rejected records; reports how many the broker has taken."""

    client: Mapping[str, str]
    topic: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        sender = _Sender(self.client, self.topic)
        for batch in batches:
            for path in batch.column(0).to_pylist():
                for part in parquet_parts(path):
                    sender.send(part)
        yield report.as_batch([report.line("read", rows=sender.finish())])


class _Sender:
    def __init__(self, client: Mapping[str, str], topic: str) -> None:
        from confluent_kafka import Producer

        self._topic = topic
        self._taken = 0
        self._error: Any = None
        self._producer = Producer(
            {
                "partitioner": LIBRDKAFKA_PARTITIONER,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 20,
                "message.max.bytes": RECORD_BYTES_MAX,
                **client,
            }
        )
        self._key_partitions = KeyPartitions(self._producer, client)

    def send(self, records: pa.RecordBatch) -> None:
        # As numbers, for Python's own times end with the year 9999.
        place = records.schema.get_field_index("timestamp")
        records = records.set_column(place, "timestamp", records.column(place).cast(pa.int64()))
        for record in records.to_pylist():
            while True:
                try:
                    self._produce(record)
                    break
                except BufferError:  # Its queue is full: let some go first.
                    self._producer.poll(0.1)
            self._producer.poll(0)

    def _produce(self, record: dict[str, Any]) -> None:
        headers = [(header["key"], header["value"]) for header in record.get("headers") or []]
        headers = [header for header in headers if not header[0].startswith(HEADER)]
        for name in ("reason", "topic", "partition", "offset"):
            headers.append((HEADER + name, str(record[name]).encode()))
        chosen = self._key_partitions.partition_for(self._topic, record["key"])
        self._producer.produce(
            self._topic,
            record["value"],
            record["key"],
            ANY_PARTITION if chosen is None else chosen,
            headers=headers,
            timestamp=max(1, record["timestamp"] // 1000),
            on_delivery=self._delivered,
        )

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._error = error
        else:
            self._taken += 1

    def finish(self) -> int:
        left = self._producer.flush(SEND_SECONDS_MAX)
        if self._error is not None or left:
            why = self._error or f"{left} are not answered after {SEND_SECONDS_MAX} s"
            raise PipelineError(
                f"Rejected records cannot be sent to {self._topic}: {why}. The batch is tried again."
            )
        return self._taken


def client_settings(bootstrap: str, options: Mapping[str, str]) -> dict[str, str]:
    """What the source is told of the client's security (`kafka.` before the name) holds for the producer too."""
    given = {name[len("kafka.") :]: value for name, value in options.items() if name.startswith("kafka.")}
    return {**given, "bootstrap.servers": bootstrap}


def make_topic(client: Mapping[str, str], topic: str) -> None:
    """The dead letter topic, if it is not there yet; kept without limit, since it is the only copy of a defect."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    # What goes wrong is raised; what the library says besides would stand in the output of a command.
    admin = AdminClient({"log_level": 0, **client})
    new = NewTopic(topic, 1, 1, config=TOPIC_CONFIG)
    try:
        admin.create_topics([new])[topic].result(SEND_SECONDS_MAX)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise PipelineError(
                f"The topic {topic} for records that do not fit cannot be made: {error}."
            ) from error
