"""A Python client on one side of a network that splits: it writes, and reads everything, without a pause.

    python split_client.py confluent|kafka_python BOOTSTRAP TOPIC NAME PARTITIONS
    python split_client.py make BOOTSTRAP TOPIC '{"anabranch.mode": "branch"}' PARTITIONS [REPLICAS, as 2,3,4]
    python split_client.py read BOOTSTRAP TOPIC - PARTITIONS

A producer sends the values NAME-0, NAME-1 ... to the partitions in turn. A consumer without a group reads all
partitions from the beginning and never goes back; in the end it reads on until there is nothing new for a while. What
it prints is described in `client_program.py`; in the end `{"sent": n, "acked": [[number, partition, offset, sent_ms,
acked_ms]], "read": [[partition, offset, value]], "errors": [...]}`. Times are monotonic milliseconds.
Timeouts are shorter than the default ones, which are longer than the splits: with those a client would still wait for
an answer from the other side when the network is whole again. java/SplitClient.java does the same. `make` makes a
topic, and `read` prints `{"read": ..., "is_whole": ...}`, all that a new reader sees.
"""

import json
import sys
import time
from collections.abc import Callable

from client_program import PAUSE_S, Notes, produce_and_consume, say

ANSWER_MS_MAX = 3000
REFRESH_MS = 1000
DELIVERY_MS_MAX = 90_000
QUIET_S = 8.0
"""Nothing new for so long: there is no more to read."""
READ_S_MAX = 90.0


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Side(Notes):
    """Acknowledged are [number, partition, offset, sent_ms, acked_ms], read [partition, offset, value]."""

    def __init__(self, name: str, partitions: int) -> None:
        super().__init__()
        self.name = name
        self.partitions = partitions
        self.sent = 0
        self._seen = 0
        self._newest = 0.0
        self._ended = float("inf")

    def is_all_read(self) -> bool:
        """Nothing new came for a while, since this was asked first."""
        now = time.monotonic()
        if len(self.read) > self._seen:
            self._seen, self._newest = len(self.read), now
        self._ended = min(self._ended, now)
        return now > min(max(self._ended, self._newest) + QUIET_S, self._ended + READ_S_MAX)


def run(side: Side, produce: Callable[[], None], consume: Callable[[Callable[[], bool]], None]) -> None:
    produce_and_consume(side, produce, consume, side.is_all_read)
    side.finish(sent=side.sent)


def confluent(bootstrap: str, topic: str, side: Side) -> None:
    import confluent_kafka

    settings = {
        "bootstrap.servers": bootstrap,
        "log_level": 0,
        "error_cb": lambda error: side.failed("client", error),
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
        while not side.is_ending.is_set():
            number, sent_ms = side.sent, now_ms()
            side.sent += 1

            def note(
                error: confluent_kafka.KafkaError | None,
                message: confluent_kafka.Message,
                number: int = number,
                sent_ms: int = sent_ms,
            ) -> None:
                if error is None:
                    place = message.partition(), message.offset()
                    side.acked.append((number, *place, sent_ms, now_ms()))
                else:
                    side.failed("produce", error)

            value = f"{side.name}-{number}"
            producer.produce(topic, value, partition=number % side.partitions, on_delivery=note)
            producer.poll(PAUSE_S)
        producer.flush(DELIVERY_MS_MAX / 1000)

    def consume(is_over: Callable[[], bool]) -> None:
        consumer = confluent_kafka.Consumer(
            {
                **settings,
                "group.id": f"split-{side.name}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(side.partitions)])
        while not is_over():
            for message in consumer.consume(1000, 0.1):
                if message.error() is not None:
                    side.failed("consume", message.error())
                else:
                    side.read.append((message.partition(), message.offset(), message.value().decode()))
        consumer.close()

    run(side, produce, consume)


def kafka_python(bootstrap: str, topic: str, side: Side) -> None:
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
        while not side.is_ending.is_set():
            number, sent_ms = side.sent, now_ms()
            partition = number % side.partitions
            try:
                sent = producer.send(topic, f"{side.name}-{number}".encode(), partition=partition)
            except kafka.errors.KafkaError as error:
                side.failed("send", error)
                time.sleep(PAUSE_S)
                continue
            side.sent += 1

            def note(place: object, number: int = number, sent_ms: int = sent_ms) -> None:
                side.acked.append((number, place.partition, place.offset, sent_ms, now_ms()))  # type: ignore[attr-defined]

            sent.add_callback(note)
            sent.add_errback(lambda error: side.failed("produce", error))
            time.sleep(PAUSE_S)
        producer.close(DELIVERY_MS_MAX / 1000)

    def consume(is_over: Callable[[], bool]) -> None:
        consumer = kafka.KafkaConsumer(
            **settings, group_id=None, auto_offset_reset="none", request_timeout_ms=ANSWER_MS_MAX
        )
        places = [kafka.TopicPartition(topic, index) for index in range(side.partitions)]
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
        while not is_over():
            try:
                found = consumer.poll(100)
            except kafka.errors.KafkaError as error:
                side.failed("consume", error)
                continue
            for records in found.values():
                side.read += [(record.partition, record.offset, record.value.decode()) for record in records]
        consumer.close()

    run(side, produce, consume)


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
    say({"read": reads, "is_whole": len(ended) == partitions})


def main() -> None:
    kind, bootstrap, topic, name, partitions, *more = sys.argv[1:]
    match kind:
        case "make":
            make(bootstrap, topic, name, int(partitions), more[0] if more else None)
        case "read":
            read(bootstrap, topic, int(partitions))
        case _:
            client = {"confluent": confluent, "kafka_python": kafka_python}[kind]
            client(bootstrap, topic, Side(name, int(partitions)))


if __name__ == "__main__":
    main()
