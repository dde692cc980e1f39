"""A leader is killed under load, a broker is cut off: writes go on where a majority is, nowhere else, and in the end
all copies are equal. How long that takes is printed, and measured by `tools/failover.py`."""

import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from anabranch.errors import ClusterAnswerError
from anabranch.testing.cluster_processes import ClusterProcesses
from anabranch.wire.error_codes import ErrorCode
from chaos.cluster_load import final_reads
from chaos.failover import PARTITIONS, TOPIC, Failover
from chaos.history import check, report
from support.clusters import create_topic, log_bytes, produce, wait_for_voters, wait_until_in_sync
from support.waiting import wait_until

REFUSED = {
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
OPEN = {ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT}
"""Taken before the leader knew that it was cut off, and not acknowledged."""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(processes: ClusterProcesses) -> ClusterProcesses:
    """Whole again, whatever the test before has left."""
    processes.recover()
    wait_for_voters(processes)
    return processes


def test_writes_and_new_topics_go_on_without_their_leaders_and_nothing_is_lost(
    cluster: ClusterProcesses,
) -> None:
    failover = Failover(cluster)
    failover.start()
    writes_ms, topics_ms = failover.lose_leader(0), failover.lose_quorum_leader()
    failover.load.stop()
    sys.stdout.write(f"\nwrites went on after {writes_ms} ms, new topics after {topics_ms} ms\n")
    history = failover.load.history(final_reads(cluster.bootstrap, TOPIC, PARTITIONS))
    violations = check(history)
    assert not violations, report(violations)
    assert failover.load.errors() == {}


def test_a_broker_that_is_cut_off_takes_nothing_and_follows_again_when_it_is_back(
    cluster: ClusterProcesses,
) -> None:
    make_topic(cluster, "split")
    alone = cluster.leader_of("split")
    wait_until(lambda: produce(cluster, "split", b"before", alone) == ErrorCode.NONE, "a first write")
    cluster.isolate(alone)
    refused_by_the_minority(cluster, alone, "split")
    others = [broker for broker in cluster.ids if broker != alone]
    wait_until(
        lambda: any(produce(cluster, "split", b"during", broker) == ErrorCode.NONE for broker in others),
        "a write among the majority",
    )
    cluster.heal()
    wait_until_in_sync(cluster, ["split"])
    assert produce(cluster, "split", b"after", cluster.leader_of("split")) == ErrorCode.NONE
    wait_until(lambda: len({log_bytes(cluster, one, "split") for one in cluster.ids}) == 1, "equal copies")
    values = [read.value for read in final_reads(cluster.bootstrap, "split", 1)]
    assert [value for value in values if value != b"lonely"] == [b"before", b"during", b"after"]


def make_topic(cluster: ClusterProcesses, topic: str) -> None:
    """Refused while a broker that is just back is not counted on yet."""
    wait_until(lambda: create_topic(cluster, topic, copies=3) == ErrorCode.NONE, f"the topic {topic}")


def refused_by_the_minority(cluster: ClusterProcesses, alone: int, topic: str) -> None:
    """Until it refuses plainly; until then it may not know yet, but acknowledges nothing."""

    def is_refused() -> bool:
        code = produce(cluster, topic, b"lonely", alone, timeout_ms=500)
        assert code in REFUSED | OPEN
        return code in REFUSED

    wait_until(is_refused, "the minority to refuse writes")
    for _ in range(5):
        assert produce(cluster, topic, b"lonely", alone, timeout_ms=500) in REFUSED
        time.sleep(0.1)
    with suppress(ClusterAnswerError):  # It may try for as long as we wait for its answer.
        assert create_topic(cluster, f"{topic}-alone", broker=alone) != ErrorCode.NONE


def test_two_paused_brokers_leave_the_third_without_a_say(cluster: ClusterProcesses) -> None:
    make_topic(cluster, "paused")
    leader = cluster.leader_of("paused")
    wait_until(lambda: produce(cluster, "paused", b"before", leader) == ErrorCode.NONE, "a first write")
    others = [broker for broker in cluster.ids if broker != leader]
    for broker in others:
        cluster.pause(broker)
    refused_by_the_minority(cluster, leader, "paused")
    for broker in others:
        cluster.resume(broker)

    def can_write() -> bool:
        return any(produce(cluster, "paused", b"after", broker) == ErrorCode.NONE for broker in cluster.ids)

    wait_until(can_write, "writes to go on")
    wait_until_in_sync(cluster, ["paused"])
    wait_until(lambda: len({log_bytes(cluster, one, "paused") for one in cluster.ids}) == 1, "equal copies")
