"""Everything that is in a topic, read by librdkafka."""

from typing import NamedTuple

import confluent_kafka


class Read(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, bytes | None]]


def read_all(bootstrap: str, topic: str) -> list[Read]:
    """In order of partition and offset, up to the ends as they are now."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reading", "enable.auto.commit": False}
    )
    try:
        numbers = consumer.list_topics(topic, timeout=15).topics[topic].partitions
        places = [confluent_kafka.TopicPartition(topic, number) for number in numbers]
        bounds = {place.partition: consumer.get_watermark_offsets(place, timeout=15) for place in places}
        found = []
        for place in places:
            first, end = bounds[place.partition]
            if first < end:
                found += _read_partition(consumer, place, first, end)
        return sorted(found)
    finally:
        consumer.close()


def _read_partition(
    consumer: confluent_kafka.Consumer, place: confluent_kafka.TopicPartition, first: int, end: int
) -> list[Read]:
    consumer.assign([confluent_kafka.TopicPartition(place.topic, place.partition, first)])
    found: list[Read] = []
    while not found or found[-1].offset < end - 1:
        message = consumer.poll(15)
        assert message is not None, f"{place} gave nothing for 15 s before offset {end}"
        assert message.error() is None, message.error()
        found.append(
            Read(
                message.partition(),
                message.offset(),
                message.key(),
                message.value(),
                message.timestamp()[1],
                message.headers() or [],
            )
        )
    return found
