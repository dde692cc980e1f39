"""kill -9 in the middle of producing, again and again: what was acknowledged is there, once, at its offset."""

import random
import sys
import threading
import time
from pathlib import Path

import confluent_kafka

from support.node_process import NodeProcess

CYCLES = 20
PREFILL_BYTES = 100 * 2**20
TOPIC, PARTITIONS = "killed", 2


class Acknowledged:
    """What the broker has said yes to, by place."""

    def __init__(self) -> None:
        self.values: dict[tuple[int, int], bytes] = {}
        self.twice: list[tuple[int, int]] = []

    def on_delivery(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            return
        place = (message.partition(), message.offset())
        if place in self.values:
            self.twice.append(place)
        self.values[place] = message.value()


def _producer(bootstrap: str) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 1,
            "reconnect.backoff.max.ms": 100,
            "message.timeout.ms": 60_000,
            "log_level": 0,
        }
    )


def _prefill(bootstrap: str, acknowledged: Acknowledged) -> None:
    """So that a restart has something to recover: 100 MB in one partition."""
    producer = _producer(bootstrap)
    size = 10_000
    for number in range(PREFILL_BYTES // size):
        value = b"%010d" % number + b"x" * size
        producer.produce(TOPIC, value, partition=0, on_delivery=acknowledged.on_delivery)
        if number % 500 == 0:
            producer.poll(0)
            producer.flush(30)
    assert producer.flush(30) == 0


def _produce_until(
    stop: threading.Event, producer: confluent_kafka.Producer, acknowledged: Acknowledged
) -> None:
    number = 0
    while not stop.is_set():
        try:
            producer.produce(
                TOPIC,
                b"live %d" % number,
                key=b"%d" % number,
                partition=number % PARTITIONS,
                on_delivery=acknowledged.on_delivery,
            )
            number += 1
        except BufferError:
            producer.poll(0.01)
        producer.poll(0)
        if number % 50 == 0:
            time.sleep(0.001)


def _read_all(bootstrap: str) -> dict[int, list[tuple[int, bytes]]]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    read: dict[int, list[tuple[int, bytes]]] = {}
    ends = {}
    for partition in range(PARTITIONS):
        _, ends[partition] = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(TOPIC, partition))
        read[partition] = []
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    deadline = time.monotonic() + 60
    while any(
        not rows or rows[-1][0] < ends[partition] - 1 for partition, rows in read.items() if ends[partition]
    ):
        assert time.monotonic() < deadline, "reading everything back took over a minute"
        for message in consumer.consume(5000, 0.5):
            assert message.error() is None, message.error()
            read[message.partition()].append((message.offset(), message.value()))
    consumer.close()
    return read


def test_every_acknowledged_record_survives_twenty_kills(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, {"num.partitions": str(PARTITIONS)})
    node.start()
    acknowledged = Acknowledged()
    _prefill(node.bootstrap, acknowledged)
    producer = _producer(node.bootstrap)
    stop = threading.Event()
    thread = threading.Thread(target=_produce_until, args=(stop, producer, acknowledged))
    thread.start()
    rng = random.Random(7)
    ready_seconds = []
    try:
        for _ in range(CYCLES):
            before = len(acknowledged.values)
            deadline = time.monotonic() + 30
            while len(acknowledged.values) < before + rng.randrange(50, 500):
                assert time.monotonic() < deadline, "nothing is acknowledged any more"
                time.sleep(0.002)
            node.kill()
            started = time.monotonic()
            node.start()
            ready_seconds.append(time.monotonic() - started)
    finally:
        stop.set()
        thread.join()
    assert producer.flush(60) == 0
    read = _read_all(node.bootstrap)
    node.stop()
    sys.stdout.write(
        f"\n{CYCLES} kills, {len(acknowledged.values)} records acknowledged, ready again after "
        f"median {sorted(ready_seconds)[CYCLES // 2]:.2f} s, at most {max(ready_seconds):.2f} s\n"
    )
    for partition, rows in read.items():
        offsets = [offset for offset, _ in rows]
        assert offsets == sorted(set(offsets)), (
            f"offsets of partition {partition} are not unique and in order"
        )
    kept = {(partition, offset): value for partition, rows in read.items() for offset, value in rows}
    lost = [place for place, value in acknowledged.values.items() if kept.get(place) != value]
    assert not lost, f"{len(lost)} acknowledged records are gone or changed, such as {lost[:5]}"
    assert not acknowledged.twice, f"an offset was acknowledged twice: {acknowledged.twice[:5]}"
    live = [value for rows in read.values() for _, value in rows if value.startswith(b"live")]
    assert len(live) == len(set(live)), "an idempotent producer's record is there twice"
