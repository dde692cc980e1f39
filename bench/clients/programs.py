"""The clients a load can drive, each as a command for producing and one for consuming.

librdkafka is a C program where Debian's librdkafka-dev is installed, else the library that confluent-kafka brings,
which then shares its time with Python. Java are Kafka's own ProducerPerformance and ConsumerPerformance.
"""

import functools
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.programs import RUN_S_MAX, compiled, run_json
from clients.registries import Unavailable, kafka_jars, program

HERE = Path(__file__).parent
TREE = HERE.parent.parent
JAVA_HEAP = "-Xmx512M"  # As Kafka's own scripts start these two tools.
CONSUME_MS_MAX = 60_000


@dataclass(frozen=True)
class Work:
    """What a client is to write or to read."""

    bootstrap: str
    topic: str
    topics: int
    partitions: int
    records: int
    record_bytes: int
    codec: str


class Client(Protocol):
    def produce(self, work: Work) -> float:
        """Records per second."""

    def consume(self, work: Work) -> float:
        """Records per second."""


# --- librdkafka ---------------------------------------------------------------------------------------------------


@functools.cache
def rdkafka_command() -> Sequence[str]:
    try:
        return [str(compiled(HERE / "rdkafka.c", "rdkafka"))]
    except Unavailable:
        return [sys.executable, "-m", "bench.clients.confluent"]


def describe_rdkafka() -> str:
    if len(rdkafka_command()) == 1:
        return "librdkafka from C"
    return "librdkafka through confluent-kafka (librdkafka-dev is not installed)"


class Rdkafka:
    def command(self, direction: str, work: Work) -> list[str]:
        numbers = (work.topics, work.partitions, work.records, work.record_bytes)
        return [*rdkafka_command(), direction, work.bootstrap, work.topic, *map(str, numbers), work.codec]

    def produce(self, work: Work) -> float:
        return self.rate(run_json(self.command("produce", work)))

    def consume(self, work: Work) -> float:
        return self.rate(run_json(self.command("consume", work)))

    @staticmethod
    def rate(answer: dict[str, Any]) -> float:
        if answer["errors"]:
            raise RuntimeError(f"{answer['errors']} records were not acknowledged")
        rate: float = answer["records"] / answer["seconds"]
        return rate


# --- Java ---------------------------------------------------------------------------------------------------------


class Java:
    def produce(self, work: Work) -> float:
        said = self._run(
            "ProducerPerformance",
            *("--topic", work.topic, "--num-records", str(work.records), "--throughput", "-1"),
            *("--record-size", str(work.record_bytes), "--bootstrap-server", work.bootstrap),
            *("--command-property", f"compression.type={work.codec}"),
        )
        found = re.findall(r"^(\d+) records sent, ([\d.]+) records/sec", said, re.MULTILINE)
        if not found or int(found[-1][0]) != work.records:
            raise RuntimeError(f"the Java producer did not finish: {said[-500:]}")
        return float(found[-1][1])

    def consume(self, work: Work) -> float:
        said = self._run(
            "ConsumerPerformance",
            *("--topic", work.topic, "--num-records", str(work.records), "--timeout", str(CONSUME_MS_MAX)),
            *("--bootstrap-server", work.bootstrap, "--group", work.topic),
        )
        names, values = ([word.strip() for word in line.split(",")] for line in _table(said))
        row = dict(zip(names, values, strict=True))
        if int(row["data.consumed.in.nMsg"]) < work.records:
            raise RuntimeError(f"the Java consumer did not finish: {said[-500:]}")
        return float(row["fetch.nMsg.sec"])

    def _run(self, tool: str, *words: str) -> str:
        java = program("java", "default-jre-headless")
        jars = kafka_jars("kafka-tools")
        command = [java, JAVA_HEAP, "-cp", jars, f"org.apache.kafka.tools.{tool}", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)
        if done.returncode:
            raise RuntimeError(f"{tool} failed: {(done.stderr + done.stdout)[-1000:]}")
        return done.stdout


def _table(said: str) -> list[str]:
    """The line of names and the line of values."""
    lines = said.strip().splitlines()
    first = next((place for place, line in enumerate(lines) if line.startswith("start.time")), None)
    if first is None or first + 1 >= len(lines):
        raise RuntimeError(f"the Java consumer says nothing: {said[-500:]}")
    return lines[first : first + 2]
