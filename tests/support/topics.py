"""Topics and records for tests that are about something else: made and written by librdkafka."""

from collections.abc import Iterable
from typing import Any

import confluent_kafka
import confluent_kafka.admin

Sent = tuple[bytes | None, bytes | None]
"""Key and value."""


def make_topic(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    """A new topic; `segment_bytes="65536"` is segment.bytes."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    named = {name.replace("_", "."): value for name, value in config.items()}
    new = confluent_kafka.admin.NewTopic(topic, partitions, config=named)
    admin.create_topics([new])[topic].result(15)


def send(
    bootstrap: str, topic: str, records: Iterable[Sent], partition: int | None = None, **config: Any
) -> None:
    """Have librdkafka write these, to the partition of their key unless one is named."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **config})
    for key, value in records:
        placed = {} if partition is None else {"partition": partition}
        producer.produce(topic, value, key, **placed)
        producer.poll(0)
    assert producer.flush(30) == 0
