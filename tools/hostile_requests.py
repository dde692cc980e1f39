"""The worst requests of every Kafka API and every HTTP route against a node, and what they cost everybody else.

    python tools/hostile_requests.py [--brokers 3] [--only FETCH,PRODUCE,WS] [--report FILE]

For each request: the longest wait of a client on another connection (the stall), and how much memory the node took
and kept. With several brokers one of them gets the requests while producers and consumers work on all: then also
whether a broker was fenced, and whether any of these clients was told an error. Prints a table with the worst of each
API and route, and exits with 1 if a bar is missed. The bars hold on a quiet machine with two cores;
`tests/unit/broker/requests/test_hostile_requests.py` and `tests/gateway/test_gateway_work.py` check the same requests
by counted work instead of time.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from anabranch.testing.cluster_processes import ClusterProcesses
from anabranch.wire.api_keys import ApiKey
from chaos.cluster_load import ClusterLoad
from hostile import http_requests
from hostile.cost import NO_ANSWER, Cost, Target, cost_of, exchange
from hostile.floods import WAITING_NAME, floods, pour, pour_waiting
from hostile.kafka_requests import worst_requests
from hostile.probes import Probes
from hostile.special_requests import prepare, special_requests
from support.node_process import SETTINGS
from support.raw_client import RawClient
from support.wire_node import WireNode

PARTITIONS = 40
LOOK_SECONDS = 0.2
LINGER_MS, NICENESS = 100, 10
"""librdkafka spins while five batches of a partition are under way and more are due. Once the brokers are slow for a
moment, the clients of the load would take the two cores from them, so that they stay slow; they give way instead."""


def main() -> int:
    arguments = parse()
    with one_node() if arguments.brokers == 1 else a_cluster(arguments.brokers) as (target, faults):
        costs = measure(target, [word for word in arguments.only.split(",") if word])
    worst = [worst_of(name, each) for name, each in costs.items()]
    every = [cost for each in costs.values() for cost in each]
    text = (
        f"{table(worst)}\n\n{len(every)} requests, {sum(not cost.is_within for cost in every)} above a bar."
    )
    say(f"\n{text}")
    faults += [f"{cost.name}: above a bar" for cost in every if not cost.is_within]
    faults += [f"{cost.name}: no answer" for cost in every if cost.answer == NO_ANSWER]
    for fault in faults:
        say(fault[:2000])
    if arguments.report:
        arguments.report.write_text(f"{text}\n")
    return 1 if faults else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--brokers", type=int, default=1, help="how many; 1: a node without peers")
    parser.add_argument("--only", default="", help="names of API keys, or parts of HTTP routes; default: all")
    parser.add_argument("--report", type=Path, help="where the table goes as Markdown")
    return parser.parse_args()


@contextmanager
def one_node() -> Iterator[tuple[Target, list[str]]]:
    faults: list[str] = []
    settings = {**SETTINGS, "http": "127.0.0.1:0"}
    with (
        tempfile.TemporaryDirectory(prefix="anabranch-hostile-") as folder,
        WireNode(Path(folder), settings) as node,
    ):
        yield Target(node.bootstrap, str(node.ready["http"]), node.pid), faults
        faults += [f"defect: {line}" for line in node.defects_since(0)]


@contextmanager
def a_cluster(brokers: int) -> Iterator[tuple[Target, list[str]]]:
    """One broker of a cluster whose others are busy with clients who do nothing wrong."""
    faults: list[str] = []
    with ClusterProcesses(brokers=brokers) as cluster:
        victim, *others = cluster.brokers
        with RawClient(others[0].kafka) as client:
            client.create_topic("load", partitions=6, copies=min(3, brokers))
        load = ClusterLoad(cluster.bootstrap, "load", 6, linger_ms=LINGER_MS, niceness=NICENESS)
        load.start()
        with watched(others[0].kafka, brokers, faults):
            yield Target(victim.kafka, str(victim.http), victim.pid, victim.id), faults
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


def measure(target: Target, only: list[str]) -> dict[str, list[Cost]]:
    """The costs of all requests by API or route."""
    apis = [ApiKey[word] for word in only if word in ApiKey.__members__]
    routes = [word for word in only if word not in ApiKey.__members__]
    costs: dict[str, list[Cost]] = defaultdict(list)
    with Probes(kafka=target.bootstrap, http=target.http, http_anew=target.http) as probes:
        if apis or not only:
            for name, cost in kafka_costs(target, probes, apis or None):
                costs[name].append(told(cost))
        if routes or not only:
            for name, cost in http_requests.costs(target, probes, routes):
                costs[f"`{name}`"].append(told(cost))
    return costs


def kafka_costs(target: Target, probes: Probes, apis: list[ApiKey] | None) -> Iterator[tuple[str, Cost]]:
    with RawClient(target.bootstrap) as client:
        world = prepare(client, PARTITIONS, target.broker_id)
    probes.wait_until_calm()
    for request in worst_requests(world, apis):
        send = partial(exchange, target.bootstrap, [request.frame])
        yield request.api.name, cost_of(target, probes, request.name, send)
    for sequence in special_requests(world):
        name = sequence.name.split()[0]
        if apis is None or ApiKey[name] in apis:
            send = partial(exchange, target.bootstrap, sequence.frames)
            yield name, cost_of(target, probes, sequence.name, send)
    for flood in floods(target.broker_id):
        if apis is None or flood.api in apis:
            yield "floods", cost_of(target, probes, flood.name, partial(pour, target.bootstrap, flood))
    if apis is None or ApiKey.FETCH in apis:
        yield "floods", cost_of(target, probes, WAITING_NAME, partial(pour_waiting, target.bootstrap))


def worst_of(name: str, costs: list[Cost]) -> Cost:
    """The worst of each kind, which may be of different requests."""
    slowest = max(costs, key=lambda cost: cost.stall_ms)
    kind = slowest.name.partition(", ")[2]
    return Cost(
        name,
        f"{len(costs)} | {kind}",
        max(cost.seconds for cost in costs),
        slowest.stall_ms,
        max(cost.peak_mb for cost in costs),
        max(cost.kept_mb for cost in costs),
    )


def table(costs: list[Cost]) -> str:
    rows = [
        "| API or route | Stall | Peak | Kept | Requests | The longest stall by |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
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
