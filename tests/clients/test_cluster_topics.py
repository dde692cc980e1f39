"""Topics of a cluster through confluent-kafka, which knows one broker at the beginning: whichever it is, all of the
cluster is there, at once, and stays when a disk is lost."""

import shutil
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from anabranch.testing.cluster_processes import ClusterProcesses
from support.clusters import voters, wait_for_voters, wait_until_in_sync
from support.waiting import wait_until

ANSWER_S_MAX = 20.0
QUIET = {"log_level": 0}
PARTITIONS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("cluster")) as processes:
        wait_for_voters(processes)
        yield processes


def address(cluster: ClusterProcesses, broker: int) -> str:
    return cluster.layout.places[broker % len(cluster.ids)].kafka


def create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(ANSWER_S_MAX)


def delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(ANSWER_S_MAX)


def send(bootstrap: str, topic: str, value: bytes) -> None:
    """One record to every partition; whatever is wrong is raised."""
    errors: list[object] = []
    producer = confluent_kafka.Producer({**QUIET, "bootstrap.servers": bootstrap})
    for partition in range(PARTITIONS):
        producer.produce(
            topic, value, partition=partition, on_delivery=lambda error, _: error and errors.append(error)
        )
    assert producer.flush(ANSWER_S_MAX) == 0
    assert errors == []


def values_of(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {**QUIET, "bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    values: list[bytes] = []

    def read() -> bool:
        found = consumer.consume(100, 0.2)
        values.extend(message.value() or b"" for message in found if message.error() is None)
        return len(values) >= count

    wait_until(read, f"{count} records of {topic}", ANSWER_S_MAX)
    consumer.close()
    return sorted(values)


@pytest.mark.parametrize("broker", range(3))
def test_a_topic_made_at_one_broker_is_there_at_the_others_at_once(
    cluster: ClusterProcesses, broker: int
) -> None:
    topic = f"made-at-{broker}"
    create(address(cluster, broker), topic)
    send(address(cluster, broker + 1), topic, b"value")
    assert values_of(address(cluster, broker + 2), topic, PARTITIONS) == [b"value"] * PARTITIONS


def test_a_topic_made_again_has_nothing_of_the_one_before(cluster: ClusterProcesses) -> None:
    create(cluster.bootstrap, "again")
    for life in range(4):
        send(address(cluster, life), "again", b"life %d" % life)
        delete(address(cluster, life + 1), "again")
        create(address(cluster, life + 2), "again")
    send(cluster.bootstrap, "again", b"the last")
    assert values_of(cluster.bootstrap, "again", PARTITIONS) == [b"the last"] * PARTITIONS


def test_a_broker_that_lost_its_disk_gets_everything_back_and_counts_again(cluster: ClusterProcesses) -> None:
    create(cluster.bootstrap, "precious")
    send(cluster.bootstrap, "precious", b"before")
    wait_until_in_sync(cluster, ["precious"])
    robbed = cluster.leader_of("precious", 0)
    cluster.kill(robbed)
    shutil.rmtree(cluster.layout.places[robbed].folder)
    cluster.restart(robbed)
    wait_until_in_sync(cluster, ["precious"])
    wait_until(lambda: voters(cluster) == set(cluster.ids), "three voters again", ANSWER_S_MAX)
    # Now that its copies count, another broker can be lost.
    other = next(broker for broker in cluster.ids if broker != robbed)
    cluster.kill(other)
    send(address(cluster, robbed), "precious", b"after")
    assert values_of(address(cluster, robbed), "precious", 2 * PARTITIONS) == (
        [b"after"] * PARTITIONS + [b"before"] * PARTITIONS
    )
