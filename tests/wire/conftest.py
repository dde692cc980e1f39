"""One node per test process for everything that speaks to it in raw bytes, and what holds after every test."""

import uuid
from collections.abc import Iterator

import pytest

from support.raw_client import RawClient
from support.wire_node import MIB, WireNode

SETTINGS = {
    "num.partitions": "2",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WireNode]:
    with WireNode(tmp_path_factory.mktemp("wire-node"), SETTINGS) as running:
        running.check_served()
        yield running


@pytest.fixture
def memory_growth_max() -> int:
    """Bytes by which the node may grow during one test; a module that needs more says so."""
    return 48 * MIB


@pytest.fixture
def others_served(node: WireNode, memory_growth_max: int) -> Iterator[None]:
    """After the test the node is alive, serves somebody else, took bounded memory and logged no defect."""
    log_position = node.log_size()
    node.forget_peak()
    before = node.rss_bytes()
    yield
    assert node.is_alive()
    node.check_served()
    grown = node.peak_bytes() - before
    assert grown <= memory_growth_max, f"the node grew by {grown / MIB:.0f} MiB"
    assert node.defects_since(log_position) == []


@pytest.fixture
def client(node: WireNode) -> Iterator[RawClient]:
    with RawClient(node.bootstrap) as connected:
        yield connected


@pytest.fixture
def topic(client: RawClient) -> str:
    """A topic of its own for one test: two partitions, empty."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    client.create_topic(name, partitions=2)
    return name
