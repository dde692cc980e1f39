"""The worst requests of every API against a node, and what they cost everybody else.

    python tools/hostile_requests.py [--brokers 3] [--apis FETCH,PRODUCE]

For each request: the longest wait of a client on another connection (the stall), and how much memory the node took and
kept. With several brokers one of them gets the requests while producers and consumers work on all: then also whether a
broker was fenced, and whether any of these clients was told an error. Prints a table with the worst of each API, and
exits with 1 if a bar is missed. The bars hold on a quiet machine with two cores;
`tests/unit/broker/test_hostile_requests.py` checks the same requests by counted work instead of time.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anabranch.testing.cluster_processes import ClusterProcesses
from anabranch.wire.api_keys import ApiKey
from chaos.cluster_load import ClusterLoad
from hostile.cost import NO_ANSWER, Cost, Target, cost_of
from hostile.kafka_requests import worst_requests
from hostile.probes import Probes
from hostile.special_requests import prepare, special_requests
from support.raw_client import RawClient
from support.wire_node import WireNode

STALL_MS_MAX = 250.0
KEPT_MB_MAX = 64.0
PEAK_MB_MAX = 256.0 + 128.0
"""`request.memory.bytes.max` and `unpack.memory.bytes.max`."""
PARTITIONS = 40
LOOK_SECONDS = 0.2


def main() -> int:
    arguments = parse()
    apis = [ApiKey[name] for name in arguments.apis.split(",")] if arguments.apis else None
    with one_node() if arguments.brokers == 1 else a_cluster(arguments.brokers) as (target, faults):
        costs = measure(target, apis)
    worst = [worst_of(name, each) for name, each in costs.items()]
    say(f"\n{table(worst)}")
    faults += [f"{cost.name}: a bar is missed" for cost in worst if is_missed(cost)]
    faults += [
        f"{cost.name}: no answer" for each in costs.values() for cost in each if cost.answer == NO_ANSWER
    ]
    for fault in faults:
        say(fault[:2000])
    return 1 if faults else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", type=int, default=1, help="how many; 1: a node without peers")
    parser.add_argument("--apis", default="", help="names of API keys; default: all")
    return parser.parse_args()


@contextmanager
def one_node() -> Iterator[tuple[Target, list[str]]]:
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="anabranch-hostile-") as folder, WireNode(Path(folder)) as node:
        yield Target(node.bootstrap, node.pid), faults
        faults += [f"defect: {line}" for line in node.defects_since(0)]


@contextmanager
def a_cluster(brokers: int) -> Iterator[tuple[Target, list[str]]]:
    """One broker of a cluster whose others are busy with clients who do nothing wrong."""
    faults: list[str] = []
    with ClusterProcesses(brokers=brokers) as cluster:
        victim, *others = cluster.brokers
        with RawClient(others[0].kafka) as client:
            client.create_topic("load", partitions=6, copies=min(3, brokers))
        load = ClusterLoad(cluster.bootstrap, "load", 6)
        load.start()
        with watched(others[0].kafka, brokers, faults):
            yield Target(victim.kafka, victim.pid, victim.id), faults
        load.stop()
        faults += [f"a client was told: {name} ({count} times)" for name, count in load.errors().items()]
        faults += [
            f"defect: {cluster.log_of(each)}" for each in cluster.ids if "defect" in cluster.log_of(each)
        ]


@contextmanager
def watched(bootstrap: str, brokers: int, faults: list[str]) -> Iterator[None]:
    """Ask another broker all the while who is there."""
    is_over = threading.Event()

    def look() -> None:
        with RawClient(bootstrap) as client:
            while not is_over.is_set():
                there = client.ask(ApiKey.METADATA, 12, {"topics": []})["brokers"]
                if len(there) < brokers:
                    faults.append(f"only {len(there)} brokers at {time.strftime('%X')}: one was fenced")
                time.sleep(LOOK_SECONDS)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def measure(target: Target, apis: list[ApiKey] | None) -> dict[str, list[Cost]]:
    costs: dict[str, list[Cost]] = defaultdict(list)
    with RawClient(target.bootstrap) as client:
        world = prepare(client, PARTITIONS, target.broker_id)
    with Probes(kafka=target.bootstrap) as probes:
        for request in worst_requests(world, apis):
            costs[request.api.name].append(told(cost_of(target, probes, request.name, [request.frame])))
        for sequence in special_requests(world):
            name = sequence.name.split()[0]
            if apis is None or ApiKey[name] in apis:
                costs[name].append(told(cost_of(target, probes, sequence.name, sequence.frames)))
    return costs


def worst_of(name: str, costs: list[Cost]) -> Cost:
    """The worst of each kind, which may be of different requests."""
    slowest = max(costs, key=lambda cost: cost.stall_ms)
    return Cost(
        name,
        f"{len(costs)} requests; the longest stall by {slowest.name}",
        max(cost.seconds for cost in costs),
        slowest.stall_ms,
        max(cost.peak_mb for cost in costs),
        max(cost.kept_mb for cost in costs),
    )


def is_missed(cost: Cost) -> bool:
    return cost.stall_ms > STALL_MS_MAX or cost.kept_mb > KEPT_MB_MAX or cost.peak_mb > PEAK_MB_MAX


def table(costs: list[Cost]) -> str:
    rows = ["| API | stall | peak | kept | |", "| --- | --- | --- | --- | --- |"]
    for cost in sorted(costs, key=lambda cost: -cost.stall_ms):
        figures = f"{cost.stall_ms:.0f} ms | {cost.peak_mb:.0f} MB | {cost.kept_mb:.0f} MB"
        rows.append(f"| {cost.name} | {figures} | {cost.answer} |")
    return "\n".join(rows)


def told(cost: Cost) -> Cost:
    say(
        f"{cost.stall_ms:7.0f} ms {cost.peak_mb:6.0f} MB {cost.kept_mb:6.0f} MB {cost.seconds:6.1f} s "
        f"{cost.answer:9} {cost.name}"
    )
    return cost


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
