"""Producers, a group of consumers and a look at the watermarks, all at once, each noting what it was told.

    load = ClusterLoad(bootstrap, topic, partitions)
    load.start() ... load.stop()
    history = load.history(final_reads(bootstrap, topic, partitions))

Producers are idempotent confluent-kafka ones with its default retries. One that librdkafka declares broken for good is
replaced by another with a name of its own, and counted. Times are monotonic milliseconds.
"""

import itertools
import os
import threading
import time
from collections import defaultdict
from typing import Any

import confluent_kafka

from anabranch.errors import ClusterAnswerError
from anabranch.local_cluster.cluster_client import ClusterClient
from chaos.history import History, Outcome, Read, Sent, Watermark

UNKNOWN_AFTER_MS = 120_000
"""When a producer gives a record up: long after the longest fault."""
QUIET: dict[str, Any] = {"log_level": 0, "error_cb": lambda error: None}
READ_SECONDS_MAX = 120.0
CLOSE_SECONDS_MAX = 15.0
NOT_LEADER = confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class _Sender:
    """One producer after the other under one thread."""

    def __init__(self, load: "ClusterLoad", number: int) -> None:
        self._load = load
        self._number = number
        self._lives = itertools.count()
        self.sends: dict[tuple[str, int], Sent] = {}
        self.restarts = 0
        self.errors: dict[str, int] = defaultdict(int)
        self.thread = threading.Thread(target=self._run, name=f"sender-{number}", daemon=True)

    def _run(self) -> None:
        self._load.give_way()
        while not self._load.is_stopping.is_set():
            self._live(f"p{self._number}.{next(self._lives)}")

    def _live(self, name: str) -> None:
        producer = confluent_kafka.Producer(
            {
                **QUIET,
                "bootstrap.servers": self._load.bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": self._load.linger_ms,
                "message.timeout.ms": UNKNOWN_AFTER_MS,
            }
        )
        broken = threading.Event()
        for sequence in itertools.count():
            if self._load.is_stopping.is_set() or broken.is_set():
                break
            self._send(producer, name, sequence, broken)
            producer.poll(0)
            time.sleep(1 / self._load.per_second)
        producer.flush(self._load.flush_seconds)
        if broken.is_set():
            self.restarts += 1

    def _send(
        self, producer: confluent_kafka.Producer, name: str, sequence: int, broken: threading.Event
    ) -> None:
        partition = (self._number + sequence) % self._load.partitions
        value = f"{name}-{sequence}-".encode().ljust(self._load.value_bytes, b"x")
        sent = Sent(name, sequence, partition, value, now_ms(), Outcome.UNKNOWN)

        def on_delivery(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is None:
                offset = message.offset()
                known = offset if offset is not None and offset >= 0 else None
                self.sends[name, sequence] = sent._replace(outcome=Outcome.ACKNOWLEDGED, offset=known)
                self._load.acknowledged(partition, sent.sent_ms)
            else:
                self.errors[error.name()] += 1
                if error.fatal():
                    broken.set()

        self.sends[name, sequence] = sent
        try:
            producer.produce(self._load.topic, value, partition=partition, on_delivery=on_delivery)
        except BufferError:
            self.sends[name, sequence] = sent._replace(outcome=Outcome.FAILED)
            self.errors["queue full"] += 1
            producer.poll(0.1)
        except confluent_kafka.KafkaException as error:
            self.sends[name, sequence] = sent._replace(outcome=Outcome.FAILED)
            self.errors[error.args[0].name()] += 1
            broken.set()


def close_consumer(consumer: confluent_kafka.Consumer) -> None:
    """Leave the group and free the client, as far as librdkafka (2.16.0) can. It drops a broker that is in no Metadata
    answer any more, and if a request to it was to be retried just then, that handle is never freed ("Handle is
    terminating in state INIT: 2 refcnts" in its log): `close` then waits for ever."""
    closing = threading.Thread(target=consumer.close, name="closing a consumer", daemon=True)
    closing.start()
    closing.join(CLOSE_SECONDS_MAX)


class _Receiver:
    """One member of the group."""

    def __init__(self, load: "ClusterLoad", number: int) -> None:
        self._load = load
        self._name = f"c{number}"
        self.reads: list[Read] = []
        self.errors: dict[str, int] = defaultdict(int)
        self.thread = threading.Thread(target=self._run, name=f"receiver-{number}", daemon=True)

    def _run(self) -> None:
        self._load.give_way()
        consumer = confluent_kafka.Consumer(
            {
                **QUIET,
                "bootstrap.servers": self._load.bootstrap,
                "group.id": self._load.group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 1000,
                "session.timeout.ms": 10_000,
            }
        )
        consumer.subscribe([self._load.topic])
        while not self._load.is_stopping.is_set():
            message = consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                self.errors[error.name()] += 1
                continue
            self.reads.append(_read_of(self._name, message))
        close_consumer(consumer)


class ClusterLoad:
    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        producers: int = 3,
        consumers: int = 2,
        per_second: int = 200,
        value_bytes: int = 100,
        flush_seconds: float = 60.0,
        linger_ms: int = 5,
        niceness: int = 0,
    ) -> None:
        """`per_second` is the rate of one producer. With a niceness the clients give way to whatever else runs on this
        machine, as if they ran on another."""
        self.bootstrap = bootstrap
        self.topic = topic
        self.group = f"{topic}-group"
        self.partitions = partitions
        self.per_second = per_second
        self.value_bytes = value_bytes
        self.flush_seconds = flush_seconds
        self.linger_ms = linger_ms
        self._niceness = niceness
        self.is_stopping = threading.Event()
        self._senders = [_Sender(self, number) for number in range(producers)]
        self._receivers = [_Receiver(self, number) for number in range(consumers)]
        self._watermarks: list[Watermark] = []
        self._looker = threading.Thread(target=self._look, name="looker", daemon=True)
        self._acks: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """By partition: when a record was sent and when it was acknowledged."""

    # --- life --------------------------------------------------------------------------------------------------

    @property
    def _threads(self) -> list[threading.Thread]:
        return [*(one.thread for one in (*self._senders, *self._receivers)), self._looker]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def give_way(self) -> None:
        """Lower the priority of the calling thread, and so of the threads that its client starts."""
        if self._niceness:
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + self._niceness)

    def stop(self) -> None:
        """Send nothing more, and wait for the answers that are still due."""
        self.is_stopping.set()
        for thread in self._threads:
            thread.join(self.flush_seconds + READ_SECONDS_MAX)
            assert not thread.is_alive(), f"{thread.name} did not end"

    # --- notes -------------------------------------------------------------------------------------------------

    def acknowledged(self, partition: int, sent_ms: int) -> None:
        self._acks[partition].append((sent_ms, now_ms()))

    @property
    def acknowledged_count(self) -> int:
        return sum(map(len, self._acks.values()))

    def acknowledged_within(self, begin_ms: int, end_ms: int) -> int:
        """How many records were both sent and acknowledged between these two moments."""
        every = [ack for acks in list(self._acks.values()) for ack in list(acks)]
        return sum(begin_ms <= sent and acked <= end_ms for sent, acked in every)

    def longest_silence_ms(self, begin_ms: int, end_ms: int) -> int:
        """The longest time between these two moments in which no partition had a record acknowledged."""
        every = sorted(acked for acks in list(self._acks.values()) for _, acked in list(acks))
        times = [begin_ms, *(each for each in every if begin_ms < each < end_ms), end_ms]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def silence_ms(self, partition: int, since_ms: int) -> int | None:
        """How long after that moment the first record sent after it was acknowledged; None: never."""
        times = [acked for sent, acked in list(self._acks[partition]) if sent >= since_ms]
        return min(times) - since_ms if times else None

    def history(self, final: list[Read]) -> History:
        return History(
            sends=[sent for sender in self._senders for sent in sender.sends.values()],
            reads=[read for receiver in self._receivers for read in receiver.reads],
            is_read_by_group=True,
            final=final,
            watermarks=self._watermarks,
        )

    @property
    def producer_restarts(self) -> int:
        return sum(sender.restarts for sender in self._senders)

    def errors(self) -> dict[str, int]:
        """What clients were told, by name."""
        found: dict[str, int] = defaultdict(int)
        for one in (*self._senders, *self._receivers):
            for name, count in one.errors.items():
                found[name] += count
        return dict(found)

    def _look(self) -> None:
        with ClusterClient(self.bootstrap, 2.0) as client:
            while not self.is_stopping.wait(0.2):
                try:
                    self._look_once(client)
                except ClusterAnswerError:
                    continue  # Nobody answers in the middle of a fault.

    def _look_once(self, client: ClusterClient) -> None:
        for topic in client.metadata([self.topic])["topics"]:
            for row in topic["partitions"]:
                if row["leader_id"] < 0:
                    continue
                place = (self.topic, row["partition_index"])
                begun = now_ms()
                found = client.ends({row["leader_id"]: [place]})
                if place in found:
                    self._watermarks.append(
                        Watermark(place[1], begun, now_ms(), found[place], row["leader_epoch"])
                    )


def final_reads(bootstrap: str, topic: str, partitions: int) -> list[Read]:
    """Everything that is in the topic now. Raises TimeoutError if that cannot be read."""
    consumer = confluent_kafka.Consumer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        ends = {}
        for partition in range(partitions):
            ends[partition] = _end_of(consumer, confluent_kafka.TopicPartition(topic, partition))
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(partitions)]
        )
        reads: list[Read] = []
        left = {partition for partition, end in ends.items() if end > 0}
        deadline = time.monotonic() + READ_SECONDS_MAX
        while left:
            if time.monotonic() > deadline:
                raise TimeoutError(f"partitions {sorted(left)} could not be read to their end {ends}")
            message = consumer.poll(0.5)
            if message is None or message.error() is not None:
                continue
            reads.append(_read_of("final", message))
            if reads[-1].offset >= ends[reads[-1].partition] - 1:
                left.discard(reads[-1].partition)
        return reads
    finally:
        close_consumer(consumer)


def _end_of(consumer: confluent_kafka.Consumer, place: confluent_kafka.TopicPartition) -> int:
    """A leader may just be changing, and librdkafka ask the one before."""
    deadline = time.monotonic() + READ_SECONDS_MAX
    while True:
        try:
            return int(consumer.get_watermark_offsets(place, timeout=30)[1])
        except confluent_kafka.KafkaException as error:
            if not error.args[0].retriable() and error.args[0].code() != NOT_LEADER:
                raise
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def _read_of(name: str, message: confluent_kafka.Message) -> Read:
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert isinstance(value, bytes)
    return Read(name, partition, offset, value)
