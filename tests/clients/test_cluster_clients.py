"""Five clients with their default settings on one cluster while brokers die, stop, and come back: one run, which every
client must survive without an error, without a loss, and without a duplicate where it is idempotent by default.

    1. kill -9 of a broker that leads a partition of every client's topic; it is started again
    2. a rolling restart: each broker in turn is stopped in order and started again
    3. kill -9 of the broker that coordinates the most groups
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest

from anabranch.testing.cluster_processes import ClusterProcesses
from anabranch.wire.error_codes import ErrorCode
from support.clusters import coordinator_of, create_topic, wait_for_voters, wait_until_in_sync
from support.waiting import wait_until

from .survivor_process import Outcome, SurvivorProcess, python_survivor, wait_until_all_go_on

pytestmark = pytest.mark.interop

CLIENTS = ("confluent", "kafka_python", "aiokafka", "java", "franz_go")
"""Each has a topic and a group of its name."""
IDEMPOTENT = ("kafka_python", "java", "franz_go")
"""By default; the others may write a record again that they were not told of."""
PARTITIONS = 3
READ_S_MAX = 20.0
COMMIT_S_MAX = 60.0


class Run:
    """What each client said, and what is in its topic."""

    def __init__(self, outcomes: Mapping[str, Outcome], logs: Mapping[str, list[int]]) -> None:
        self.outcomes = outcomes
        self.logs = logs


@pytest.fixture(scope="module")
def commands(java_command: list[str], go_binary: Path) -> dict[str, list[str]]:
    python = {name: python_survivor(name) for name in CLIENTS[:3]}
    return {**python, "java": [*java_command, "Survivor"], "franz_go": [str(go_binary)]}


@pytest.fixture(scope="module")
def run(commands: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("survivors")
    with ClusterProcesses(folder / "cluster") as cluster, ExitStack() as stack:
        for topic in CLIENTS:
            assert create_topic(cluster, topic, PARTITIONS, copies=3) == ErrorCode.NONE
        clients = {
            name: stack.enter_context(
                SurvivorProcess([*command, cluster.bootstrap, name], folder / f"{name}.log")
            )
            for name, command in commands.items()
        }
        wait_for_voters(cluster)
        trouble(cluster, lambda: wait_until_all_go_on(clients))
        outcomes = {name: client.finish() for name, client in clients.items()}
        yield Run(outcomes, {name: values_in(cluster.bootstrap, name) for name in CLIENTS})


def trouble(cluster: ClusterProcesses, go_on: Callable[[], None]) -> None:
    go_on()
    leader = cluster.leader_of("confluent", 0)
    cluster.kill(leader)
    go_on()
    cluster.restart(leader)
    for broker in cluster.ids:
        wait_until_in_sync(cluster, CLIENTS)
        assert cluster.stop_broker(broker) == 0
        go_on()
        cluster.restart(broker)
    wait_until_in_sync(cluster, [*CLIENTS, "__consumer_offsets"])
    coordinators = Counter(coordinator_of(cluster, group) for group in CLIENTS)
    committed = {group: committed_in(cluster.bootstrap, group) for group in CLIENTS}
    cluster.kill(coordinators.most_common(1)[0][0])
    go_on()
    # A consumer that is closed before it has found its new coordinator may never end: aiokafka's does not.
    for group, before in committed.items():
        wait_until(
            partial(commits_again, cluster.bootstrap, group, before), f"{group} commits again", COMMIT_S_MAX
        )


def commits_again(bootstrap: str, group: str, before: int) -> bool:
    return committed_in(bootstrap, group) > before


def committed_in(bootstrap: str, group: str) -> int:
    """How many records the group says it is done with; -1 while nobody answers for it."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        places = [confluent_kafka.TopicPartition(group, partition) for partition in range(PARTITIONS)]
        return sum(max(0, place.offset) for place in consumer.committed(places, timeout=5))
    except confluent_kafka.KafkaException:
        return -1
    finally:
        consumer.close()


def values_in(bootstrap: str, topic: str) -> list[int]:
    """Every record of the topic."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "checker", "enable.partition.eof": True, "log_level": 0}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    values, ended = [], set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(READ_S_MAX)
        assert message is not None, f"{topic} cannot be read to its end"
        error = message.error()
        if error is None:
            values.append(int(message.value() or b""))
        else:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
    consumer.close()
    return values


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_default_settings_sees_no_error(run: Run, client: str) -> None:
    assert run.outcomes[client].errors == []


@pytest.mark.parametrize("client", CLIENTS)
def test_nothing_acknowledged_is_lost(run: Run, client: str) -> None:
    acked = set(run.outcomes[client].acked)
    assert acked
    assert acked - set(run.logs[client]) == set()


@pytest.mark.parametrize("client", CLIENTS)
def test_the_group_reads_everything(run: Run, client: str) -> None:
    assert set(run.logs[client]) - set(run.outcomes[client].read) == set()


@pytest.mark.parametrize("client", IDEMPOTENT)
def test_an_idempotent_producer_leaves_no_duplicate(run: Run, client: str) -> None:
    assert [value for value, count in Counter(run.logs[client]).items() if count > 1] == []
