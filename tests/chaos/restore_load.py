"""Load on a topic in the object store that goes on until the cluster is gone, and what has to be true of one that came
back from the bucket."""

import json
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from anabranch.objects.layout.snapshots import unpack_snapshot
from chaos.cluster_load import close_consumer

TOPIC, PARTITIONS, GROUP = "orders", 3, "billing"
PRODUCERS = 2
PADDING = b"x" * 200
"""Enough for objects to be merged soon."""
WAIT_SECONDS_MAX = 60.0

Place = tuple[int, int]
"""Partition and offset."""


class Load:
    """Idempotent producers, each sending its own numbers, and a group that commits what it has read."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.acknowledged: dict[Place, bytes] = {}
        self.tried: dict[int, int] = {}
        """The last offsets that the group has tried to commit."""
        self._stop = threading.Event()
        self._stop_group = threading.Event()
        self._producers = [self._producer() for _ in range(PRODUCERS)]
        self._threads = [
            threading.Thread(target=self._produce, args=(number, producer))
            for number, producer in enumerate(self._producers)
        ]
        self._group = threading.Thread(target=self._consume)

    def _producer(self) -> confluent_kafka.Producer:
        return confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def start(self) -> None:
        for thread in (*self._threads, self._group):
            thread.start()

    def stop(self) -> None:
        """Send nothing more; what is on its way stays there. While there is a cluster, if the group still runs: a
        consumer takes its time to part from one that is gone."""
        self._stop.set()
        self.stop_group()
        for thread in self._threads:
            thread.join()

    def stop_group(self) -> None:
        self._stop_group.set()
        self._group.join()

    def flush(self) -> int:
        """Until everything is delivered; how much is not."""
        return sum(producer.flush(WAIT_SECONDS_MAX) for producer in self._producers)

    def forget(self) -> None:
        """The producers die with their cluster."""
        for producer in self._producers:
            producer.purge(in_flight=True, blocking=True)
            producer.flush(5)

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is None:
            place = message.partition(), message.offset()
            assert self.acknowledged.get(place, message.value()) == message.value(), place
            self.acknowledged[place] = message.value()

    def _produce(self, number: int, producer: confluent_kafka.Producer) -> None:
        count = 0
        while not self._stop.is_set():
            try:
                value = b"%d %d %s" % (number, count, PADDING)
                producer.produce(TOPIC, value, partition=count % PARTITIONS, on_delivery=self._delivered)
                count += 1
            except BufferError:
                producer.poll(0.05)
            producer.poll(0)
            if count % 2 == 0:
                time.sleep(0.002)

    def _consume(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.subscribe([TOPIC])
        while not self._stop_group.is_set():
            messages = consumer.consume(500, 0.2)
            if any(message.error() is None for message in messages):
                places = consumer.position(consumer.assignment())
                self.tried.update({each.partition: each.offset for each in places})
                consumer.commit(asynchronous=True)
        close_consumer(consumer)


def make_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topic = NewTopic(TOPIC, PARTITIONS, config={"anabranch.mode": "object"})
    admin.create_topics([topic])[TOPIC].result(30)


def until_newer(load: Load, bucket: Path, count: int) -> None:
    """Until so many records were acknowledged since the newest snapshot of what was agreed on, and committed offsets
    and merged objects are in the bucket."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    newest, since = None, 0
    while time.monotonic() < deadline:
        names = sorted(path.name for path in (bucket / "metadata").glob("*"))
        if names != newest:
            newest, since = names, len(load.acknowledged)
        is_far_enough = len(names) > 1 and len(load.acknowledged) >= since + count
        if is_far_enough and has_offsets(bucket) and any((bucket / "merged").glob("*")):
            return
        time.sleep(0.005)
    raise AssertionError("the load did not get far enough")


def has_offsets(bucket: Path) -> bool:
    try:
        return any(unpack_snapshot(path.read_bytes())["offsets"] for path in (bucket / "groups").glob("*"))
    except FileNotFoundError:  # Older ones are deleted.
        return False


def restore(bucket: Path, data_folder: Path, *options: str) -> dict[str, Any]:
    program = Path(sys.executable).with_name("anabranch")
    command = [str(program), "cluster", "restore", "--object-store", f"file://{bucket}"]
    done = subprocess.run(
        [*command, "--data-dir", str(data_folder), "--format", "json", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def read_all(bootstrap: str) -> dict[Place, bytes]:
    """Everything that is there now; more may be coming."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True, "log_level": 0}
    )
    partitions = [confluent_kafka.TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)]
    ends = {each.partition: consumer.get_watermark_offsets(each, timeout=30)[1] for each in partitions}
    consumer.assign(partitions)
    found: dict[Place, bytes] = {}
    ended = {partition for partition, end in ends.items() if end == 0}
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, f"only partitions {ended} were read to their end"
        for message in consumer.consume(1000, 0.5):
            if message.error() is None:
                found[message.partition(), message.offset()] = message.value()
            elif message.error().code() != confluent_kafka.KafkaError._PARTITION_EOF:
                raise AssertionError(message.error())
            if message.offset() >= ends[message.partition()] - 1:
                ended.add(message.partition())
    close_consumer(consumer)
    return found


def committed(bootstrap: str) -> dict[int, int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    asked = [confluent_kafka.TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    offsets = {each.partition: each.offset for each in consumer.committed(asked, timeout=30)}
    close_consumer(consumer)
    return offsets


# --- what has to be true ----------------------------------------------------------------------------------------------


def check(acknowledged: dict[Place, bytes], found: dict[Place, bytes], report: dict[str, Any]) -> None:
    lost = set(acknowledged.values()) - set(found.values())
    assert not lost, f"{len(lost)} acknowledged records are lost, one is {min(lost)!r}"
    renamed = [place for place, value in acknowledged.items() if found.get(place, value) != value]
    assert not renamed, f"{len(renamed)} offsets name another record, the first is {min(renamed)}"
    check_duplicates(found, report)
    check_order(found)


def check_duplicates(found: dict[Place, bytes], report: dict[str, Any]) -> None:
    listed = {row["partition"]: range(row["start"], row["end"]) for row in report["appended"]}
    counts = Counter(found.values())
    for (partition, offset), value in found.items():
        if counts[value] > 1:
            first = min(place for place, each in found.items() if each == value)
            assert (partition, offset) == first or offset in listed[partition], f"{value!r} is twice"


def check_order(found: dict[Place, bytes]) -> None:
    """Each producer's records of a partition come in the order in which it sent them."""
    last: dict[tuple[int, bytes], int] = {}
    for (partition, _), value in sorted(found.items()):
        producer, number, _ = value.split()
        line = partition, producer
        assert last.get(line, -1) < int(number), f"{value!r} comes too late in partition {partition}"
        last[line] = int(number)


def check_groups(load: Load, bootstrap: str, found: dict[Place, bytes], report: dict[str, Any]) -> None:
    offsets = committed(bootstrap)
    assert any(offset >= 0 for offset in offsets.values()), "no committed offset came back"
    assert report["offsets"] == sum(offset >= 0 for offset in offsets.values())
    assert report["now_ms"] >= report["offsets_time_ms"]
    for partition, offset in offsets.items():
        assert offset <= load.tried.get(partition, 0), "nobody has committed that"
        assert offset <= max(place[1] for place in found if place[0] == partition) + 1


# --- a few records -----------------------------------------------------------------------------------------------


def send(bootstrap: str, count: int) -> set[bytes]:
    """These values, all of them acknowledged."""
    failures: list[confluent_kafka.KafkaError] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    values = {uuid.uuid4().hex.encode() for _ in range(count)}
    for value in values:
        producer.produce(TOPIC, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    assert not failures, failures[0]
    return values


def until_refused(bootstrap: str) -> None:
    """Until this broker takes no records any more."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "message.timeout.ms": 3000, "retries": 0, "log_level": 0}
    )
    refusals: list[confluent_kafka.KafkaError] = []
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not refusals:
        assert time.monotonic() < deadline, "it goes on taking records"
        producer.produce(
            TOPIC, b"late", on_delivery=lambda error, _: refusals.append(error) if error else None
        )
        producer.flush(WAIT_SECONDS_MAX)
    assert refusals[0].code() == confluent_kafka.KafkaError.NOT_ENOUGH_REPLICAS, refusals[0]
