"""A topic goes over to mode branch on a cluster of three while stock clients write and read, and brokers are killed.
From then on offsets have gaps, and a record that waited on a broker that was killed may come behind later ones."""

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException

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
def test_clients_go_on_while_a_topic_goes_over_to_branches(
    cluster: ClusterProcesses, unique: str, mode: str
) -> None:
    created(cluster, unique, mode)
    load = GappedLoad(cluster, unique)
    load.wait_for_more()
    change(cluster, unique, "branch")
    wait_until_changed(cluster, unique, "branch")
    load.wait_for_more()
    load.finish()
    expected = [list(range(count)) for count in load.sent]
    assert [[number for _, number in read] for read in load.read] == expected
    assert values_from_the_start(cluster, unique, load.sent) == expected
    with pytest.raises(KafkaException, match="out of mode branch"):
        change(cluster, unique, "ring")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_broker_that_is_killed_while_a_topic_goes_over_costs_no_record(
    cluster: ClusterProcesses, unique: str, number: int
) -> None:
    created(cluster, unique, "ring")
    load = GappedLoad(cluster, unique)
    load.wait_for_more()
    change(cluster, unique, "branch")
    killed = cluster.ids[number]
    cluster.kill(killed)
    load.wait_for_more()
    cluster.restart(killed)
    wait_until_changed(cluster, unique, "branch")
    load.wait_for_more()
    load.finish()
    found = values_from_the_start(cluster, unique, load.sent)
    assert [sorted(each) for each in found] == [list(range(count)) for count in load.sent]
