"""CommitLedger: a group that reads a topic, commits by hand, and writes down every commit that was acknowledged.

    ledger = CommitLedger(bootstrap, topic, partitions)
    ledger.start() ... ledger.stop()
    ledger.check()              # once it is calm; `lost` then says what was found lower than it was acknowledged

A commit counts as acknowledged when a synchronous commit has returned without an error for that partition. Whoever
begins anew is given what is committed: that may be less than was *read* before, never less than was *acknowledged*.
"""

import threading
import time
from collections import defaultdict

import confluent_kafka

from chaos.cluster_load import QUIET, close_consumer

READ_SECONDS_MAX = 60.0
COMMIT_EVERY_SECONDS = 0.3
ANEW_EVERY_SECONDS = 5.0
"""A member ends without a word and another one begins: it must find at least what was acknowledged."""


class CommitLedger:
    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self.group = f"{topic}-ledger"
        self._partitions = partitions
        self._acknowledged: dict[int, int] = defaultdict(int)
        self._read: dict[int, int] = {}
        """How far the last member has read, committed or not."""
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self.acknowledged_count = 0
        self.reread = 0
        """Records that were read again, because their commit was not acknowledged before another member began."""
        self.lost: list[str] = []
        self.errors: dict[str, int] = defaultdict(int)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join(READ_SECONDS_MAX * 2)
        assert not self._thread.is_alive(), "the ledger did not end"

    def check(self) -> None:
        """Compare with what the group has now."""
        consumer = self._consumer()
        try:
            deadline = time.monotonic() + READ_SECONDS_MAX
            while True:
                try:
                    self._compare(consumer, "at the end")
                    return
                except confluent_kafka.KafkaException:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.5)
        finally:
            close_consumer(consumer)

    # --- the member ----------------------------------------------------------------------------------------------

    def _consumer(self) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            {
                **QUIET,
                "bootstrap.servers": self._bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
            }
        )

    def _places(self) -> list[confluent_kafka.TopicPartition]:
        return [confluent_kafka.TopicPartition(self._topic, number) for number in range(self._partitions)]

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            consumer = self._consumer()
            try:
                self._live(consumer)
            except confluent_kafka.KafkaException as error:
                self.errors[error.args[0].name()] += 1
                time.sleep(0.2)
            finally:
                close_consumer(consumer)

    def _live(self, consumer: confluent_kafka.Consumer) -> None:
        found = self._compare(consumer, "by a new member")
        for partition, offset in found.items():
            self.reread += max(0, self._read.get(partition, 0) - offset)
        self._read = dict(found)
        begins = [
            confluent_kafka.TopicPartition(self._topic, number, offset) for number, offset in found.items()
        ]
        consumer.assign(begins)
        positions: dict[int, int] = {}
        end = time.monotonic() + ANEW_EVERY_SECONDS
        commit_at = time.monotonic() + COMMIT_EVERY_SECONDS
        while not self._is_stopping.is_set() and time.monotonic() < end:
            for message in consumer.consume(200, 0.1):
                if message.error() is None:
                    partition, offset = message.partition(), message.offset()
                    assert partition is not None
                    assert offset is not None
                    positions[partition] = self._read[partition] = offset + 1
            if positions and time.monotonic() >= commit_at:
                self._commit(consumer, positions)
                positions = {}
                commit_at = time.monotonic() + COMMIT_EVERY_SECONDS

    def _commit(self, consumer: confluent_kafka.Consumer, positions: dict[int, int]) -> None:
        places = [
            confluent_kafka.TopicPartition(self._topic, number, offset)
            for number, offset in positions.items()
        ]
        for answered in consumer.commit(offsets=places, asynchronous=False) or []:
            if answered.error is None:
                self.acknowledged_count += 1
                self._acknowledged[answered.partition] = max(
                    self._acknowledged[answered.partition], answered.offset
                )
            else:
                self.errors[answered.error.name()] += 1

    def _compare(self, consumer: confluent_kafka.Consumer, when: str) -> dict[int, int]:
        """What is committed now. Only this thread commits, so it cannot have been overtaken."""
        found = {}
        for place in consumer.committed(self._places(), timeout=10):
            if place.error is not None:
                raise confluent_kafka.KafkaException(place.error)
            found[place.partition] = max(0, place.offset)
            acknowledged = self._acknowledged[place.partition]
            if found[place.partition] < acknowledged:
                self.lost.append(
                    f"partition {place.partition}: {acknowledged} was acknowledged, {place.offset} found {when}"
                )
        return found
