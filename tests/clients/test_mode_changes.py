"""A topic changes its mode on a cluster of three while stock clients write and read, and brokers are killed: each
record is there once, in its producer's order, and a reader that never rewinds meets each of them once."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from anabranch.testing.cluster_processes import ClusterProcesses
from support.clusters import wait_for_voters
from support.mode_load import (
    RUN_S_MAX,
    GappedLoad,
    Load,
    change,
    created,
    values_from_the_start,
    wait_until_changed,
)
from support.waiting import wait_until

LANE = 2**32


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    folder = tmp_path_factory.mktemp("mode-changes")
    settings = {"object.store": f"file://{folder}/store", "group.initial.rebalance.delay.ms": 0}
    with ClusterProcesses(folder / "cluster", settings=settings) as running:
        wait_for_voters(running)
        yield running


@pytest.fixture
def cluster(processes: ClusterProcesses) -> ClusterProcesses:
    processes.recover()
    return processes


def test_clients_go_on_through_every_change(cluster: ClusterProcesses, unique: str) -> None:
    created(cluster, unique, "ring")
    load = Load(cluster, unique)
    for mode in ("object", "ring", "object", "solo", "object", "ring", "solo", "ring"):
        change(cluster, unique, mode)
        wait_until_changed(cluster, unique, mode)
    load.finish()
    expected = [list(range(count)) for count in load.sent]
    assert values_from_the_start(cluster, unique, load.sent) == expected


def test_a_broker_that_is_killed_during_a_change_costs_no_record(
    cluster: ClusterProcesses, unique: str
) -> None:
    created(cluster, unique, "ring")
    load = Load(cluster, unique)
    for number, mode in enumerate(("object", "ring", "object")):
        load.wait_for_more()
        change(cluster, unique, mode)
        killed = cluster.ids[number]
        cluster.kill(killed)
        load.wait_for_more()
        cluster.restart(killed)
        wait_until_changed(cluster, unique, mode)
    load.finish()
    expected = [list(range(count)) for count in load.sent]
    assert values_from_the_start(cluster, unique, load.sent) == expected


def test_clients_go_on_while_a_topic_goes_from_the_object_store_into_branches(
    cluster: ClusterProcesses, unique: str
) -> None:
    created(cluster, unique, "object")
    load = GappedLoad(cluster, unique)
    wait_until(lambda: all(len(read) >= 20 for read in load.read), "records in the store", RUN_S_MAX)
    change(cluster, unique, "branch")
    wait_until_changed(cluster, unique, "branch")
    killed = cluster.ids[1]
    cluster.kill(killed)
    load.wait_for_more()
    cluster.restart(killed)
    load.finish()
    expected = [list(range(count)) for count in load.sent]
    assert [sorted(each) for each in values_from_the_start(cluster, unique, load.sent)] == expected
    first = [[number for offset, number in read if offset < LANE] for read in load.read]
    assert values_from_the_start(cluster, f"{unique}@0", [len(each) for each in first]) == first


def test_the_command_line_changes_a_mode_and_shows_it(cluster: ClusterProcesses, unique: str) -> None:
    created(cluster, unique, "ring")

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "anabranch", "topic", *words, "--bootstrap", cluster.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=True)
        return done.stdout

    assert "goes over to mode object" in run("alter", unique, "--mode", "object", "--partitions", "5")
    wait_until_changed(cluster, unique, "object")
    assert "Mode: object" in run("describe", unique)
    assert len(json.loads(run("describe", unique, "--format", "json"))["partitions"]) == 5
