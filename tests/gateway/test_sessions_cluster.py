"""Sessions by HTTP in a cluster: every request of one goes to another broker, and the group's coordinator dies."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.testing.cluster_processes import ClusterProcesses
from anabranch.wire.api_keys import ApiKey
from clients.registries import or_skip, program
from support.gateway_client import Answer
from support.http_client import ask_at
from support.nginx import Nginx
from support.raw_client import RawClient
from support.waiting import wait_until

RECORDS = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


class Wanderer:
    """A session that asks another broker each time."""

    def __init__(self, cluster: ClusterProcesses, group: str, topic: str) -> None:
        self._cluster = cluster
        self._asked = 0
        self.path = f"/v1/groups/{group}/sessions"
        answer = self.ask("POST", "", {"topics": [topic], "from": "earliest", "timeout_ms": 20_000})
        assert answer.status == 201, answer
        self.path = answer.headers["location"]
        self.cursor = ""

    def ask(self, method: str, target: str, body: object = None) -> Answer:
        live = [info for info in self._cluster.brokers if self._cluster.is_alive(info.id)]
        self._asked += 1
        address = live[self._asked % len(live)].http
        assert address is not None
        return ask_at(address, method, self.path + target, body)

    def poll(self) -> list[tuple[int, str, str]]:
        """(partition, offset, value); nothing while the cluster is between two leaders."""
        cursor = f"&cursor={self.cursor}&commit=true" if self.cursor else ""
        answer = self.ask("POST", f"/records?wait_ms=500&max_records=5{cursor}")
        if answer.status in (503, 504):
            return []
        assert answer.status == 200, answer
        self.cursor = answer.json["cursor"]
        return [(row["partition"], row["offset"], row["value"]) for row in answer.json["records"]]


def test_session_goes_on_at_any_broker_and_when_its_coordinator_dies(cluster: ClusterProcesses) -> None:
    topic, group = "wandered", "wanderers"
    _make_topic(cluster, topic)
    session = Wanderer(cluster, group, topic)
    _publish(cluster, topic, range(RECORDS // 2))
    found = _poll_until(session, RECORDS // 2)
    killed = _coordinator(cluster, group)
    cluster.kill(killed)
    _publish(cluster, topic, range(RECORDS // 2, RECORDS))
    found += _poll_until(session, RECORDS // 2, found)
    cluster.restart(killed)
    assert {value for _, _, value in found} == {str(number) for number in range(RECORDS)}
    by_partition: dict[int, list[int]] = {}
    for partition, offset, _ in dict.fromkeys(found):
        by_partition.setdefault(partition, []).append(int(offset))
    for offsets in by_partition.values():
        assert offsets == list(range(len(offsets)))
    assert len(by_partition) == 3
    assert wait_until(lambda: session.ask("DELETE", "").status == 204, "goodbye")


@pytest.mark.interop
def test_session_behind_a_proxy_that_asks_brokers_in_turn(cluster: ClusterProcesses, tmp_path: Path) -> None:
    or_skip(lambda: program("nginx", "nginx-light"))
    cluster.recover()
    _make_topic(cluster, "turns")
    doors = [info.http for info in cluster.brokers if info.http is not None]
    with Nginx(tmp_path, *doors) as proxy:
        asked = {"topics": ["turns"], "from": "earliest"}
        path = ask_at(proxy.address, "POST", "/v1/groups/turns/sessions", asked).headers["location"]
        for number in range(30):
            target = f"/v1/topics/turns/records?partition={number % 3}"
            assert ask_at(proxy.address, "POST", target, {"value": str(number)}).status == 200
        found: list[str] = []
        cursor = ""
        while len(found) < 30:
            answer = ask_at(proxy.address, "POST", f"{path}/records?wait_ms=2000&max_records=4{cursor}")
            assert answer.status == 200, answer
            found += [record["value"] for record in answer.json["records"]]
            cursor = f"&commit=true&cursor={answer.json['cursor']}"
        assert sorted(map(int, found)) == list(range(30))
        assert ask_at(proxy.address, "DELETE", path).status == 204
        assert proxy.asked() == set(doors)


def _poll_until(
    session: Wanderer, count: int, before: list[tuple[int, str, str]] | None = None
) -> list[tuple[int, str, str]]:
    """So many new records. What was committed is not read again, unless a broker died before it had said so."""
    found: list[tuple[int, str, str]] = []

    def enough() -> bool:
        found.extend(session.poll())
        return len(set(found) - set(before or ())) >= count

    wait_until(enough, f"{count} records", 60.0)
    return found


def _coordinator(cluster: ClusterProcesses, group: str) -> int:
    with RawClient(cluster.brokers[0].kafka) as client:
        body = {"key_type": 0, "coordinator_keys": [group]}
        return int(client.ask(ApiKey.FIND_COORDINATOR, 4, body)["coordinators"][0]["node_id"])


def _make_topic(cluster: ClusterProcesses, topic: str) -> None:
    wanted = {"name": topic, "num_partitions": 3, "replication_factor": 3, "configs": []}
    with RawClient(cluster.brokers[0].kafka) as client:
        (row,) = client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [wanted]})["topics"]
    assert row["error_code"] == 0, row


def _publish(cluster: ClusterProcesses, topic: str, numbers: range) -> None:
    """By HTTP, to any broker, each to the partition of its number."""
    live = [info for info in cluster.brokers if cluster.is_alive(info.id)]
    for number in numbers:
        address = live[number % len(live)].http
        assert address is not None
        target = f"/v1/topics/{topic}/records?partition={number % 3}"

        def is_written(address: str = address, target: str = target, number: int = number) -> bool:
            return ask_at(address, "POST", target, {"value": str(number)}).status == 200

        wait_until(is_written, f"record {number}", 60.0)
