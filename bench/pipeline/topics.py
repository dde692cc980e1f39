"""Fills the topics that are read: made-up orders with a key of ten bytes, in batches as Java's producer makes them."""

from collections.abc import Iterable
from typing import NamedTuple

import confluent_kafka

from bench.brokers import Broker

PARTITIONS = 4
KEY_BYTES = 10
BATCH_BYTES = 16_384  # Java's batch.size.
SEGMENT_BYTES = 16 * 2**20
WORDS = (b"orders", b"paid", b"shipped", b"returned", b"Zurich", b"Basel", b"Lugano", b"2026-11-15T10:00:00")
POLL_EVERY = 10_000


class Filled(NamedTuple):
    name: str
    records: int
    bytes: int
    """Of keys and values."""


def fill(node: Broker, name: str, record_bytes: int, megabytes: int) -> Filled:
    """Write that much into a new topic of four partitions."""
    records = megabytes * 2**20 // record_bytes
    with node.client() as client:
        client.create_topic(name, PARTITIONS, segment_bytes=str(SEGMENT_BYTES))
    texts = [_text(number, record_bytes - KEY_BYTES) for number in range(997)]
    send(
        node,
        name,
        ((b"%010d" % number, texts[number % 997], number % PARTITIONS) for number in range(records)),
    )
    return Filled(name, records, records * record_bytes)


def send(node: Broker, topic: str, records: Iterable[tuple[bytes, bytes, int]]) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "batch.size": BATCH_BYTES,
            "linger.ms": 20,
            "queue.buffering.max.messages": 400_000,
        }
    )
    failed: list[str] = []

    def note(error: object, message: object) -> None:
        if error is not None:
            failed.append(str(error))

    for number, (key, value, partition) in enumerate(records):
        while True:
            try:
                producer.produce(topic, value, key, partition, on_delivery=note)
                break
            except BufferError:
                producer.poll(0.1)
        if number % POLL_EVERY == 0:
            producer.poll(0)
    producer.flush()
    if failed:
        raise RuntimeError(f"{len(failed)} records of {topic} were not taken: {failed[0]}")


def _text(number: int, size: int) -> bytes:
    words = b" ".join(WORDS[(number * 7 + place * place) % len(WORDS)] for place in range(size))
    return (b"%d " % (number * 7919) + words)[:size]
