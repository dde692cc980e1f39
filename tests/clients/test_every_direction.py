"""A topic goes between ring, branch and object in all six directions while stock clients write and read, and a broker
is killed during each change: every record is there once. With a broker away a topic does not leave mode branch, and
whoever asks is told which one it is."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException

from anabranch.testing.cluster_processes import ClusterProcesses
from support.clusters import wait_for_voters
from support.mode_load import (
    RUN_S_MAX,
    GappedLoad,
    change,
    created,
    values_from_the_start,
    wait_until_changed,
)
from support.waiting import wait_until

ROUND = ("branch", "object", "ring", "object", "branch", "ring")
"""From ring on: each of the six directions once."""
KILLED_AFTER_S = (0.0, 0.15, 0.4)
"""Behind the wish: before, while and after the partitions go over, which takes a second or so."""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    folder = tmp_path_factory.mktemp("every-direction")
    settings = {"object.store": f"file://{folder}/store", "group.initial.rebalance.delay.ms": 0}
    with ClusterProcesses(folder / "cluster", settings=settings) as running:
        wait_for_voters(running)
        yield running


@pytest.fixture
def cluster(processes: ClusterProcesses) -> ClusterProcesses:
    processes.recover()
    return processes


def wish(cluster: ClusterProcesses, topic: str, mode: str) -> None:
    """As somebody does who is told that a broker is away, and asks again when it is back."""

    def is_agreed() -> bool:
        try:
            change(cluster, topic, mode)
        except KafkaException as error:
            if "is not reached" not in str(error) and not error.args[0].retriable():
                raise
            return False
        return True

    wait_until(is_agreed, f"{topic} to be let into mode {mode}", RUN_S_MAX)


def is_each_there_once(cluster: ClusterProcesses, topic: str, load: GappedLoad) -> bool:
    found = values_from_the_start(cluster, topic, load.sent)
    return [sorted(each) for each in found] == [list(range(count)) for count in load.sent]


def test_a_broker_killed_during_any_change_costs_no_record(cluster: ClusterProcesses, unique: str) -> None:
    created(cluster, unique, "ring")
    load = GappedLoad(cluster, unique)
    load.wait_for_more()
    for number, mode in enumerate(ROUND):
        wish(cluster, unique, mode)
        time.sleep(KILLED_AFTER_S[number % len(KILLED_AFTER_S)])
        killed = cluster.ids[number % len(cluster.ids)]
        cluster.kill(killed)
        load.wait_for_more()
        cluster.restart(killed)
        wait_until_changed(cluster, unique, mode)
        load.wait_for_more()
    load.finish()
    assert is_each_there_once(cluster, unique, load)


def test_without_faults_every_direction_keeps_the_order(cluster: ClusterProcesses, unique: str) -> None:
    created(cluster, unique, "ring")
    load = GappedLoad(cluster, unique)
    for mode in ROUND:
        load.wait_for_more()
        wish(cluster, unique, mode)
        wait_until_changed(cluster, unique, mode)
    load.finish()
    expected = [list(range(count)) for count in load.sent]
    assert [[number for _, number in read] for read in load.read] == expected
    assert values_from_the_start(cluster, unique, load.sent) == expected


def test_leaving_branches_while_a_broker_is_away_is_refused_by_its_name(
    cluster: ClusterProcesses, unique: str
) -> None:
    created(cluster, unique, "branch")
    load = GappedLoad(cluster, unique)
    load.wait_for_more()
    away = cluster.ids[-1]
    cluster.kill(away)
    for mode in ("ring", "object"):
        reason = refused(cluster, unique, mode)
        assert f"while broker {away} is not reached" in reason
    said = by_command(cluster, unique, "ring")
    assert said.returncode != 0
    assert f"while broker {away} is not reached" in said.stderr
    load.wait_for_more()  # It goes on in branches all the while.
    cluster.restart(away)
    wish(cluster, unique, "ring")
    wait_until_changed(cluster, unique, "ring")
    load.finish()
    assert is_each_there_once(cluster, unique, load)


def refused(cluster: ClusterProcesses, topic: str, mode: str) -> str:
    with pytest.raises(KafkaException) as found:
        change(cluster, topic, mode)
    return str(found.value)


def by_command(cluster: ClusterProcesses, topic: str, mode: str) -> "subprocess.CompletedProcess[str]":
    words = ["topic", "alter", topic, "--mode", mode, "--bootstrap", cluster.bootstrap]
    command = [sys.executable, "-m", "anabranch", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
