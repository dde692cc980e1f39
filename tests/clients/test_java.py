"""Kafka's own Java clients: one JVM runs the program in `java/`, one test judges each of its checks."""

import json
import subprocess
from pathlib import Path

import pytest

from .registries import kafka_jars, or_skip, program
from .samples import CODECS

pytestmark = pytest.mark.interop

SOURCES = Path(__file__).with_name("java")
COMPILE_S_MAX = 120.0
RUN_S_MAX = 240.0
CHECKS = (
    *(f"records_{codec}" for codec in CODECS),
    "records_without_idempotence",
    "idempotent_production",
    "group_RangeAssignor",
    "group_RoundRobinAssignor",
    "group_StickyAssignor",
    "group_CooperativeStickyAssignor",
    "group_static_member",
    "admin_topics",
    "admin_configs",
    "admin_partitions",
    "admin_offsets",
    "admin_delete_records",
    "admin_groups",
    "admin_group_offsets",
    "admin_cluster",
    "admin_log_folders",
)


@pytest.fixture(scope="module")
def java_command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The compiled program, ready to run; what is missing is said, what does not compile fails."""
    javac = or_skip(lambda: program("javac", "default-jdk-headless"))
    java = or_skip(lambda: program("java", "default-jdk-headless"))
    jars = or_skip(lambda: kafka_jars("kafka-clients"))
    classes = tmp_path_factory.mktemp("classes")
    sources = sorted(map(str, SOURCES.glob("*.java")))
    compile_command = [javac, "-encoding", "UTF-8", "-Werror", "-cp", jars, "-d", str(classes), *sources]
    done = subprocess.run(compile_command, capture_output=True, text=True, timeout=COMPILE_S_MAX)
    assert done.returncode == 0, done.stderr
    return [
        java,
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        f"{classes}:{jars}",
        "Interop",
    ]


@pytest.fixture(scope="module")
def failures(java_command: list[str], bootstrap: str) -> dict[str, str]:
    """Check name to what went wrong, empty when nothing did."""
    done = subprocess.run([*java_command, bootstrap], capture_output=True, text=True, timeout=RUN_S_MAX)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["check"]: line["failure"] for line in lines}


@pytest.mark.parametrize("check", CHECKS)
def test_java_client(failures: dict[str, str], check: str) -> None:
    assert failures[check] == ""


def test_every_check_of_the_program_is_judged(failures: dict[str, str]) -> None:
    assert sorted(failures) == sorted(CHECKS)
