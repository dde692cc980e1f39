"""Stock clients that write to a topic and read it while its mode is changed, each until it is told to finish."""

import threading
from typing import Any

import confluent_kafka
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from anabranch.testing.cluster_processes import ClusterProcesses
from support.waiting import wait_until

RUN_S_MAX = 90.0
PARTITIONS = 3


class Load:
    """An idempotent producer and a reader that never rewinds, in threads of their own, until `finish`."""

    def __init__(self, cluster: ClusterProcesses, topic: str) -> None:
        self._topic = topic
        self._bootstrap = cluster.bootstrap
        self._is_over = threading.Event()
        self.errors: list[Any] = []
        self.sent = [0] * PARTITIONS
        self.read: list[list[tuple[int, int]]] = [[] for _ in range(PARTITIONS)]
        self._threads = [threading.Thread(target=each) for each in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        while not self._is_over.is_set():
            for partition in range(PARTITIONS):
                value = str(self.sent[partition])
                producer.produce(self._topic, value, partition=partition, on_delivery=self._told)
                self.sent[partition] += 1
            producer.poll(0.005)
        if producer.flush(RUN_S_MAX):
            self.errors.append("not all was taken")

    def _told(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(error)

    def _read(self) -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "none", "enable.auto.commit": False}
        )
        places = [confluent_kafka.TopicPartition(self._topic, each, 0) for each in range(PARTITIONS)]
        consumer.assign(places)
        try:
            while not (self._is_over.is_set() and not self._threads[0].is_alive() and self._has_all()):
                for message in consumer.consume(1000, 0.2):
                    error = message.error()
                    if error is None:
                        place = self.read[message.partition()]
                        place.append((message.offset(), int(message.value())))
                    elif not error.retriable():
                        self.errors.append(error)
        finally:
            consumer.close()

    def _has_all(self) -> bool:
        return all(len(read) >= sent for read, sent in zip(self.read, self.sent, strict=True))

    def wait_for_more(self) -> None:
        so_far = sum(self.sent)
        wait_until(lambda: sum(self.sent) > so_far + 300, "some records")

    def finish(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(RUN_S_MAX)
        assert not any(thread.is_alive() for thread in self._threads), self.errors
        assert self.errors == []
        self.check()

    def check(self) -> None:
        for read, sent in zip(self.read, self.sent, strict=True):
            assert read == [(number, number) for number in range(sent)]


class GappedLoad(Load):
    """Of a topic that is in mode branch at times: a record that waited on a broker that was killed may come behind
    later ones, and the reader may see a record again that was written again."""

    def check(self) -> None:
        for read, sent in zip(self.read, self.sent, strict=True):
            offsets = [offset for offset, _ in read]
            assert offsets == sorted(set(offsets))
            assert {number for _, number in read} == set(range(sent))

    def _has_all(self) -> bool:
        return all(
            len({number for _, number in read}) >= sent
            for read, sent in zip(self.read, self.sent, strict=True)
        )


def change(cluster: ClusterProcesses, topic: str, mode: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    entry = ConfigEntry("anabranch.mode", mode, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(RUN_S_MAX)


def wait_until_changed(cluster: ClusterProcesses, topic: str, mode: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)

    def is_done() -> bool:
        entries = admin.describe_configs([resource])[resource].result(RUN_S_MAX)
        return entries["anabranch.mode"].value == mode and "anabranch.mode.changing" not in entries

    wait_until(is_done, f"{topic} in mode {mode}", RUN_S_MAX)


def created(cluster: ClusterProcesses, topic: str, mode: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic(topic, PARTITIONS, config={"anabranch.mode": mode})
    admin.create_topics([new])[topic].result(RUN_S_MAX)


def values_from_the_start(cluster: ClusterProcesses, topic: str, counts: list[int]) -> list[list[int]]:
    """What somebody reads who begins now."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "none", "auto.offset.reset": "earliest"}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]

    def all_read() -> bool:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            found[message.partition()].append(int(message.value()))
        return all(len(read) >= count for read, count in zip(found, counts, strict=True))

    try:
        wait_until(all_read, "all records", RUN_S_MAX)
    finally:
        consumer.close()
    return found
