"""The pytest plugin: a real broker for tests that ask for one, and nothing at all for tests that do not.

    def test_my_service(anabranch_broker, anabranch_topic):
        run_my_service(anabranch_broker.bootstrap, anabranch_topic)
        assert anabranch_broker.wait_for_records(anabranch_topic, count=3)

`anabranch_broker` is one broker per test session (per worker under pytest-xdist) on a free port of 127.0.0.1, with
its data in a temporary folder; `anabranch_topic` is the name of a new topic, deleted after the test. Override the
session fixture `anabranch_settings` to change the broker's settings.

`anabranch_cluster` is a cluster of three real broker processes, one per test session, that a test may kill, pause and
cut apart: whatever a test leaves broken is healed and started again before the next one. `anabranch_cluster_settings`
are the settings of its brokers. pytest loads this module in every run of every
project that has anabranch installed: it imports nothing of ours before a fixture is used.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from anabranch.testing.cluster_processes import ClusterProcesses
    from anabranch.testing.embedded import EmbeddedBroker


@pytest.fixture(scope="session")
def anabranch_settings() -> dict[str, object]:
    """Settings of `anabranch_broker`, by Kafka's dotted names; override it in your conftest.py."""
    return {}


@pytest.fixture(scope="session")
def anabranch_broker(
    anabranch_settings: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[EmbeddedBroker]":
    """A broker that lives as long as the test session."""
    from anabranch.testing.embedded import EmbeddedBroker

    with EmbeddedBroker(tmp_path_factory.mktemp("anabranch"), settings=anabranch_settings) as broker:
        yield broker


@pytest.fixture
def anabranch_topic(anabranch_broker: "EmbeddedBroker", request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a new topic with one partition, made for this test and deleted after it."""
    topic = anabranch_broker.create_topic(anabranch_broker.unused_name(request.node.name))
    yield topic
    anabranch_broker.delete_topic(topic)


@pytest.fixture(scope="session")
def anabranch_cluster_settings() -> dict[str, object]:
    """Settings of the brokers of `anabranch_cluster`, by Kafka's dotted names; override it in your conftest.py."""
    return {}


@pytest.fixture(scope="session")
def anabranch_cluster_processes(
    anabranch_cluster_settings: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[ClusterProcesses]":
    """The processes behind `anabranch_cluster`; they live as long as the test session."""
    from anabranch.testing.cluster_processes import ClusterProcesses

    folder = tmp_path_factory.mktemp("anabranch-cluster")
    with ClusterProcesses(folder, settings=anabranch_cluster_settings) as cluster:
        yield cluster


@pytest.fixture
def anabranch_cluster(anabranch_cluster_processes: "ClusterProcesses") -> "Iterator[ClusterProcesses]":
    """A cluster of three broker processes, all of them up when the test begins."""
    anabranch_cluster_processes.recover()
    yield anabranch_cluster_processes
    anabranch_cluster_processes.heal()
