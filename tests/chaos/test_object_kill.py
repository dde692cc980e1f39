"""A node that keeps its topic in an object store, killed in the middle of producing and cut off from its store: what
was acknowledged is there, once, in the order of its producer."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from anabranch.testing import ClusterProcesses
from support.node_process import NodeProcess

KILLS = 6
AWAY_SECONDS = 3
TOPIC, PARTITIONS = "stored", 2


class Load:
    """One idempotent producer that goes on until it is told to stop, and what it was told."""

    def __init__(self, bootstrap: str) -> None:
        self.values: dict[tuple[int, int], bytes] = {}
        self.errors: list[str] = []
        self.twice = 0
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "reconnect.backoff.max.ms": 100,
                "message.timeout.ms": 120_000,
                "log_level": 0,
                "error_cb": lambda error: self.errors.append(str(error)) if error.fatal() else None,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                self._producer.produce(
                    TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._on_delivery
                )
                number += 1
            except BufferError:
                self._producer.poll(0.01)
            self._producer.poll(0.001)

    def _on_delivery(
        self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        place = message.partition(), message.offset()
        self.twice += place in self.values
        self.values[place] = message.value()

    def wait_for_more(self, count: int) -> None:
        wanted, deadline = len(self.values) + count, time.monotonic() + 90
        while len(self.values) < wanted:
            assert time.monotonic() < deadline, f"nothing is acknowledged any more: {self.errors[:3]}"
            time.sleep(0.01)

    def flush(self) -> None:
        assert self._producer.flush(120) == 0


def read_all(bootstrap: str) -> dict[int, list[tuple[int, bytes]]]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    places = [confluent_kafka.TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)]
    ends = {place.partition: consumer.get_watermark_offsets(place)[1] for place in places}
    read: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in ends}
    consumer.assign(places)
    deadline = time.monotonic() + 60
    while any(not read[each] or read[each][-1][0] < end - 1 for each, end in ends.items() if end):
        assert time.monotonic() < deadline, "reading everything back took over a minute"
        for message in consumer.consume(5000, 0.5):
            assert message.error() is None, message.error()
            read[message.partition()].append((message.offset(), message.value()))
    consumer.close()
    return read


@contextmanager
def running(folder: Path) -> Iterator[NodeProcess]:
    settings = {"object.store": f"file://{folder}/store", "object.gather.ms": "30"}
    with NodeProcess(folder, settings) as node:
        topic = NewTopic(TOPIC, PARTITIONS, 1, config={"anabranch.mode": "object"})
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([topic])[TOPIC].result(20)
        yield node


def check(load: Load, bootstrap: str) -> None:
    assert not load.errors, load.errors[:3]
    assert not load.twice, "an offset was acknowledged twice"
    kept = read_all(bootstrap)
    at = {(partition, offset): value for partition, rows in kept.items() for offset, value in rows}
    lost = [place for place, value in load.values.items() if at.get(place) != value]
    assert not lost, f"{len(lost)} acknowledged records are gone or changed, such as {lost[:5]}"
    for partition, rows in kept.items():
        assert [offset for offset, _ in rows] == list(range(len(rows))), "offsets have gaps"
        numbers = [int(value) for _, value in rows]
        assert numbers == sorted(set(numbers)), (
            f"partition {partition} is out of order, or has something twice"
        )


def test_a_node_that_is_killed_again_and_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    rng = random.Random(3)
    with running(tmp_path) as node:
        with Load(node.bootstrap) as load:
            for _ in range(KILLS):
                load.wait_for_more(rng.randrange(100, 400))
                time.sleep(rng.random() * 0.1)
                node.kill()
                node.start()
            load.wait_for_more(200)
        load.flush()
        check(load, node.bootstrap)


def test_a_node_whose_store_is_away_goes_on_when_it_is_back(tmp_path: Path) -> None:
    store, away = tmp_path / "store" / "segments", tmp_path / "away"
    with running(tmp_path) as node:
        with Load(node.bootstrap) as load:
            load.wait_for_more(200)
            store.rename(away)
            store.write_text("a file where the folder should be")
            time.sleep(AWAY_SECONDS)
            store.unlink()
            away.rename(store)
            load.wait_for_more(200)
        load.flush()
        check(load, node.bootstrap)


def test_brokers_that_are_killed_one_after_the_other_lose_and_double_nothing(tmp_path: Path) -> None:
    """Also the one that leads the metadata quorum, and the one that clients are sent to."""
    rng = random.Random(5)
    settings = {"object.store": f"file://{tmp_path}/store", "object.gather.ms": "30", "flush": "os"}
    with ClusterProcesses(tmp_path / "cluster", settings=settings) as cluster:
        topic = NewTopic(TOPIC, PARTITIONS, config={"anabranch.mode": "object"})
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([topic])[TOPIC].result(20)
        with Load(cluster.bootstrap) as load:
            for choose in (lambda: 0, lambda: 1, lambda: 2, cluster.controller):
                load.wait_for_more(rng.randrange(100, 400))
                time.sleep(rng.random() * 0.1)
                victim = choose()
                cluster.kill(victim)
                load.wait_for_more(100)
                cluster.restart(victim)
            load.wait_for_more(200)
        load.flush()
        check(load, cluster.bootstrap)
