"""Ten members that come and go: no partition has two owners in one generation, and everything is processed."""

import json
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import confluent_kafka

from support.node_process import NodeProcess
from support.waiting import wait_until

TOPIC, PARTITIONS, RECORDS = "churned", 12, 3000
MEMBERS, CHANGES = 10, 12
SETTINGS = {"num.partitions": str(PARTITIONS), "group.min.session.timeout.ms": "500"}


class Members:
    """The processes, and what they have said so far."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        self._outputs: list[Path] = []
        self._read: dict[Path, int] = defaultdict(int)
        self.owners: dict[int, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.processed: set[str] = set()

    def join(self) -> None:
        output = self._folder / f"member-{len(self._outputs)}.out"
        self._outputs.append(output)
        script = Path(__file__).with_name("group_member.py")
        with output.open("wb") as stream, output.with_suffix(".err").open("wb") as errors:
            self._running.append(
                subprocess.Popen(
                    [sys.executable, str(script), self._bootstrap, TOPIC, "churn"],
                    stdout=stream,
                    stderr=errors,
                )
            )

    def end_one(self, rng: random.Random) -> None:
        process = self._running.pop(rng.randrange(len(self._running)))
        process.kill() if rng.random() < 0.5 else process.terminate()
        process.wait(20)

    def end_all(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait(20)

    def listen(self) -> set[str]:
        """Take in the whole lines that have appeared since the last time; all values processed so far."""
        for output in self._outputs:
            data = output.read_bytes()
            whole = data.rfind(b"\n") + 1
            for line in data[self._read[output] : whole].splitlines():
                self._note(json.loads(line))
            self._read[output] = whole
        return self.processed

    def generation(self) -> int:
        """The newest one that anybody has told of."""
        self.listen()
        return max(self.owners, default=0)

    def _note(self, said: dict[str, object]) -> None:
        if "values" in said:
            self.processed.update(said["values"])
            return
        for partition in said["partitions"]:
            self.owners[said["generation"]][partition].add(said["member"])


def _fill(bootstrap: str) -> set[str]:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"%d" % number, key=b"%d" % number)
    assert producer.flush(20) == 0
    return {str(number) for number in range(RECORDS)}


def _churn(members: Members, rng: random.Random) -> None:
    for _ in range(MEMBERS):
        members.join()
    for _ in range(CHANGES):
        before = members.generation()
        wait_until(lambda before=before: members.generation() > before, "a new generation", 30)
        members.end_one(rng)
        members.join()


def test_ten_members_with_churn_share_every_partition_and_process_everything(tmp_path: Path) -> None:
    rng = random.Random(11)
    with NodeProcess(tmp_path, SETTINGS) as node:
        written = _fill(node.bootstrap)
        members = Members(node.bootstrap, tmp_path)
        try:
            _churn(members, rng)
            wait_until(lambda: members.listen() == written, "every record to be processed", 60)
        finally:
            members.end_all()
        members.listen()
    assert len(members.owners) > CHANGES // 2
    shared = [
        (generation, partition, owners)
        for generation, partitions in members.owners.items()
        for partition, owners in partitions.items()
        if len(owners) > 1
    ]
    assert not shared
