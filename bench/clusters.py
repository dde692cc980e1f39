"""Clusters as processes: ours as `anabranch cluster up` or `anabranch up --workers`, and three Apache Kafka brokers,
each of them a controller too. Both keep all their data below one folder, so on one disk.
"""

import json
import select
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anabranch.wire.api_keys import ApiKey
from bench.brokers import (
    ANSWER_S_MAX,
    CLUSTER_ID,
    FORMAT_S_MAX,
    JVM_FLAGS,
    PAUSE_S,
    START_S_MAX,
    STOP_S_MAX,
    anabranch_program,
    free_port,
    with_its_parent,
)
from bench.measure import cpu_seconds
from clients.registries import kafka_jars, program
from support.raw_client import RawClient

REPLICAS = 3


class Cluster(ABC):
    """Broker processes that are one cluster, on a folder of their own."""

    name: str
    ports: list[int]
    """Where clients find its brokers."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    @property
    @abstractmethod
    def pids(self) -> Sequence[int]: ...

    def remove(self) -> None:
        """Stop it and delete everything it kept."""
        try:
            self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def cpu_seconds(self) -> float:
        """Of all its brokers together, so far."""
        return sum(map(cpu_seconds, self.pids))

    def client(self) -> RawClient:
        client = RawClient(f"127.0.0.1:{self.ports[0]}")
        client.sock.settimeout(ANSWER_S_MAX)
        return client

    # --- its topics

    def create(self, name: str, assignment: Sequence[Sequence[int]], **configs: str) -> list[int]:
        """A topic whose partitions are kept by these brokers; the ports of those that lead them. All keep up."""
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        assigned = [
            {"partition_index": index, "broker_ids": list(ids)} for index, ids in enumerate(assignment)
        ]
        topic = {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": assigned,
            "configs": rows,
        }
        with self.client() as client:
            (row,) = client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [topic]})["topics"]
            if row["error_code"]:
                raise RuntimeError(f"{self.name} did not make {name}: {row}")
            return self._wait_for_leaders(client, name, assignment)

    def _wait_for_leaders(
        self, client: RawClient, name: str, assignment: Sequence[Sequence[int]]
    ) -> list[int]:
        deadline = time.monotonic() + START_S_MAX
        while True:
            answer = client.ask(ApiKey.METADATA, 9, {"topics": [{"name": name}]})
            ports = {row["node_id"]: row["port"] for row in answer["brokers"]}
            led = {row["partition_index"]: row for row in answer["topics"][0]["partitions"]}
            if len(led) == len(assignment) and all(
                led[index]["leader_id"] == ids[0] and len(led[index]["isr_nodes"]) == len(ids)
                for index, ids in enumerate(assignment)
            ):
                return [ports[led[index]["leader_id"]] for index in range(len(assignment))]
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: {name} is not led as assigned: {answer['topics']}")
            time.sleep(PAUSE_S * 10)

    @property
    def broker_ids(self) -> list[int]:
        with self.client() as client:
            brokers = client.ask(ApiKey.METADATA, 9, {"topics": []})["brokers"]
        return sorted(row["node_id"] for row in brokers)


class OurCluster(Cluster):
    """What one command starts, and one line tells."""

    name = "anabranch"

    def __init__(self, folder: Path, words: Sequence[str], flush: str = "os") -> None:
        super().__init__(folder)
        self._words = words
        self._flush = flush
        self._process: subprocess.Popen[str] | None = None
        self._facts: Mapping[str, Any] = {}

    @classmethod
    def ring(cls, folder: Path, flush: str) -> "OurCluster":
        return cls.of(folder, REPLICAS, flush=flush)

    @classmethod
    def of(cls, folder: Path, brokers: int, words: Sequence[str] = (), flush: str = "os") -> "OurCluster":
        return cls(folder, ["cluster", "up", "--brokers", str(brokers), *words], flush)

    @classmethod
    def workers(cls, folder: Path, count: int) -> "OurCluster":
        return cls(folder, ["up", "--listen", "127.0.0.1:0", "--workers", str(count)])

    def start(self) -> None:
        words = [*self._words, "--data-dir", str(self.folder / "data"), "--flush", self._flush]
        log_path = self.folder / "cluster.log"
        with log_path.open("a") as log:
            self._process = subprocess.Popen(
                [*with_its_parent(), anabranch_program(), *words, "--format", "json"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_S_MAX)
        line = self._process.stdout.readline() if readable else ""
        if not line:
            raise RuntimeError(f"the cluster did not come up: {log_path.read_text()[-2000:]}")
        self._facts = json.loads(line)
        self.ports = [int(address.rpartition(":")[2]) for address in self._facts["bootstrap"].split(",")]

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with process:
                process.terminate()
                process.wait(STOP_S_MAX)

    @property
    def pids(self) -> Sequence[int]:
        return [broker["pid"] for broker in self._facts["brokers"]]


KAFKA_PROPERTIES = """\
process.roles=broker,controller
node.id={id}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
"""


class KafkaCluster(Cluster):
    name = "kafka"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._java = program("java", "default-jre-headless")
        self._jars = kafka_jars("kafka_2.13")
        self.ports = [free_port() for _ in range(REPLICAS)]
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        properties = self._prepare()
        with (self.folder / "kafka.log").open("ab") as log:
            for each in properties:
                words = [self._java, *JVM_FLAGS, "-cp", self._jars, "kafka.Kafka", str(each)]
                process = subprocess.Popen([*with_its_parent(), *words], stdout=log, stderr=log)
                self._processes.append(process)
        deadline = time.monotonic() + START_S_MAX
        while not self._is_whole():
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"Kafka did not come up: {(self.folder / 'kafka.log').read_text()[-2000:]}"
                )
            time.sleep(PAUSE_S * 10)

    def _prepare(self) -> list[Path]:
        controllers = [free_port() for _ in self.ports]
        voters = ",".join(f"{index}@127.0.0.1:{port}" for index, port in enumerate(controllers, 1))
        paths = []
        for index, (port, controller) in enumerate(zip(self.ports, controllers, strict=True), 1):
            path = self.folder / f"server-{index}.properties"
            data = self.folder / f"data-{index}"
            path.write_text(
                KAFKA_PROPERTIES.format(
                    id=index, voters=voters, port=port, controller_port=controller, data=data
                )
            )
            form = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(path)]
            flags = ["-Xmx256m", "-XX:TieredStopAtLevel=1"]
            done = subprocess.run(
                [self._java, *flags, "-cp", self._jars, *form],
                capture_output=True,
                text=True,
                timeout=FORMAT_S_MAX,
            )
            if done.returncode:
                raise RuntimeError(f"Kafka does not format its folder: {(done.stderr + done.stdout)[-1000:]}")
            paths.append(path)
        return paths

    def _is_whole(self) -> bool:
        try:
            return len(self.broker_ids) == REPLICAS
        except OSError:
            return False

    def stop(self) -> None:
        processes, self._processes = self._processes, []
        for process in processes:
            process.kill()  # Its folder goes too, and an orderly end takes half a minute.
        for process in processes:
            process.wait(STOP_S_MAX)

    @property
    def pids(self) -> Sequence[int]:
        return [process.pid for process in self._processes]


@contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """Up for the time of the block, and gone afterwards."""
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()
