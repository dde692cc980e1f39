"""Loads in mode object: what it takes until the store has a record, and how often the store is asked. Ours only.

Brokers run with their default settings, flush=always included, except where a load says otherwise.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from bench.brokers import Broker
from bench.clusters import OurCluster, running
from bench.loads import Figures, Turn, cpu_of
from bench.loads.cluster import produce
from bench.loads.raw import SECONDS_MAX, TOPIC, check_kept, run_load
from bench.measure import cpu_seconds
from bench.programs import load_program, run_json
from bench.stores import Counts, Store, folder_store, slow_store

FOLDER = None
"""For `put_ms`: the store is a folder, which is as slow as its disk."""
NOTHING_MERGED = {"object.merge.bytes": 2**40}
"""So that every request to the store is due to a writer or a reader."""
GB = 1e9


def store_of(turn: Turn, put_ms: int | None) -> AbstractContextManager[Store]:
    return folder_store(turn.field.folder / "store") if put_ms is FOLDER else slow_store(put_ms)


@contextmanager
def node(turn: Turn, store: Store, partitions: int) -> Iterator[Broker]:
    """One node with an empty topic."""
    with turn.field.fresh(turn.side, "always", store.words({})) as broker:
        broker.start()
        with broker.client() as client:
            client.create_topic(TOPIC, partitions, anabranch_mode="object")
        yield broker


def milliseconds(answer: dict[str, Any]) -> Figures:
    return {
        name.removesuffix("_us") + "_ms": us / 1000 for name, us in answer.items() if name.endswith("_us")
    }


def amounts(answer: dict[str, Any], cpu: float, store: Counts) -> Figures:
    seconds, gigabytes = answer["seconds"], answer["bytes"] / GB
    return {
        "mb_per_s": gigabytes * 1000 / seconds,
        "cpu_s_per_gb": cpu / gigabytes,
        "generator_cores": answer["generator_cpu_seconds"] / seconds,
        "store_cores": store.cpu_seconds / seconds,
        "puts_per_gb": store.puts / gigabytes,
        "gets_per_gb": store.gets / gigabytes,
    }


@dataclass(frozen=True)
class ObjectProduce:
    """As much as one node takes from so many producers that gathering holds nobody up."""

    put_ms: int | None
    connections: int = 200
    in_flight: int = 5
    records: int = 16
    record_bytes: int = 1000
    partitions: int = 12
    requests: int = 32_000

    def run(self, turn: Turn) -> Figures:
        with store_of(turn, self.put_ms) as store, node(turn, store, self.partitions) as broker:
            warm = self._produce(broker, self.requests // 4)
            before = store.counts()
            with cpu_of(broker) as cpu:
                answer = self._produce(broker, self.requests)
            counts = store.counts().since(before)
            check_kept(broker, self.partitions, warm["records"] + answer["records"])
        return {**milliseconds(answer), **amounts(answer, cpu.seconds, counts)}

    def _produce(self, broker: Broker, requests: int) -> dict[str, Any]:
        return run_load(
            "produce",
            broker,
            acks=-1,
            connections=self.connections,
            in_flight=self.in_flight,
            records=self.records,
            record_bytes=self.record_bytes,
            partitions=self.partitions,
            requests=requests,
            seconds=SECONDS_MAX,
        )


@dataclass(frozen=True)
class ObjectLatency:
    """One record per tick on a node that has nothing else to do, while a consumer waits for it."""

    put_ms: int | None
    rate: int = 200
    record_bytes: int = 100
    seconds: float = 5.0
    warm_up_seconds: float = 1.0

    def run(self, turn: Turn) -> Figures:
        with store_of(turn, self.put_ms) as store, node(turn, store, 1) as broker:
            before = store.counts()
            with cpu_of(broker) as cpu:
                answer = self._generate(broker)
            counts = store.counts().since(before)
        seconds = self.seconds + self.warm_up_seconds
        return {
            **milliseconds(answer),
            "cpu_us_per_request": cpu.seconds / (self.rate * seconds) * 1e6,
            "puts_per_s": counts.puts / seconds,
            "gets_per_s": counts.gets / seconds,
        }

    def _generate(self, broker: Broker) -> dict[str, Any]:
        return run_load(
            "latency",
            broker,
            acks=-1,
            rate=self.rate,
            record_bytes=self.record_bytes,
            warmup=self.warm_up_seconds,
            seconds=self.seconds,
        )


@dataclass(frozen=True)
class ObjectBrokers:
    """What brokers write that put one small object at a time into a slow store: more only if there are more of them."""

    count: int
    put_ms: int = 50
    gather_bytes: int = 256 * 1024
    connections: int = 40
    """To each broker: with five in flight, they have several objects waiting."""
    in_flight: int = 5
    records: int = 16
    record_bytes: int = 1000

    def run(self, turn: Turn) -> Figures:
        settings = {"object.puts.max": 1, "object.gather.bytes": self.gather_bytes, **NOTHING_MERGED}
        folder = turn.field.folder / "object-brokers"
        turn.field.rest()
        with slow_store(self.put_ms) as store:
            cluster = OurCluster.of(folder, self.count, store.words(settings), "always")
            with running(cluster):
                with cluster.client() as client:
                    client.create_topic(TOPIC, self.count, anabranch_mode="object")
                self._produce(cluster, turn.seconds / 2)
                before, cpu_before = store.counts(), cluster.cpu_seconds()
                answer = self._produce(cluster, 2 * turn.seconds)
                cpu = cluster.cpu_seconds() - cpu_before
                counts = store.counts().since(before)
        return {**milliseconds(answer), **amounts(answer, cpu, counts)}

    def _produce(self, cluster: OurCluster, seconds: float) -> dict[str, Any]:
        return produce(
            cluster.ports,
            -1,
            connections=self.connections * self.count,
            in_flight=self.in_flight,
            records=self.records,
            record_bytes=self.record_bytes,
            seconds=seconds,
        )


@dataclass(frozen=True)
class ObjectRead:
    """Everything that one broker of three has written, read once by one consumer from another one, which has none of
    it."""

    put_ms: int = 50
    get_ms: int = 20
    partitions: int = 12
    connections: int = 200
    in_flight: int = 5
    records: int = 16
    record_bytes: int = 1000
    requests: int = 16_000

    def run(self, turn: Turn) -> Figures:
        folder = turn.field.folder / "object-read"
        turn.field.rest()
        with slow_store(self.put_ms, self.get_ms) as store:
            cluster = OurCluster.of(folder, 3, store.words(NOTHING_MERGED), "always")
            with running(cluster):
                return self._measure(cluster, store)

    def _measure(self, cluster: OurCluster, store: Store) -> Figures:
        with cluster.client() as client:
            client.create_topic(TOPIC, self.partitions, anabranch_mode="object")
        writer, reader = cluster.ports[0], cluster.ports[1]
        start = store.counts()
        written = self._write(writer)
        middle, cpu_before = store.counts(), cpu_seconds(cluster.pids[1])
        read = self._read(reader, written["records"])
        cpu = cpu_seconds(cluster.pids[1]) - cpu_before
        puts, gets = middle.since(start).puts, store.counts().since(middle)
        return {
            **amounts(read, cpu, gets),
            "puts_per_gb": puts / written["bytes"] * GB,
            "gets_per_object": gets.gets / puts,
        }

    def _write(self, port: int) -> dict[str, Any]:
        return produce(
            [port] * self.partitions,
            -1,
            connections=self.connections,
            in_flight=self.in_flight,
            records=self.records,
            record_bytes=self.record_bytes,
            requests=self.requests,
            seconds=SECONDS_MAX,
        )

    def _read(self, port: int, records: int) -> dict[str, Any]:
        words = [str(load_program()), "fetch", "--port", str(port), "--topic", TOPIC, "--once"]
        words += ["--partitions", str(self.partitions), "--seconds", str(SECONDS_MAX)]
        answer = run_json(words)
        if answer["errors"] or answer["records"] != records:
            raise RuntimeError(
                f"{answer['records']} of {records} records were read, with {answer['errors']} errors"
            )
        return answer
