"""Topics in mode branch whose older records lie in the object store: what is below the floor is served from there."""

from collections.abc import Iterator

import pytest

from support.broker_cluster import close_all
from support.join_cluster import JoinCluster


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


def test_records_and_producers_go_from_the_store_into_branches_under_load() -> None:
    cluster = JoinCluster("object", 2)
    for _ in range(20):
        cluster.produce(0)
        cluster.produce(1)
    cluster.change("branch", "branched", partitions=2)
    assert cluster.placement().floor
    for index in (0, 1):
        cluster.produce(index, repeat=True)
        cluster.check(index)
        cluster.produce(index)
        cluster.produce(index, repeat=True)
        cluster.check(index)
