"""Loads of real clients: what a producer writes, a consumer then reads back."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from bench.brokers import Broker
from bench.clients.programs import Client, Rdkafka, Work
from bench.loads import Figures, Turn, cpu_of
from bench.loads.raw import open_partitions

TOPIC = "bench"
WARM_UP_SHARE = 5  # The first round is preceded by a fifth of its records.
HEAD_START_S = 2.0
FINISH_S_MAX = 180.0


@dataclass(frozen=True)
class Clients:
    """One producer writes `records`, then one consumer reads them."""

    client: Client
    records: int
    record_bytes: int
    codec: str = "none"
    partitions: int = 4

    def run(self, turn: Turn) -> Figures:
        broker = turn.broker()
        if turn.is_first:
            self._once(broker, self.records // WARM_UP_SHARE)
        return self._once(broker, self.records)

    def _once(self, broker: Broker, records: int) -> Figures:
        work = Work(broker.bootstrap, TOPIC, 1, self.partitions, records, self.record_bytes, self.codec)
        with broker.topics([TOPIC], self.partitions):
            with cpu_of(broker) as produce_cpu:
                produced = self.client.produce(work)
            with cpu_of(broker) as consume_cpu:
                consumed = self.client.consume(work)
        return {
            "records_per_s": produced,
            "cpu_us_per_record": produce_cpu.seconds / records * 1e6,
            "consumed_per_s": consumed,
            "consume_cpu_us_per_record": consume_cpu.seconds / records * 1e6,
        }


@dataclass(frozen=True)
class ManyTopics:
    """One producer writes to every partition of many topics in turn while one consumer reads them all."""

    topics: int
    partitions: int
    records: int
    record_bytes: int

    def run(self, turn: Turn) -> Figures:
        broker = turn.broker()
        names = [f"{TOPIC}-{number}" for number in range(self.topics)]
        with broker.topics(names, self.partitions):
            if turn.is_first:
                self._once(broker, self.records // WARM_UP_SHARE)
        with broker.topics(names, self.partitions):
            return self._once(broker, self.records)

    def _once(self, broker: Broker, records: int) -> Figures:
        work = Work(broker.bootstrap, TOPIC, self.topics, self.partitions, records, self.record_bytes, "none")
        client = Rdkafka()
        opened = open_partitions(broker, self.topics, self.partitions)
        with ThreadPoolExecutor(1) as side_by_side:
            reading = side_by_side.submit(client.consume, replace(work, records=opened + records))
            time.sleep(HEAD_START_S)  # The consumer has read what is there before the first record comes.
            started = time.monotonic()
            with cpu_of(broker) as cpu:
                produced = client.produce(work)
                reading.result(FINISH_S_MAX)
        return {
            "records_per_s": produced,
            "through_per_s": records / (time.monotonic() - started),
            "cpu_us_per_record": cpu.seconds / records * 1e6,
        }


def batched(broker: Broker, records: int, record_bytes: int, partitions: int) -> float:
    """Records per second that one librdkafka producer gets acknowledged, on a topic of its own."""
    with broker.topics([TOPIC], partitions):
        work = Work(broker.bootstrap, TOPIC, 1, partitions, records, record_bytes, "none")
        Rdkafka().produce(replace(work, records=records // WARM_UP_SHARE))
        return Rdkafka().produce(work)
