"""Five clients with their default settings, each on a topic of its own, while every topic goes from ring into branches,
into the object store, and back the same way: nobody meets an error, nothing is lost, and idempotent producers leave
nothing twice."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from anabranch.testing.cluster_processes import ClusterProcesses
from anabranch.wire.error_codes import ErrorCode
from support.clusters import create_topic, wait_for_voters

from .survivor_process import SurvivorProcess, python_survivor, wait_until_all_go_on
from .test_cluster_clients import CLIENTS, IDEMPOTENT, PARTITIONS, Run, values_in
from .test_mode_changes import change, wait_until_changed

pytestmark = pytest.mark.interop

MODES = ("branch", "object", "branch", "ring")


@pytest.fixture(scope="module")
def run(java_command: list[str], go_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("mode-survivors")
    commands = {name: python_survivor(name) for name in CLIENTS[:3]}
    commands |= {"java": [*java_command, "Survivor"], "franz_go": [str(go_binary)]}
    settings = {"object.store": f"file://{folder}/store"}
    with ClusterProcesses(folder / "cluster", settings=settings) as cluster, ExitStack() as stack:
        wait_for_voters(cluster)
        for topic in CLIENTS:
            assert create_topic(cluster, topic, PARTITIONS, copies=3) == ErrorCode.NONE
        clients = {
            name: stack.enter_context(
                SurvivorProcess([*command, cluster.bootstrap, name], folder / f"{name}.log")
            )
            for name, command in commands.items()
        }
        wait_until_all_go_on(clients)
        for mode in MODES:
            for topic in CLIENTS:
                change(cluster, topic, mode)
            for topic in CLIENTS:
                wait_until_changed(cluster, topic, mode)
            wait_until_all_go_on(clients)
        outcomes = {name: client.finish() for name, client in clients.items()}
        yield Run(outcomes, {name: values_in(cluster.bootstrap, name) for name in CLIENTS})


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_survives_every_change(run: Run, client: str) -> None:
    outcome, log = run.outcomes[client], run.logs[client]
    assert outcome.errors == []
    assert outcome.acked
    assert set(outcome.acked) - set(log) == set()
    assert set(log) - set(outcome.read) == set()
    if client in IDEMPOTENT:
        assert [value for value, count in Counter(log).items() if count > 1] == []
