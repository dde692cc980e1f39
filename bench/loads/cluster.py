"""Loads on several brokers: a ring of three next to three Kafka brokers, and one broker process per core.

A cluster lives for one round: never are both up, since six processes on a few cores would measure the machine.
"""

from dataclasses import dataclass
from typing import Any

from bench.brokers import Ours
from bench.clusters import REPLICAS, Cluster, KafkaCluster, OurCluster, running
from bench.field import OURS
from bench.loads import Cpu, Figures, Turn
from bench.loads.raw import SECONDS_MAX, TOPIC, throughput_figures
from bench.programs import load_program, run_json

WARM_UP_REQUESTS = 192_000
WARM_UP_S_MAX = 120.0
"""Of each new cluster: a JVM compiles what it has run often, and three of them on two cores took 90 s of this load
until their cost stopped falling (from 170 to 38 CPU s/GB). A broker that syncs every message gets the time limit.
"""
IN_SYNC = "2"


def warm_up(ports: list[int], acks: int, **options: float) -> None:
    """A cluster that has just started may refuse or be late with a few; they are not what is measured."""
    generate(ports, acks, **options)


def produce(ports: list[int], acks: int, **options: float) -> dict[str, Any]:
    """An error of a broker raises."""
    answer = generate(ports, acks, **options)
    if answer["errors"]:
        raise RuntimeError(f"{answer['errors']} of {answer['requests']} were answered with an error")
    return answer


def generate(ports: list[int], acks: int, **options: float) -> dict[str, Any]:
    """To partitions that are led by the brokers at these ports."""
    words = [str(load_program()), "produce", "--topic", TOPIC, "--partitions", str(len(ports))]
    words += ["--ports", ",".join(map(str, ports)), "--acks", str(acks)]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return run_json(words)


def measured(cluster: Cluster, ports: list[int], acks: int, **options: float) -> Figures:
    cpu = Cpu()
    before = cluster.cpu_seconds()
    answer = produce(ports, acks, **options)
    cpu.seconds = cluster.cpu_seconds() - before
    generator_cores = answer["generator_cpu_seconds"] / answer["seconds"]
    return {**throughput_figures(answer, cpu), "generator_cores": generator_cores}


@dataclass(frozen=True)
class Ring:
    """acks=all to three partitions on three brokers, each of which leads one; two copies make a record safe."""

    flush: str = "os"
    connections: int = 6
    in_flight: int = 5
    records: int = 16
    record_bytes: int = 1000
    requests: int = 24_000

    def run(self, turn: Turn) -> Figures:
        turn.field.rest()
        folder = turn.field.folder / f"{turn.side}-ring"
        ours = turn.side == OURS
        cluster = OurCluster.ring(folder, self.flush) if ours else KafkaCluster(folder)
        configs = {"min_insync_replicas": IN_SYNC}
        if not ours and self.flush == "always":
            configs["flush_messages"] = "1"
        load = {
            "connections": self.connections,
            "in_flight": self.in_flight,
            "records": self.records,
            "record_bytes": self.record_bytes,
        }
        with running(cluster):
            ids = cluster.broker_ids
            ports = cluster.create(TOPIC, [ids[i:] + ids[:i] for i in range(REPLICAS)], **configs)
            warm_up(ports, -1, requests=WARM_UP_REQUESTS, seconds=WARM_UP_S_MAX, **load)
            return measured(cluster, ports, -1, requests=self.requests, seconds=SECONDS_MAX, **load)


@dataclass(frozen=True)
class Workers:
    """Small requests of many connections to partitions of one copy, over the broker processes of one machine."""

    count: int
    connections: int = 100
    partitions: int = 8
    acks: int = 1

    def run(self, turn: Turn) -> Figures:
        turn.field.rest()
        folder = turn.field.folder / f"{turn.side}-workers"
        if self.count > 1:
            with running(OurCluster.workers(folder, self.count)) as cluster:
                return self._measure(cluster, turn.seconds)
        with turn.field.fresh(turn.side) as broker:
            broker.start()
            assert isinstance(broker, Ours)
            return self._measure(OneNode(folder, broker), turn.seconds)

    def _measure(self, cluster: Cluster, seconds: float) -> Figures:
        ids = cluster.broker_ids
        ports = cluster.create(TOPIC, [[ids[index % len(ids)]] for index in range(self.partitions)])
        warm_up(ports, self.acks, connections=self.connections, seconds=seconds)
        return measured(cluster, ports, self.acks, connections=self.connections, seconds=2 * seconds)


class OneNode(Cluster):
    """A single broker, as a cluster of one."""

    name = "anabranch"

    def __init__(self, folder: Any, broker: Ours) -> None:
        super().__init__(folder)
        self._broker = broker
        self.ports = [broker.port]

    def start(self) -> None:
        """It runs."""

    def stop(self) -> None:
        """Whoever started it does."""

    @property
    def pids(self) -> list[int]:
        return [self._broker.pid]
