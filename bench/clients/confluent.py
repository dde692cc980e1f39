"""The same as rdkafka.c for machines without librdkafka's headers: through confluent-kafka, so with Python's own cost.

python -m bench.clients.confluent produce|consume BOOTSTRAP TOPIC TOPICS PARTITIONS RECORDS RECORD_BYTES CODEC
"""

import json
import random
import sys
import time

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

WORDS = ("river ", "arm ", "stream ", "order ", '"id": ', "1749", "apples ", "72.5, ", "{", "}")
TEXT_BYTES = 2**16
POLL_EVERY = 1000
PATIENCE_S = 60.0


def _names(topic: str, topics: int) -> list[str]:
    return [topic] if topics == 1 else [f"{topic}-{number}" for number in range(topics)]


def _tell(seconds: float, records: int, errors: int) -> None:
    library = f"{confluent_kafka.libversion()[0]} through Python"
    answer = {"seconds": seconds, "records": records, "errors": errors, "library": library}
    sys.stdout.write(json.dumps(answer) + "\n")


def produce(
    bootstrap: str, names: list[str], partitions: int, records: int, record_bytes: int, codec: str
) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.codec": codec,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    failed: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    rng = random.Random(1)
    text = "".join(rng.choice(WORDS) for _ in range((TEXT_BYTES + record_bytes) // 2)).encode()
    started = time.monotonic()
    for number in range(records):
        place = number * 61 % TEXT_BYTES
        partition = -1 if len(names) == 1 else number // len(names) % partitions
        value = text[place : place + record_bytes]
        while True:
            try:
                producer.produce(
                    names[number % len(names)], value, partition=partition, on_delivery=on_delivery
                )
                break
            except BufferError:
                producer.poll(0.01)
        if number % POLL_EVERY == 0:
            producer.poll(0)
    if producer.flush(PATIENCE_S):
        sys.exit("not all records were acknowledged")
    _tell(time.monotonic() - started, records, len(failed))


def consume(bootstrap: str, names: list[str], partitions: int, records: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign(
        [TopicPartition(name, number, OFFSET_BEGINNING) for name in names for number in range(partitions)]
    )
    seen, started, heard = 0, 0.0, time.monotonic()
    while seen < records:
        messages = consumer.consume(1000, 0.1)
        if messages and not seen:
            started = time.monotonic()
        if messages:
            heard = time.monotonic()
        if time.monotonic() - heard > PATIENCE_S:
            sys.exit("not all records arrived")
        wrong = next((message for message in messages if message.error()), None)
        if wrong is not None:
            sys.exit(f"cannot consume: {wrong.error()}")
        seen += len(messages)
    _tell(time.monotonic() - started, seen, 0)


def main(words: list[str]) -> None:
    direction, bootstrap, topic, topics, partitions, records, record_bytes, codec = words
    names = _names(topic, int(topics))
    if direction == "produce":
        produce(bootstrap, names, int(partitions), int(records), int(record_bytes), codec)
    else:
        consume(bootstrap, names, int(partitions), int(records))


if __name__ == "__main__":
    main(sys.argv[1:])
