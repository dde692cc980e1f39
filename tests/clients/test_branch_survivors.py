"""Stock clients with their default settings on a topic in mode branch, through restarts of its only node."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.node_process import NodeProcess

from .survivor_process import Outcome, SurvivorProcess, python_survivor, wait_until_all_go_on
from .test_cluster_clients import PARTITIONS, Run, values_in
from .test_confluent import _done

pytestmark = pytest.mark.interop

CLIENTS = ("kafka_python", "java", "franz_go")
"""Those whose producers are idempotent by default."""


@pytest.fixture(scope="module")
def run(java_command: list[str], go_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("branch-survivors")
    commands = {
        "kafka_python": python_survivor("kafka_python"),
        "java": [*java_command, "Survivor"],
        "franz_go": [str(go_binary)],
    }
    with NodeProcess(folder) as node, ExitStack() as stack:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        topics = [NewTopic(name, PARTITIONS, config={"anabranch.mode": "branch"}) for name in CLIENTS]
        _done(admin.create_topics(topics))
        clients = {
            name: stack.enter_context(
                SurvivorProcess([*command, node.bootstrap, name], folder / f"{name}.log")
            )
            for name, command in commands.items()
        }
        wait_until_all_go_on(clients)
        for end in (node.stop, node.kill):
            end()
            node.start()
            wait_until_all_go_on(clients)
        outcomes: dict[str, Outcome] = {name: client.finish() for name, client in clients.items()}
        yield Run(outcomes, {name: values_in(node.bootstrap, name) for name in CLIENTS})


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_goes_on_and_misses_nothing(run: Run, client: str) -> None:
    outcome, stored = run.outcomes[client], run.logs[client]
    assert [error for error in outcome.errors if "refused" not in error] == [], "there was nobody to dial"
    assert outcome.acked
    assert set(outcome.acked) <= set(stored)
    assert set(stored) <= set(outcome.read)


@pytest.mark.parametrize("client", CLIENTS)
def test_an_idempotent_producer_leaves_no_duplicate_in_lanes(run: Run, client: str) -> None:
    assert [value for value, count in Counter(run.logs[client]).items() if count > 1] == []
