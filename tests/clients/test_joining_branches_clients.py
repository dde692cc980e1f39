"""A topic goes over to mode branch on a cluster without an object store, and back, while stock clients write and read.
`test_every_direction.py` kills brokers meanwhile."""

from collections.abc import Iterator

import pytest

from anabranch.testing.cluster_processes import ClusterProcesses
from support.clusters import wait_for_voters
from support.mode_load import GappedLoad, change, created, values_from_the_start, wait_until_changed


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    settings = {"group.initial.rebalance.delay.ms": 0}
    folder = tmp_path_factory.mktemp("joining-branches")
    with ClusterProcesses(folder, settings=settings) as running:
        wait_for_voters(running)
        yield running


@pytest.fixture
def cluster(processes: ClusterProcesses) -> ClusterProcesses:
    processes.recover()
    return processes


@pytest.mark.parametrize("mode", ["ring", "solo"])
def test_clients_go_on_while_a_topic_goes_over_to_branches_and_back(
    cluster: ClusterProcesses, unique: str, mode: str
) -> None:
    created(cluster, unique, mode)
    load = GappedLoad(cluster, unique)
    load.wait_for_more()
    change(cluster, unique, "branch")
    wait_until_changed(cluster, unique, "branch")
    load.wait_for_more()
    change(cluster, unique, mode)
    wait_until_changed(cluster, unique, mode)
    load.finish()
    expected = [list(range(count)) for count in load.sent]
    assert [[number for _, number in read] for read in load.read] == expected
    assert values_from_the_start(cluster, unique, load.sent) == expected
