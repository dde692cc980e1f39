"""`anabranch cluster` against a running one, and brokers started one by one: who keeps what, and who may not leave."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from anabranch.local_cluster.cluster_client import ClusterClient
from anabranch.local_cluster.layout import make_layout, prepare
from anabranch.local_cluster.ports import random_block
from anabranch.testing import ClusterProcesses
from chaos.cluster_run import make_topic
from support.waiting import wait_until

RUN_S_MAX = 90
RECORDS = 400


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    settings = {"flush": "os", "offsets.topic.num.partitions": 2}
    with ClusterProcesses(tmp_path_factory.mktemp("four"), brokers=4, settings=settings) as running:
        wait_until(lambda: len(ask(running, "status")["brokers"]) == 4, "all four are in the cluster")
        yield running


def run(cluster: ClusterProcesses, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anabranch", "cluster", *map(str, arguments)]
    command += ["--bootstrap", cluster.bootstrap, "--format", "json"]
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)


def ask(cluster: ClusterProcesses, *arguments: object) -> Any:
    result = run(cluster, *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def keepers(cluster: ClusterProcesses, topic: str) -> list[set[int]]:
    return [{copy["id"] for copy in row["replicas"]} for row in ask(cluster, "ring", "--topic", topic)]


def fill(cluster: ClusterProcesses, topic: str, partitions: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(30) == 0


def is_whole(cluster: ClusterProcesses, topic: str) -> bool:
    rows = ask(cluster, "ring", "--topic", topic)
    return sum(row["end"] or 0 for row in rows) == RECORDS and all(
        copy["in_sync"] and copy["lag"] == 0 for row in rows for copy in row["replicas"]
    )


def test_status_names_every_broker_and_one_leader_of_the_quorum(cluster: ClusterProcesses) -> None:
    facts = ask(cluster, "status")
    assert [broker["id"] for broker in facts["brokers"]] == [0, 1, 2, 3]
    assert [broker["role"] for broker in facts["brokers"]].count("leader") == 1
    assert facts["quorum"]["leader"] == cluster.controller()
    assert facts["under_replicated"] == []


def test_ring_has_every_copy_in_sync_and_no_lag(cluster: ClusterProcesses) -> None:
    make_topic(cluster.bootstrap, "seen", 4, 3)
    fill(cluster, "seen", 4)
    wait_until(lambda: is_whole(cluster, "seen"), "every copy has everything")
    rows = ask(cluster, "ring", "--topic", "seen")
    leaders = cluster.leaders("seen")
    assert {row["partition"]: row["leader"] for row in rows} == leaders
    assert all(len(row["replicas"]) == 3 for row in rows)


def test_drain_moves_everything_off_and_loses_nothing(cluster: ClusterProcesses) -> None:
    make_topic(cluster.bootstrap, "drained", 4, 2)
    fill(cluster, "drained", 4)
    assert any(3 in kept for kept in keepers(cluster, "drained"))
    assert ask(cluster, "drain", 3)["done"]
    assert all(3 not in kept and len(kept) == 2 for kept in keepers(cluster, "drained"))
    wait_until(lambda: is_whole(cluster, "drained"), "every copy has everything")
    assert ask(cluster, "add", 3)["done"]
    assert any(3 in kept for kept in keepers(cluster, "drained"))
    wait_until(lambda: is_whole(cluster, "drained"), "every copy has everything")


def test_broker_with_the_only_copy_may_not_leave(cluster: ClusterProcesses) -> None:
    make_topic(cluster.bootstrap, "alone", 4, 1)
    (owner, *_) = keepers(cluster, "alone")[0]
    result = run(cluster, "remove", owner, "--yes")
    assert result.returncode == 1
    assert f"Broker {owner} holds the only copy of alone-0" in json.loads(result.stderr)["error"]
    assert len(ask(cluster, "status")["brokers"]) == 4


def test_dead_broker_is_taken_out_once_others_keep_what_it_kept(cluster: ClusterProcesses) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.delete_topics(["alone"])["alone"].result()
    before = ask(cluster, "status")
    assert (before["unconfirmed"], before["disputed"], before["under_replicated"]) == ([], [], [])
    cluster.kill(3)
    at_once = ask(cluster, "status")
    assert at_once["brokers"][3]["state"] != "up", "the others have not missed it yet"
    assert at_once["unconfirmed"] or at_once["under_replicated"]
    wait_until(
        lambda: ask(cluster, "status")["brokers"][3]["state"] == "fenced", "it is missed", seconds_max=60
    )
    refused = run(cluster, "remove", 3, "--yes")
    assert "Too few copies are up to move drained-" in json.loads(refused.stderr)["error"]
    admin.delete_topics(["drained"])["drained"].result()
    assert ask(cluster, "remove", 3, "--yes")["removed"] == 3
    assert [broker["id"] for broker in ask(cluster, "status")["brokers"]] == [0, 1, 2]
    assert all(3 not in kept for kept in keepers(cluster, "seen"))


def test_brokers_of_one_settings_file_find_each_other(tmp_path: Path) -> None:
    ports = random_block("127.0.0.1", 4, random.Random())
    layout = make_layout(tmp_path, ports[:2], ports[2:], None)
    prepare(layout)
    started = []
    try:
        for number in ("0", "1"):
            command = [sys.executable, "-m", "anabranch", "up", "--config", str(layout.config_file)]
            command += ["--broker-id", number, "--format", "json"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            started.append(process)
            assert process.stdout is not None
            line = json.loads(process.stdout.readline())
            assert (line["broker_id"], line["peer"]) == (int(number), layout.places[int(number)].peer)
        with ClusterClient(layout.bootstrap) as client:
            wait_until(lambda: len(client.metadata([])["brokers"]) == 2, "both are in the cluster")
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.communicate(timeout=RUN_S_MAX)
