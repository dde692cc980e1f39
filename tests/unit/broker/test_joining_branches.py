"""Topics that go over to mode branch while they are written to and read."""

from collections.abc import Iterator

import pytest

from support.broker_cluster import close_all
from support.join_cluster import JoinCluster


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


@pytest.mark.parametrize("kept", ["ring", "solo"])
def test_records_and_producers_go_over_to_branches_under_load(kept: str) -> None:
    cluster = JoinCluster(kept, 2)
    for _ in range(20):
        cluster.produce(0)
        cluster.produce(1)
    cluster.change("branch", "branched", partitions=2)
    for index in (0, 1):
        cluster.produce(index, repeat=True)
        cluster.check(index)
        cluster.produce(index)
        cluster.produce(index, repeat=True)
        cluster.check(index)
