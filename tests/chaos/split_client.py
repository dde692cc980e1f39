"""A Python client on one side of a network that splits: it writes, and reads everything, without a pause.

    python split_client.py confluent|kafka_python BOOTSTRAP TOPIC NAME PARTITIONS
    python split_client.py make BOOTSTRAP TOPIC '{"anabranch.mode": "branch"}' PARTITIONS [REPLICAS, as 2,3,4]
    python split_client.py read BOOTSTRAP TOPIC - PARTITIONS

A producer sends the values NAME-0, NAME-1 ... to the partitions in turn. A consumer without a group reads all
partitions from the beginning and never goes back. Twice a second stdout gets `{"acked": n, "read": n}`. When stdin ends
it sends no more, reads on until there is nothing new for a while, and prints `{"sent": n, "acks": [[number, partition,
offset, sent_ms, acked_ms]], "reads": [[partition, offset, value]], "errors": [...]}`. Times are monotonic milliseconds.
Timeouts are shorter than the default ones, which are longer than the splits: with those a client would still wait for
an answer from the other side when the network is whole again. java/SplitClient.java does the same. `make` makes a
topic, and `read` prints `{"reads": ...}`, all that a new reader sees.
"""

import json
import sys
import threading
import time
from collections.abc import Callable

PAUSE_S = 0.01
TELL_S = 0.5
ANSWER_MS_MAX = 3000
REFRESH_MS = 1000
DELIVERY_MS_MAX = 90_000
QUIET_S = 8.0
"""Nothing new for so long: there is no more to read."""
READ_S_MAX = 90.0


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Notes:
    def __init__(self, name: str, partitions: int) -> None:
        self.name = name
        self.partitions = partitions
        self.sent = 0
        self.acks: list[tuple[int, int, int, int, int]] = []
        self.reads: list[tuple[int, int, str]] = []
        self.errors: list[str] = []
        self.is_ending = threading.Event()
        threading.Thread(target=self._wait_for_end, daemon=True).start()
        threading.Thread(target=self._tell, daemon=True).start()

    def _wait_for_end(self) -> None:
        sys.stdin.read()
        self.is_ending.set()

    def _tell(self) -> None:
        while not self.is_ending.wait(TELL_S):
            say({"acked": len(self.acks), "read": len(self.reads)})

    def finish(self) -> None:
        say({"sent": self.sent, "acks": self.acks, "reads": self.reads, "errors": self.errors[-100:]})


def say(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class Reading:
    """Says when a consumer may stop: its producer is done, and nothing new came for a while."""

    def __init__(self, notes: Notes, producing: threading.Thread) -> None:
        self._notes = notes
        self._producing = producing
        self._seen = 0
        self._newest = 0.0
        self._ended = float("inf")

    def is_over(self) -> bool:
        now = time.monotonic()
        if len(self._notes.reads) > self._seen:
            self._seen, self._newest = len(self._notes.reads), now
        if self._producing.is_alive():
            return False
        self._ended = min(self._ended, now)
        return now > min(max(self._ended, self._newest) + QUIET_S, self._ended + READ_S_MAX)


def run(notes: Notes, produce: Callable[[], None], consume: Callable[[Callable[[], bool]], None]) -> None:
    producing = threading.Thread(target=produce)
    producing.start()
    consume(Reading(notes, producing).is_over)
    producing.join()
    notes.finish()


def confluent(bootstrap: str, topic: str, notes: Notes) -> None:
    import confluent_kafka

    settings = {
        "bootstrap.servers": bootstrap,
        "log_level": 0,
        "error_cb": lambda error: notes.errors.append(f"client: {error}"),
        "socket.timeout.ms": ANSWER_MS_MAX,
        "topic.metadata.refresh.interval.ms": REFRESH_MS,
        "reconnect.backoff.max.ms": 1000,
    }

    def produce() -> None:
        producer = confluent_kafka.Producer(
            {
                **settings,
                "enable.idempotence": True,
                "request.timeout.ms": ANSWER_MS_MAX,
                "message.timeout.ms": DELIVERY_MS_MAX,
            }
        )
        while not notes.is_ending.is_set():
            number, sent_ms = notes.sent, now_ms()
            notes.sent += 1

            def note(
                error: confluent_kafka.KafkaError | None,
                message: confluent_kafka.Message,
                number: int = number,
                sent_ms: int = sent_ms,
            ) -> None:
                if error is None:
                    place = message.partition(), message.offset()
                    notes.acks.append((number, *place, sent_ms, now_ms()))
                else:
                    notes.errors.append(f"produce: {error}")

            value = f"{notes.name}-{number}"
            producer.produce(topic, value, partition=number % notes.partitions, on_delivery=note)
            producer.poll(PAUSE_S)
        producer.flush(DELIVERY_MS_MAX / 1000)

    def consume(is_over: Callable[[], bool]) -> None:
        consumer = confluent_kafka.Consumer(
            {
                **settings,
                "group.id": f"split-{notes.name}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, index, 0) for index in range(notes.partitions)]
        )
        while not is_over():
            for message in consumer.consume(1000, 0.1):
                if message.error() is not None:
                    notes.errors.append(f"consume: {message.error()}")
                else:
                    notes.reads.append((message.partition(), message.offset(), message.value().decode()))
        consumer.close()

    run(notes, produce, consume)


def kafka_python(bootstrap: str, topic: str, notes: Notes) -> None:
    import kafka

    settings = {
        "bootstrap_servers": bootstrap,
        "metadata_max_age_ms": REFRESH_MS,
        "reconnect_backoff_max_ms": 1000,
    }

    def produce() -> None:
        producer = kafka.KafkaProducer(
            **settings, request_timeout_ms=ANSWER_MS_MAX, delivery_timeout_ms=DELIVERY_MS_MAX
        )
        while not notes.is_ending.is_set():
            number, sent_ms = notes.sent, now_ms()
            partition = number % notes.partitions
            try:
                sent = producer.send(topic, f"{notes.name}-{number}".encode(), partition=partition)
            except kafka.errors.KafkaError as error:
                notes.errors.append(f"send: {error!r}")
                time.sleep(PAUSE_S)
                continue
            notes.sent += 1

            def note(place: object, number: int = number, sent_ms: int = sent_ms) -> None:
                notes.acks.append((number, place.partition, place.offset, sent_ms, now_ms()))  # type: ignore[attr-defined]

            sent.add_callback(note)
            sent.add_errback(lambda error: notes.errors.append(f"produce: {error!r}"))
            time.sleep(PAUSE_S)
        producer.close(DELIVERY_MS_MAX / 1000)

    def consume(is_over: Callable[[], bool]) -> None:
        consumer = kafka.KafkaConsumer(
            **settings, group_id=None, auto_offset_reset="none", request_timeout_ms=ANSWER_MS_MAX
        )
        places = [kafka.TopicPartition(topic, index) for index in range(notes.partitions)]
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
        while not is_over():
            try:
                found = consumer.poll(100)
            except kafka.errors.KafkaError as error:
                notes.errors.append(f"consume: {error!r}")
                continue
            for records in found.values():
                notes.reads += [
                    (record.partition, record.offset, record.value.decode()) for record in records
                ]
        consumer.close()

    run(notes, produce, consume)


def make(bootstrap: str, topic: str, configs: str, partitions: int, replicas: str | None) -> None:
    """Tries until so many brokers have joined that the copies have a place."""
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, NewTopic

    placed = None if replicas is None else [[int(each) for each in replicas.split(",")]] * partitions
    wanted = NewTopic(
        topic, partitions, config=json.loads(configs), **({"replication_factor": 3} if placed is None else {})
    )
    if placed is not None:
        wanted.replica_assignment = placed
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + READ_S_MAX
    while True:
        try:
            admin.create_topics([wanted])[topic].result()
            return
        except confluent_kafka.KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def read(bootstrap: str, topic: str, partitions: int) -> None:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True, "log_level": 0}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)])
    reads, ended, deadline = [], set(), time.monotonic() + READ_S_MAX
    while len(ended) < partitions and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.1):
            if message.error() is None:
                reads.append((message.partition(), message.offset(), message.value().decode()))
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    consumer.close()
    say({"reads": reads, "is_whole": len(ended) == partitions})


def main() -> None:
    kind, bootstrap, topic, name, partitions, *more = sys.argv[1:]
    match kind:
        case "make":
            make(bootstrap, topic, name, int(partitions), more[0] if more else None)
        case "read":
            read(bootstrap, topic, int(partitions))
        case _:
            client = {"confluent": confluent, "kafka_python": kafka_python}[kind]
            client(bootstrap, topic, Notes(name, int(partitions)))


if __name__ == "__main__":
    main()
