"""Brokers as processes: ours as `anabranch up`, and one Apache Kafka with broker and controller in one process.

Both keep their data below one folder, so on one filesystem. A broker that is not being measured can be paused
(SIGSTOP) and goes on as if nothing had happened; for that, Kafka's controller is told not to fence a broker that was
silent for long. Kafka runs with the flags of its own start script and its defaults, except where one node needs
another value, and except that deleted topics leave the disk at once, as ours do.
"""

import json
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from anabranch.wire.api_keys import ApiKey
from clients.registries import KAFKA_VERSION, kafka_jars, program
from support.raw_client import RawClient

START_S_MAX = 120.0
STOP_S_MAX = 60.0
ANSWER_S_MAX = 180.0
PAUSE_S = 0.005
FORMAT_S_MAX = 120.0
PARTITIONS_PER_REQUEST_MAX = 1000


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def with_its_parent() -> Sequence[str]:
    """Words in front of a command whose process must not outlive this one, not even if this one is killed.

    `anabranch up --exit-with-parent` would not do: Kafka has no such option, a broker that is paused ends on SIGKILL
    only, and both sides start in the same way.
    """
    return ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []


class Broker(ABC):
    """One broker process on a port and a folder of its own."""

    name: str

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.data_folder = folder / "data"
        self.port = free_port()
        self._log_path = folder / "broker.log"
        self._process: subprocess.Popen[str] | None = None
        self._is_paused = False

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @abstractmethod
    def command(self) -> Sequence[str]: ...

    @abstractmethod
    def wait_until_ready(self) -> None: ...

    @abstractmethod
    def prepare(self) -> None:
        """What has to be there before the first start; not part of a measured start."""

    def start(self) -> None:
        with self._log_path.open("a") as log:
            self._process = subprocess.Popen(
                [*with_its_parent(), *self.command()], stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.wait_until_ready()

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with process:
            if self._is_paused:
                process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                raise

    def kill(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        with process:
            process.kill()

    def pause(self) -> None:
        if self._process is not None and not self._is_paused:
            self._process.send_signal(signal.SIGSTOP)
            self._is_paused = True

    def resume(self) -> None:
        if self._process is not None and self._is_paused:
            self._process.send_signal(signal.SIGCONT)
            self._is_paused = False

    def remove(self) -> None:
        """Stop it and delete everything it kept."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def last_words(self) -> str:
        return self._log_path.read_text(errors="replace")[-2000:]

    # --- its topics --------------------------------------------------------------------------------------------

    def client(self) -> RawClient:
        client = RawClient(self.bootstrap)
        client.sock.settimeout(ANSWER_S_MAX)
        return client

    @contextmanager
    def topics(self, names: Sequence[str], partitions: int = 1, **configs: str) -> Iterator[None]:
        """Topics for the time of the block; afterwards their bytes are off the disk."""
        with self.client() as client:
            for name in names:
                client.create_topic(name, partitions, **configs)
            for name in names:
                self._wait_for_leaders(client, name, partitions)
        try:
            yield
        finally:
            self._delete(names)

    def _wait_for_leaders(self, client: RawClient, name: str, partitions: int) -> None:
        deadline = time.monotonic() + START_S_MAX
        for first in range(0, partitions, PARTITIONS_PER_REQUEST_MAX):
            last = min(partitions, first + PARTITIONS_PER_REQUEST_MAX)
            asked = [{"partition_index": index, "timestamp": -1} for index in range(first, last)]
            body = {"replica_id": -1, "topics": [{"name": name, "partitions": asked}]}
            while not _all_well(client.ask(ApiKey.LIST_OFFSETS, 7, body)):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name}: no leader for {name} within {START_S_MAX:.0f} s")
                time.sleep(PAUSE_S)

    def _delete(self, names: Sequence[str]) -> None:
        with self.client() as client:
            answer = client.ask(
                ApiKey.DELETE_TOPICS, 5, {"topic_names": list(names), "timeout_ms": int(ANSWER_S_MAX * 1000)}
            )
        failed = [row for row in answer["responses"] if row["error_code"]]
        if failed:
            raise RuntimeError(f"{self.name} did not delete {failed}")
        deadline = time.monotonic() + ANSWER_S_MAX
        while any(self._holds(name) for name in names):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} still has files of {names[0]} after {ANSWER_S_MAX:.0f} s")
            time.sleep(0.05)

    def _holds(self, name: str) -> bool:
        return any(self.data_folder.glob(f"{name}-*"))


def _all_well(answer: dict[str, list[dict[str, list[dict[str, int]]]]]) -> bool:
    return all(row["error_code"] == 0 for topic in answer["topics"] for row in topic["partitions"])


class Ours(Broker):
    name = "anabranch"

    def __init__(self, folder: Path, flush: str = "os", words: Sequence[str] = ()) -> None:
        super().__init__(folder)
        self._flush = flush
        self._words = words

    def command(self) -> Sequence[str]:
        up = [anabranch_program(), "up", "--listen", self.bootstrap, "--data-dir", str(self.data_folder)]
        return [*up, "--flush", self._flush, *self._words, "--format", "json"]

    def prepare(self) -> None:
        """Nothing: a node makes its folder when it starts."""

    def wait_until_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_S_MAX)
        line = self._process.stdout.readline() if readable else ""
        if not line or json.loads(line)["bootstrap"] != self.bootstrap:
            self.kill()
            raise RuntimeError(f"the node did not come up: {self.last_words()}")


def anabranch_program() -> str:
    return str(Path(sys.executable).with_name("anabranch"))


JVM_FLAGS = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:MaxInlineLevel=15"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    "-Djava.awt.headless=true",
)

KAFKA_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
# One broker cannot keep three copies.
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
# As in the file Kafka ships for a first try: a group of one need not wait for others.
group.initial.rebalance.delay.ms=0
# Deleted topics leave the disk within half a second instead of a minute.
log.segment.delete.delay.ms=200
log.initial.task.delay.ms=500
"""
# A broker that was paused for another's turn is not taken for dead. One that is killed and started again must be.
KAFKA_PAUSABLE = "broker.session.timeout.ms=3600000\n"
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"


class Kafka(Broker):
    name = "kafka"
    version = KAFKA_VERSION

    def __init__(self, folder: Path, *, is_pausable: bool = False) -> None:
        super().__init__(folder)
        self._is_pausable = is_pausable
        self._java = program("java", "default-jre-headless")
        self._jars = kafka_jars("kafka_2.13")
        self._properties = folder / "server.properties"

    def prepare(self) -> None:
        text = KAFKA_PROPERTIES.format(port=self.port, controller_port=free_port(), data=self.data_folder)
        self._properties.write_text(text + (KAFKA_PAUSABLE if self._is_pausable else ""))
        form = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._properties)]
        done = subprocess.run(
            [self._java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", self._jars, *form],
            capture_output=True,
            text=True,
            timeout=FORMAT_S_MAX,
        )
        if done.returncode:
            raise RuntimeError(f"Kafka does not format its folder: {(done.stderr + done.stdout)[-1000:]}")

    def start(self) -> None:
        with self._log_path.open("a") as log:
            self._process = subprocess.Popen(
                [*with_its_parent(), *self.command()], stdout=log, stderr=log, text=True
            )
        self.wait_until_ready()

    def command(self) -> Sequence[str]:
        return [self._java, *JVM_FLAGS, "-cp", self._jars, "kafka.Kafka", str(self._properties)]

    def wait_until_ready(self) -> None:
        """Kafka is ready when it has registered with its controller: when it names itself in its metadata."""
        assert self._process is not None
        deadline = time.monotonic() + START_S_MAX
        while not self._names_itself():
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.kill()
                raise RuntimeError(f"Kafka did not come up: {self.last_words()}")
            time.sleep(PAUSE_S)

    def _names_itself(self) -> bool:
        try:
            with RawClient(self.bootstrap) as client:
                return bool(client.ask(ApiKey.METADATA, 9, {"topics": []})["brokers"])
        except OSError:
            return False
