"""The source tables as three topics: `flights`, `weather`, and `planes`, which is compacted.

A record's partition follows from its key (or, without one, from its row), and every partition gets its records in the
order of the file through an idempotent producer. So whatever a partition holds is a beginning of what it is to hold,
and a load that was interrupted goes on behind its last record. A topic of that name which is not ours is refused.

Keys go where the default partitioner of topics puts them, so that other producers find a key where we put it.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from anabranch.errors import PipelineError
from anabranch.record.partitioner import DEFAULT_PARTITIONER, partition_for
from examples.demo.source_files import SourceTables, departure_times, hour_times

ROWS_AT_ONCE = 10_000
ANSWER_SECONDS_MAX = 30.0
KEEP_FOR_EVER = {"retention.ms": "-1"}
"""The flights are of 2013: by default they would be too old to keep."""


class Topic(NamedTuple):
    """A topic to load, and what it is to hold."""

    name: str
    table: pa.Table
    key_column: str
    times: pa.ChunkedArray | None
    partitions: int
    configs: Mapping[str, str]


class Record(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes
    timestamp_ms: int
    """0: the present time."""


def topics_of(source: SourceTables) -> list[Topic]:
    flights, weather, planes = source
    return [
        Topic("flights", flights, "tailnum", departure_times(flights), 4, KEEP_FOR_EVER),
        Topic("weather", weather, "origin", hour_times(weather), 2, KEEP_FOR_EVER),
        Topic("planes", planes, "tailnum", None, 2, {"cleanup.policy": "compact"}),
    ]


def records_of(topic: Topic) -> Iterator[Record]:
    names = topic.table.column_names
    row = 0
    for start in range(0, topic.table.num_rows, ROWS_AT_ONCE):
        part = topic.table.slice(start, ROWS_AT_ONCE)
        times = [0] * len(part) if topic.times is None else topic.times.slice(start, ROWS_AT_ONCE).to_pylist()
        keys = part[topic.key_column].to_pylist()
        rows = zip(*(part[name].to_pylist() for name in names), strict=True)
        for key, time, values in zip(keys, times, rows, strict=True):
            value = json.dumps(dict(zip(names, values, strict=True)), separators=(",", ":")).encode()
            yield _record(key, row, value, time, topic.partitions)
            row += 1


def _record(key: str | None, row: int, value: bytes, time: int, partitions: int) -> Record:
    if key is None:
        return Record(row % partitions, None, value, time)
    encoded = key.encode()
    return Record(partition_for(encoded, partitions, DEFAULT_PARTITIONER) or 0, encoded, value, time)


class Loader:
    """Makes topics and fills them, or what is missing of them."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka.admin import AdminClient

        self._config = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._admin = AdminClient(self._config)

    def load(self, topic: Topic, on_progress: Callable[[int], None]) -> int:
        """How many records were added: fewer than the topic has if it was there already."""
        held = self._make(topic)
        missing: int = topic.table.num_rows - sum(held)
        if missing == 0:
            return 0
        self._send(topic, held, on_progress)
        if sum(self._held(topic)) != topic.table.num_rows:
            raise not_ours(topic, "it changed while it was loaded")
        return missing

    def _make(self, topic: Topic) -> list[int]:
        """How many records each partition of the topic holds already."""
        from confluent_kafka.admin import NewTopic

        there = self._admin.list_topics(timeout=ANSWER_SECONDS_MAX).topics
        if topic.name not in there:
            wanted = NewTopic(topic.name, topic.partitions, config=dict(topic.configs))
            self._admin.create_topics([wanted])[topic.name].result(ANSWER_SECONDS_MAX)
            return [0] * topic.partitions
        if len(there[topic.name].partitions) != topic.partitions:
            raise not_ours(topic, f"it has not {topic.partitions} partitions")
        held = self._held(topic)
        if sum(held) > topic.table.num_rows:
            raise not_ours(topic, f"it holds {sum(held):,} records")
        return held

    def _held(self, topic: Topic) -> list[int]:
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        wanted = {
            TopicPartition(topic.name, number): OffsetSpec.latest() for number in range(topic.partitions)
        }
        answers = self._admin.list_offsets(wanted, request_timeout=ANSWER_SECONDS_MAX)
        ends = {partition.partition: future.result().offset for partition, future in answers.items()}
        return [ends[number] for number in range(topic.partitions)]

    def _send(self, topic: Topic, held: list[int], on_progress: Callable[[int], None]) -> None:
        delivery = Delivery(self._config, topic.name)
        skip = list(held)
        for count, record in enumerate(records_of(topic), start=1):
            if skip[record.partition] > 0:
                skip[record.partition] -= 1
            else:
                delivery.send(record)
            if count % ROWS_AT_ONCE == 0:
                on_progress(ROWS_AT_ONCE)
        delivery.finish()


def not_ours(topic: Topic, why: str) -> PipelineError:
    return PipelineError(
        f"The topic {topic.name} is not the one this demo makes ({why}): "
        "delete the demo's folder, or name another one with --folder."
    )


class Delivery:
    """An idempotent producer into one topic; whatever is not delivered becomes an error."""

    def __init__(self, config: Mapping[str, object], topic: str) -> None:
        from confluent_kafka import Producer

        self._topic = topic
        self._problem: object = None
        self._producer = Producer(
            {
                **config,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 20,
                "batch.size": 1_000_000,
                "compression.type": "lz4",
                # A call back into Python for each of 336,776 records would cost more than sending them.
                "delivery.report.only.error": True,
            }
        )

    def send(self, record: Record) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    record.value,
                    record.key,
                    record.partition,
                    timestamp=record.timestamp_ms,
                    on_delivery=self._failed,
                )
                return
            except BufferError:
                self._producer.poll(0.05)
                self._raise_problem()

    def finish(self) -> None:
        left = self._producer.flush(ANSWER_SECONDS_MAX)
        self._raise_problem()
        if left:
            raise PipelineError(
                f"{left} records for {self._topic} were not acknowledged in time: run it again."
            )

    def _failed(self, error: object, _message: object) -> None:
        self._problem = self._problem or error

    def _raise_problem(self) -> None:
        if self._problem is not None:
            raise PipelineError(f"The node refused records for {self._topic}: {self._problem}.")
