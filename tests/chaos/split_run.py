"""Five brokers and real clients on a network that is split into two sides, healed, and split again.

    report = SplitRun(folder, java=[...], cycles=5, split_seconds=20).run()

Each broker has a network namespace of its own, and so has each of two places for clients: one goes with two of the
brokers, the other with the three others. On each side the same programs write and read a branch topic all the time, and
one writes to a ring topic whose three copies are never all on one side. When everything is healed and calm, a new
reader reads the branch topic from its beginning, and `branch_history` compares.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path
from typing import Any, Self

from anabranch.local_cluster.broker_process import BrokerProcess, wait_until_ready
from anabranch.local_cluster.layout import Layout, Place, prepare
from chaos.branch_history import Ack, Client, Seen, check
from chaos.history import counts, report
from chaos.network import Network
from clients.client_process import ClientProcess

BROKERS = 5
MINORITY_HOST, MAJORITY_HOST = BROKERS, BROKERS + 1
RING_REPLICAS = (2, 3, 4)
BRANCH_TOPIC, RING_TOPIC = "branchy", "ringy"
CLIENT = Path(__file__).parents[1] / "clients" / "split_client.py"
START_S_MAX = 60.0
FINISH_S_MAX = 300.0
SPLIT_LONGER_S_MAX = 30.0
SETTLE_S = 5.0
"""So long after a split nothing is expected of a client: brokers and clients have to notice."""


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class SideProcess(ClientProcess):
    """One of the programs of `split_client.py`, on a host."""

    def __init__(self, command: Sequence[str], name: str, log: Path) -> None:
        super().__init__(command, log)
        self.name = name

    def finish(self) -> Client:
        said = self.last_words(FINISH_S_MAX)
        acks, reads = starmap(Ack, said["acked"]), starmap(Seen, said["read"])
        return Client(self.name, said["sent"], list(acks), list(reads), said["errors"])


class SplitCluster:
    """The brokers, each on a host of its own."""

    def __init__(self, network: Network, folder: Path, settings: dict[str, object]) -> None:
        places = tuple(
            Place(
                number,
                f"{network.address(number)}:9092",
                f"{network.address(number)}:9093",
                None,
                folder / f"broker-{number}",
                folder / f"broker-{number}.log",
            )
            for number in range(BROKERS)
        )
        self.layout = Layout(folder, places)
        arguments = ["--log-level", "info", "--allow-unauthenticated"]
        for name, value in settings.items():
            arguments += ["--set", f"{name}={value}"]
        self._processes = [
            BrokerProcess(self.layout, place, arguments, network.enter(place.broker_id)) for place in places
        ]

    def __enter__(self) -> Self:
        prepare(self.layout)
        first, *others = self._processes
        for some in ([first], others):
            for process in some:
                process.start()
            wait_until_ready(some, START_S_MAX)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.ask_to_stop()
        for process in self._processes:
            process.finish(20)


@dataclass(slots=True)
class SplitRun:
    folder: Path
    java: Sequence[str] = ()
    """How to run a class of tests/clients/java; empty: without Kafka's own clients."""
    cycles: int = 5
    split_seconds: float = 20.0
    calm_seconds: float = 12.0
    partitions: int = 4
    seed: int = 0
    settings: dict[str, object] = field(default_factory=dict)
    say: Callable[[str], None] = lambda line: None

    def run(self) -> dict[str, Any]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (
            Network(BROKERS + 2) as network,
            SplitCluster(network, self.folder / "cluster", self.settings) as cluster,
            ExitStack() as stack,
        ):
            bootstrap = cluster.layout.bootstrap
            self._on(network, MAJORITY_HOST, "make", bootstrap, BRANCH_TOPIC, '{"anabranch.mode": "branch"}')
            ring = ",".join(map(str, RING_REPLICAS))
            self._on(network, MAJORITY_HOST, "make", bootstrap, RING_TOPIC, "{}", replicas=ring)
            clients = [
                stack.enter_context(SideProcess(command, name, self.folder / f"{name}.log"))
                for name, command in self._commands(network, bootstrap)
            ]
            self._wait_for_first(clients)
            cycles = self._split_and_heal(network, clients)
            for client in clients:
                client.ask_to_end()
            outcomes = [client.finish() for client in clients]
            final = self._on(network, MAJORITY_HOST, "read", bootstrap, BRANCH_TOPIC, "-")
        return self._report(cycles, outcomes, final)

    # --- clients -----------------------------------------------------------------------------------------------

    def _on(
        self,
        network: Network,
        host: int,
        kind: str,
        bootstrap: str,
        topic: str,
        what: str,
        replicas: str = "",
    ) -> dict[str, Any]:
        command = [*network.enter(host), sys.executable, str(CLIENT), kind, bootstrap, topic, what]
        command += [str(self.partitions), *([replicas] if replicas else [])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FINISH_S_MAX)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout) if done.stdout else {}

    def _commands(self, network: Network, bootstrap: str) -> Iterable[tuple[str, list[str]]]:
        """Of the clients, by name."""
        for side, host in (("minority", MINORITY_HOST), ("majority", MAJORITY_HOST)):
            for kind, topic in self._programs():
                name = f"{side}.{kind}.{topic}"
                begin = [*self.java, "SplitClient"] if kind == "java" else [sys.executable, str(CLIENT), kind]
                yield name, [*network.enter(host), *begin, bootstrap, topic, name, str(self.partitions)]

    def _programs(self) -> Iterable[tuple[str, str]]:
        yield "confluent", BRANCH_TOPIC
        yield "kafka_python", BRANCH_TOPIC
        if self.java:
            yield "java", BRANCH_TOPIC
        yield "confluent", RING_TOPIC

    def _wait_for_first(self, clients: list[SideProcess]) -> None:
        deadline = time.monotonic() + START_S_MAX
        while not all(client.acked and client.read for client in clients):
            silent = [client.name for client in clients if not (client.acked and client.read)]
            assert time.monotonic() < deadline, f"nothing was acknowledged to or read by {silent}"
            time.sleep(0.2)

    # --- splits ------------------------------------------------------------------------------------------------

    def _split_and_heal(self, network: Network, clients: list[SideProcess]) -> list[dict[str, Any]]:
        rng = random.Random(self.seed)
        cycles = []
        for number in range(self.cycles):
            lone = rng.sample(range(2), 1) + rng.sample(RING_REPLICAS, 1) if rng.random() < 0.7 else [0, 1]
            others = [broker for broker in range(BROKERS) if broker not in lone]
            network.split([[*lone, MINORITY_HOST], [*others, MAJORITY_HOST]])
            begun_ms = now_ms()
            self.say(f"cycle {number + 1}: brokers {lone} are cut off from {others}")
            self._stay_split(clients)
            healed_ms = now_ms()
            network.heal()
            self.say(f"cycle {number + 1}: healed")
            time.sleep(self.calm_seconds)
            cycles.append({"minority": lone, "begun_ms": begun_ms, "healed_ms": healed_ms})
        return cycles

    def _stay_split(self, clients: list[SideProcess]) -> None:
        """Longer on a busy machine: until something was acknowledged to every client that is to go on."""
        time.sleep(SETTLE_S)
        branchy = [client for client in clients if client.name.endswith(BRANCH_TOPIC)]
        before = [client.acked for client in branchy]
        time.sleep(max(0.0, self.split_seconds - SETTLE_S))
        deadline = time.monotonic() + SPLIT_LONGER_S_MAX
        while any(client.acked == count for client, count in zip(branchy, before, strict=True)):
            if time.monotonic() > deadline:
                return  # The report says to whom.
            time.sleep(0.2)

    # --- what came of it -----------------------------------------------------------------------------------------

    def _report(
        self, cycles: list[dict[str, Any]], clients: list[Client], final: dict[str, Any]
    ) -> dict[str, Any]:
        branchy = [client for client in clients if client.name.endswith(BRANCH_TOPIC)]
        violations = check(branchy, [Seen(*each) for each in final["read"]])
        rows = []
        for cycle in cycles:
            begin_ms = cycle["begun_ms"] + int(SETTLE_S * 1000)
            end_ms = cycle["healed_ms"]
            acked = {client.name: client.acked_within(begin_ms, end_ms) for client in clients}
            calm_ms = end_ms + int(self.calm_seconds * 1000)
            rows.append(
                {
                    "minority": cycle["minority"],
                    "acked_while_split": acked,
                    "split_pause_ms": {
                        client.name: client.longest_pause_ms(cycle["begun_ms"], end_ms) for client in clients
                    },
                    "heal_pause_ms": {
                        client.name: client.longest_pause_ms(end_ms, calm_ms) for client in clients
                    },
                }
            )
        return {
            "seed": self.seed,
            "cycles": rows,
            "split_seconds": self.split_seconds,
            "acknowledged": {client.name: len(client.acks) for client in clients},
            "read": {client.name: len(client.reads) for client in clients},
            "errors": {client.name: client.errors[-3:] for client in clients if client.errors},
            "in_the_end": len(final["read"]),
            "is_read_to_its_end": final["is_whole"],
            "violations": counts(violations),
            "examples": report(violations) if violations else "",
        }


def is_sound(result: dict[str, Any]) -> bool:
    """Nothing was violated, both sides of every split went on, and the ring's minority did not."""
    return not result["violations"] and result["is_read_to_its_end"] and not unexpected(result)


def unexpected(result: dict[str, Any]) -> list[str]:
    """Where a side went on that should not have, or did not that should."""
    found = []
    for number, cycle in enumerate(result["cycles"], 1):
        for name, acked in cycle["acked_while_split"].items():
            should = not (name.startswith("minority") and name.endswith(RING_TOPIC))
            if bool(acked) != should:
                found.append(f"cycle {number}: {acked} records were acknowledged to {name}")
    return found
