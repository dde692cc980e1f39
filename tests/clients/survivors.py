"""Python clients that go on through whatever happens to their cluster, with their default settings.

    python survivors.py confluent|kafka_python|aiokafka BOOTSTRAP TOPIC

A producer sends numbers as keys and values, and a member of the group named as the topic reads them. What it prints is
described in `client_program.py`; in the end that is every number, and every error that a program which uses the client
would have had to deal with. The programs in `java/` and `go/` do the same.
"""

import asyncio
import sys
import time
from collections.abc import Callable

from client_program import PAUSE_S, Notes, produce_and_consume

FINISH_S_MAX = 60.0


class Survivor(Notes):
    """Of numbers."""

    _deadline = float("inf")

    def is_all_read(self) -> bool:
        """Or there was time enough, since this was asked first."""
        self._deadline = min(self._deadline, time.monotonic() + FINISH_S_MAX)
        return set(self.acked) <= set(self.read) or time.monotonic() > self._deadline


def run(notes: Survivor, produce: Callable[[], None], consume: Callable[[Callable[[], bool]], None]) -> None:
    produce_and_consume(notes, produce, consume, notes.is_all_read)
    notes.finish()


def confluent(bootstrap: str, topic: str) -> None:
    import confluent_kafka

    notes = Survivor()
    settings = {"bootstrap.servers": bootstrap, "log_level": 0}

    def note(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            notes.failed("produce", error)
        else:
            notes.acked.append(int(message.value() or b""))

    def produce() -> None:
        producer = confluent_kafka.Producer(settings)
        number = 0
        while not notes.is_ending.is_set():
            producer.produce(topic, b"%d" % number, b"%d" % number, on_delivery=note)
            number += 1
            producer.poll(PAUSE_S)
        producer.flush(FINISH_S_MAX)

    def consume(is_over: Callable[[], bool]) -> None:
        consumer = confluent_kafka.Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])
        while not is_over():
            for message in consumer.consume(1000, 0.1):
                if message.error() is not None:
                    notes.failed("consume", message.error())
                else:
                    notes.read.append(int(message.value() or b""))
        consumer.close()

    run(notes, produce, consume)


def kafka_python(bootstrap: str, topic: str) -> None:
    import kafka

    notes = Survivor()

    def produce() -> None:
        producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
        number = 0
        while not notes.is_ending.is_set():
            value = b"%d" % number
            try:
                sent = producer.send(topic, value, value)
            except kafka.errors.KafkaError as error:
                notes.failed("produce", error)
                continue
            sent.add_callback(lambda _, number=number: notes.acked.append(number))
            sent.add_errback(lambda error: notes.failed("produce", error))
            number += 1
            time.sleep(PAUSE_S)
        producer.close(FINISH_S_MAX)

    def consume(is_over: Callable[[], bool]) -> None:
        consumer = kafka.KafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest"
        )
        while not is_over():
            try:
                found = consumer.poll(100)
            except kafka.errors.KafkaError as error:
                notes.failed("consume", error)
                continue
            notes.read += [int(record.value) for records in found.values() for record in records]
        consumer.close()

    run(notes, produce, consume)


def aiokafka(bootstrap: str, topic: str) -> None:
    asyncio.run(_aiokafka(bootstrap, topic))


async def _aiokafka(bootstrap: str, topic: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.errors import KafkaError

    notes = Survivor()

    async def acknowledged(sent: asyncio.Future[object], number: int) -> None:
        try:
            await sent
        except KafkaError as error:
            notes.failed("produce", error)
        else:
            notes.acked.append(number)

    async def produce() -> None:
        waiting = set()
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            number = 0
            while not notes.is_ending.is_set():
                value = b"%d" % number
                task = asyncio.create_task(acknowledged(await producer.send(topic, value, value), number))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
                number += 1
                await asyncio.sleep(PAUSE_S)
            await asyncio.gather(*waiting)

    async def consume() -> None:
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest"
        ) as consumer:
            while not (producing.done() and notes.is_all_read()):
                try:
                    found = await consumer.getmany(timeout_ms=100)
                except KafkaError as error:
                    notes.failed("consume", error)
                    continue
                notes.read += [int(record.value) for records in found.values() for record in records]

    producing = asyncio.create_task(produce())
    await consume()
    await producing
    notes.finish()


if __name__ == "__main__":
    {"confluent": confluent, "kafka_python": kafka_python, "aiokafka": aiokafka}[sys.argv[1]](*sys.argv[2:4])
