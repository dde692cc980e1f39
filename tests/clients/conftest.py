"""Fixtures for real clients: one broker per test process, and names that no other test uses."""

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest

from anabranch.testing.cluster_processes import ClusterProcesses
from support.node_process import SETTINGS, NodeProcess
from support.s3_server import CREDENTIALS, S3Server

from .java_program import java_command
from .registries import go_environment, go_modules, go_program, or_skip
from .samples import SAMPLES

GO_SOURCES = Path(__file__).with_name("go")
COMPILE_S_MAX = 300.0
OBJECT_CONFIGS = {"anabranch.mode": "object", "retention.ms": "-1"}
"""Of a topic in the object store; its records may be of long ago."""


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of the broker under test: the one named by ANABRANCH_TEST_BOOTSTRAP, else a node of ours."""
    given = os.environ.get("ANABRANCH_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    with NodeProcess(tmp_path_factory.mktemp("node")) as node:
        yield node.bootstrap


@pytest.fixture(scope="session", params=["one node", "three brokers", "S3"])
def object_bootstrap(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Where topics may be in an object store: a folder, with one node or three brokers, or a bucket."""
    folder = tmp_path_factory.mktemp("objects")
    settings = {**SETTINGS, "object.store": f"file://{folder}/store"}
    match request.param:
        case "one node":
            with NodeProcess(folder, settings) as node:
                yield node.bootstrap
        case "three brokers":
            with ClusterProcesses(folder / "cluster", settings=settings) as cluster:
                yield cluster.bootstrap
        case _:
            server = request.getfixturevalue("s3_server")
            with _bucket(server) as url, NodeProcess(folder, {**SETTINGS, "object.store": url}) as node:
                yield node.bootstrap


@contextmanager
def _bucket(server: S3Server) -> Iterator[str]:
    """One of its own, with credentials in the environment of whoever is started meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield server.url(server.make_bucket(), "clients")


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name for this test's topic and group: tests and workers share one broker."""
    test = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"{test[:80]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def write_all_samples(bootstrap: str) -> Callable[[str], None]:
    """Has librdkafka, which refuses nothing, write every sample to partition 0 of a topic."""

    def write(topic: str) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
        for key, value, headers, timestamp_ms in SAMPLES:
            producer.produce(topic, value, key, 0, timestamp=timestamp_ms, headers=list(headers))
        assert producer.flush(15) == 0

    return write


@pytest.fixture(scope="session")
def go_binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled program in `go/`; what is missing is said, what does not compile fails."""
    go = or_skip(go_program)
    or_skip(lambda: go_modules(GO_SOURCES))
    binary = tmp_path_factory.mktemp("go") / "interop"
    command = [go, "build", "-mod=readonly", "-o", str(binary), "."]
    done = subprocess.run(
        command, cwd=GO_SOURCES, env=go_environment(), capture_output=True, text=True, timeout=COMPILE_S_MAX
    )
    assert done.returncode == 0, done.stderr
    return binary


@pytest.fixture(scope="session", name="java_command")
def how_to_run_java() -> list[str]:
    """How to run a class of the program in `java/`; what is missing is said, what does not compile fails."""
    return or_skip(java_command)
