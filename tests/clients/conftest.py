"""Fixtures for real clients: one broker per test process, and names that no other test uses."""

import os
import uuid
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest

from support.node_process import NodeProcess

from .samples import SAMPLES


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of the broker under test: the one named by ANABRANCH_TEST_BOOTSTRAP, else a node of ours."""
    given = os.environ.get("ANABRANCH_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    with NodeProcess(tmp_path_factory.mktemp("node")) as node:
        yield node.bootstrap


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
