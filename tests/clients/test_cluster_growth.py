"""A single broker with clients at work grows to three: every topic gets its copies, the internal ones too, and nobody
notices."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from anabranch.testing.cluster_processes import ClusterProcesses
from anabranch.wire.error_codes import ErrorCode
from support.clusters import create_topic, partition_rows, wait_for_voters, wait_until_in_sync

from .survivor_process import Outcome, SurvivorProcess, python_survivor, wait_until_all_go_on

CLIENTS = ("confluent", "kafka_python")
PARTITIONS = 3


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("growth")
    with ClusterProcesses(folder / "cluster", begin_with=1) as cluster, ExitStack() as stack:
        clients = start_clients(cluster, folder, stack)
        wait_until_all_go_on(clients)
        assert {len(row["replica_nodes"]) for row in partition_rows(cluster, CLIENTS[0])} == {1}
        for broker in (1, 2):
            cluster.restart(broker)
        wait_until_in_sync(cluster, [*CLIENTS, "__consumer_offsets"])
        wait_for_voters(cluster)
        wait_until_all_go_on(clients)
        cluster.kill(0)  # What there was at first is not needed any more.
        wait_until_all_go_on(clients)
        return {name: client.finish() for name, client in clients.items()}


def start_clients(cluster: ClusterProcesses, folder: Path, stack: ExitStack) -> dict[str, SurvivorProcess]:
    """All they know is the first broker."""
    clients = {}
    for name in CLIENTS:
        assert create_topic(cluster, name, PARTITIONS, broker=0) == ErrorCode.NONE
        command = [*python_survivor(name), cluster.layout.places[0].kafka, name]
        clients[name] = stack.enter_context(SurvivorProcess(command, folder / f"{name}.log"))
    return clients


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_sees_no_error_while_a_broker_becomes_a_cluster(
    outcomes: dict[str, Outcome], client: str
) -> None:
    assert outcomes[client].errors == []


@pytest.mark.parametrize("client", CLIENTS)
def test_everything_acknowledged_is_read(outcomes: dict[str, Outcome], client: str) -> None:
    acked = set(outcomes[client].acked)
    assert acked
    assert acked - set(outcomes[client].read) == set()
