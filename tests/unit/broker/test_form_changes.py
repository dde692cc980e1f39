"""Topics that go into the object store and out of it while they are written to and read."""

from collections.abc import Iterator

import pytest

from support.broker_cluster import close_all
from support.form_cluster import FormCluster


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


@pytest.mark.parametrize("kept", ["ring", "solo"])
def test_records_survive_each_change_under_load_and_no_disk_keeps_what_is_stored(kept: str) -> None:
    cluster = FormCluster(kept, 2)
    for _ in range(20):
        cluster.produce(0)
        cluster.produce(1)
    for _ in range(2):
        cluster.change("object", "stored", partitions=2)
        cluster.produce(0)
        cluster.until(lambda: cluster.folders() == [])
        cluster.check(0)
        cluster.check(1)
        cluster.produce(0, repeat=True)
        cluster.produce(1, repeat=True)
        cluster.change(kept, "kept", partitions=2)
        cluster.produce(1)
        cluster.produce(0, repeat=True)
        cluster.check(0)
        cluster.check(1)
        copies = 3 if kept == "ring" else 1
        cluster.until(lambda copies=copies: len(cluster.folders()) == 2 * copies)
    cluster.run(3000)
    cluster.check(0)
