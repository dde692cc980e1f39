"""The worst requests of every API against a node, and what they cost everybody else.

    python tools/hostile_requests.py [--apis FETCH,PRODUCE] [--document docs/reliability.md]

For each request: the longest wait of a client on another connection (the stall), and how much memory the node took and
kept. Prints a table with the worst of each API, and exits with 1 if a bar is missed. The bars hold on a quiet machine
with two cores; `tests/unit/broker/test_hostile_requests.py` checks the same requests by counted work instead of time.
"""

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from anabranch.wire.api_keys import ApiKey
from hostile.cost import Cost, Probe, cost_of
from hostile.kafka_requests import worst_requests
from hostile.special_requests import prepare, special_requests
from support.raw_client import RawClient
from support.wire_node import WireNode

STALL_MS_MAX = 250.0
KEPT_MB_MAX = 64.0
PEAK_MB_MAX = 256.0 + 128.0
"""`request.memory.bytes.max` and `unpack.memory.bytes.max`."""
PARTITIONS = 40


def main() -> int:
    arguments = parse()
    costs = measure([ApiKey[name] for name in arguments.apis.split(",")] if arguments.apis else None)
    worst = [worst_of(name, each) for name, each in costs.items()]
    say(f"\n{table(worst)}")
    missed = [cost for cost in worst if is_missed(cost)]
    for cost in missed:
        say(f"missed: {cost}")
    return 1 if missed else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--apis", default="", help="names of API keys; default: all")
    return parser.parse_args()


def measure(apis: list[ApiKey] | None) -> dict[str, list[Cost]]:
    costs: dict[str, list[Cost]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="anabranch-hostile-") as folder, WireNode(Path(folder)) as node:
        with RawClient(node.bootstrap) as client:
            world = prepare(client, PARTITIONS)
        with Probe(node.bootstrap) as probe:
            for request in worst_requests(world, apis):
                cost = cost_of(node, probe, request.name, [request.frame])
                say(line(cost))
                costs[request.api.name].append(cost)
            for sequence in special_requests(world):
                if apis is None or any(sequence.name.startswith(f"{api.name} ") for api in apis):
                    cost = cost_of(node, probe, sequence.name, sequence.frames)
                    say(line(cost))
                    costs[sequence.name.split()[0]].append(cost)
        defects = node.defects_since(0)
    for defect in defects:
        say(f"defect: {defect[:2000]}")
    assert not defects, "the node's log tells of defects"
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


def line(cost: Cost) -> str:
    return (
        f"{cost.stall_ms:7.0f} ms {cost.peak_mb:6.0f} MB {cost.kept_mb:6.0f} MB {cost.seconds:6.1f} s "
        f"{cost.answer:9} {cost.name}"
    )


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
