"""What a test may do to the processes of a cluster: kill, pause, restart, all in any order."""

import socket
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from anabranch.errors import LocalClusterError
from anabranch.local_cluster.cluster_client import ClusterClient
from anabranch.testing import ClusterProcesses
from support.waiting import wait_until

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    with ClusterProcesses(tmp_path_factory.mktemp("processes"), settings={"flush": "os"}) as running:
        yield running


def answers(address: str, seconds_max: float = 5.0) -> bool:
    with ClusterClient(address, seconds_max) as client:
        client.metadata([])
    return True


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_every_broker_answers_and_has_its_own_folder(cluster: ClusterProcesses) -> None:
    assert [broker.id for broker in cluster.brokers] == cluster.ids == [0, 1, 2]
    assert all(answers(broker.kafka) for broker in cluster.brokers)
    assert len({broker.folder for broker in cluster.brokers}) == 3


def test_killed_broker_is_gone_and_comes_back_on_its_port(cluster: ClusterProcesses) -> None:
    before = cluster.brokers[1]
    cluster.kill(1)
    assert not cluster.is_alive(1)
    assert [broker.id for broker in cluster.brokers] == [0, 2]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(before.kafka.rpartition(":")[2])), 5)
    cluster.restart(1)
    after = cluster.brokers[1]
    assert (after.kafka, after.folder) == (before.kafka, before.folder)
    assert after.pid != before.pid
    assert answers(after.kafka)


def test_broker_without_a_majority_refuses_clients_so_that_they_go_elsewhere(
    cluster: ClusterProcesses,
) -> None:
    bootstrap, brokers = cluster.bootstrap, cluster.brokers
    for broker in cluster.ids:
        cluster.kill(broker)
    cluster._processes[0].start()
    try:
        waits = "clients are not served yet"
        wait_until(lambda: waits in cluster.log_of(0), "it has looked for the others in vain")
        host, _, port = brokers[0].kafka.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), 5)
        with pytest.raises(KafkaException) as failure:
            AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=3)
        assert failure.value.args[0].code() == KafkaError._TRANSPORT
        cluster.restart(1)
        assert len(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).brokers) > 0
    finally:
        cluster.recover()


def test_paused_broker_does_nothing_until_it_is_resumed(cluster: ClusterProcesses) -> None:
    cluster.pause(0)
    deadline = time.monotonic() + 5
    while state_of(cluster.brokers[0].pid) != "T":
        assert time.monotonic() < deadline
    cluster.resume(0)
    assert answers(cluster.brokers[0].kafka)


def test_heal_ends_pauses_and_cuts_and_recover_starts_the_dead(cluster: ClusterProcesses) -> None:
    cluster.pause(0)
    cluster.isolate(1)
    cluster.kill(2)
    cluster.heal()
    assert answers(cluster.brokers[0].kafka)
    assert not cluster.is_alive(2)
    cluster.recover()
    assert all(answers(broker.kafka) for broker in cluster.brokers)


def test_cut_of_a_broker_that_is_not_there_is_refused(cluster: ClusterProcesses) -> None:
    with pytest.raises(ValueError, match="no broker 7"):
        cluster.cut(0, 7)


def test_running_broker_is_restarted_in_order(cluster: ClusterProcesses) -> None:
    before = cluster.brokers[2].pid
    cluster.restart(2)
    assert cluster.brokers[2].pid != before
    assert answers(cluster.brokers[2].kafka)


def test_broker_started_from_a_passing_thread_outlives_it(cluster: ClusterProcesses) -> None:
    cluster.kill(1)
    thread = threading.Thread(target=cluster.restart, args=(1,))
    thread.start()
    thread.join()
    time.sleep(0.3)  # The signal that must not come would come at once.
    assert cluster.is_alive(1)
    assert answers(cluster.brokers[1].kafka)


def test_who_leads_what_nobody_knows_is_a_timeout(cluster: ClusterProcesses) -> None:
    with pytest.raises(TimeoutError, match="a leader of nothing-0"):
        cluster.leader_of("nothing", 0, timeout_seconds=0.2)


def test_setting_that_cannot_be_says_why_and_leaves_nobody_behind(tmp_path: Path) -> None:
    broken = ClusterProcesses(tmp_path, brokers=2, settings={"num.partitions": 0})
    with pytest.raises(LocalClusterError, match=r"did not start: num\.partitions=0"):
        broken.start()
    assert broken.brokers == []


def test_temporary_folder_is_removed() -> None:
    with ClusterProcesses(brokers=1) as alone:
        assert alone.folder.is_dir()
    assert not alone.folder.exists()


def test_fixture_gives_every_test_a_whole_cluster(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def anabranch_cluster_settings():
            return {"flush": "os"}
        """
    )
    pytester.makepyfile(
        """
        def test_first(anabranch_cluster):
            anabranch_cluster.kill(0)
            anabranch_cluster.pause(1)

        def test_second(anabranch_cluster):
            assert [broker.id for broker in anabranch_cluster.brokers] == [0, 1, 2]
            anabranch_cluster.restart(1)
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)
