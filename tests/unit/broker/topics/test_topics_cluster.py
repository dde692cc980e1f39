"""Topics of a cluster: what is on a broker's disk may be of later than the table it starts with."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from anabranch.broker.peers.messages import NameDisk
from anabranch.broker.upkeep import housekeeping
from anabranch.cluster.metadata.entries import boundary_entry, move_entry
from anabranch.cluster.metadata.rows import Placement
from anabranch.values import BrokerId, Generation, Offset
from anabranch.wire.api_keys import ApiKey
from support.broker_cluster import close_all
from support.ring_cluster import RingCluster


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


def cluster_with_topic() -> RingCluster:
    cluster = RingCluster()
    cluster.start(1, 2, 3)
    cluster.settle()
    cluster.topic("t")
    return cluster


def produced(cluster: RingCluster, *values: bytes) -> None:
    leader = cluster.led("t")
    assert leader is not None
    row = cluster.produce(leader, "t", *values)["responses"][0]["partition_responses"][0]
    assert row["error_code"] == 0


def ends(cluster: RingCluster) -> list[int]:
    return [cluster.partition(broker_id, "t").log.end_offset for broker_id in sorted(cluster.lives)]


def test_records_of_a_topic_made_again_survive_the_death_of_all_brokers_before_their_next_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = cluster_with_topic()
    produced(cluster, b"old", b"old", b"old")
    cluster.run(3 * int(housekeeping.CHECKPOINT_SECONDS * 1000))
    monkeypatch.setattr(housekeeping.Housekeeping, "checkpoint", _no_checkpoint)
    cluster.remove_topic("t")
    cluster.topic("t")
    produced(cluster, b"new")
    cluster.run(1000)
    assert ends(cluster) == [1, 1, 1]
    for broker_id in (1, 2, 3):
        cluster.kill(broker_id)
    cluster.start(1, 2, 3)
    cluster.until(lambda: cluster.led("t") is not None)
    cluster.run(1000)
    assert ends(cluster) == [1, 1, 1]
    assert [cluster.lives[each].disk.exists("data/quarantine") for each in (1, 2, 3)] == [False] * 3


def test_a_follower_remembers_where_its_leader_let_the_log_begin() -> None:
    cluster = cluster_with_topic()
    produced(cluster, b"deleted")
    produced(cluster, b"kept")
    leader = cluster.led("t")
    assert leader is not None
    asked = {"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}
    cluster.ask(leader, ApiKey.DELETE_RECORDS, 2, {"topics": [asked], "timeout_ms": 5000})
    cluster.run(3 * int(housekeeping.CHECKPOINT_SECONDS * 1000))
    follower = next(each for each in cluster.lives if each != leader)
    assert cluster.partition(follower, "t").log.start_offset == 1
    cluster.kill(follower)
    cluster.net.isolate(BrokerId(follower))
    cluster.start(follower)
    assert cluster.partition(follower, "t").log.start_offset == 1


async def _no_checkpoint(_: housekeeping.Housekeeping) -> None:
    """The kill comes first."""


def test_what_moved_away_is_not_begun_anew_by_a_start_with_an_older_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = cluster_with_topic()
    move(cluster, [3])
    produced(cluster, b"a")
    cluster.run(3 * int(housekeeping.CHECKPOINT_SECONDS * 1000))
    monkeypatch.setattr(housekeeping.Housekeeping, "checkpoint", _no_checkpoint)
    move(cluster, [1, 2])
    cluster.until(lambda: not cluster.lives[3].disk.exists("data/t-0"))
    produced(cluster, b"b")
    for broker_id in (1, 2, 3):
        cluster.kill(broker_id)
    cluster.start(1, 2, 3)
    assert cluster.broker(3).metadata.table.topics["t"].placements[0].replicas == (3,), (
        "it knows no better yet"
    )
    assert cluster.broker(3).topics.find_partition("t", 0) is None
    cluster.until(lambda: cluster.led("t") is not None)
    produced(cluster, b"c")
    assert [cluster.partition(each, "t").log.end_offset for each in (1, 2)] == [3, 3]


def move(cluster: RingCluster, replicas: list[int]) -> None:
    partitions = [{"partition_index": 0, "replicas": replicas}]
    body = {"timeout_ms": 5000, "allow_replication_factor_change": True}
    topics = [{"name": "t", "partitions": partitions}]
    answer = cluster.ask(1, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, {**body, "topics": topics})
    assert answer["error_code"] == 0
    table = cluster.broker(1).metadata.table
    cluster.until(lambda: list(table.topics["t"].placements[0].replicas) == replicas)
    cluster.until(lambda: cluster.led("t") is not None)


def test_nothing_is_thrown_away_before_all_that_was_agreed_on_is_known() -> None:
    """Entries that a start reads again may say that a partition left, and later ones that it came back."""
    cluster = cluster_with_topic()
    produced(cluster, b"a")
    cluster.run(3 * int(housekeeping.CHECKPOINT_SECONDS * 1000))
    cluster.kill(3)
    cluster.net.isolate(BrokerId(3))
    cluster.start(3)
    broker, disk = cluster.broker(3), cluster.lives[3].disk
    topic = broker.metadata.table.topics["t"]
    away = Placement((BrokerId(1), BrokerId(2)), view=1, start=Offset(1), generation=Generation(1))

    async def learn() -> None:
        move = move_entry(topic.topic_id, 0, away.replicas)
        broker.metadata.table.apply(move, 900)
        boundary = boundary_entry(topic.topic_id, 0, replace(away, move=900))
        broker.metadata.table.apply(boundary, 901)
        broker.topics._follow(Offset(901), boundary)

    cluster.do(learn())
    cluster.run(3000)
    assert disk.exists("data/t-0")
    broker.topics.follow()
    cluster.run(100)
    assert not disk.exists("data/t-0")


def test_after_the_loss_of_a_disk_one_line_names_all_that_others_must_fill_again_and_an_error_what_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = RingCluster()
    cluster.start(1, 2, 3)
    cluster.settle()
    for name in ("t", "u", "v"):
        cluster.topic(name)
    lost = next(each for each in (3, 2) if each != cluster.leader_id)
    alone = next(name for name in ("a", "b", "c", "d", "e", "f") if _placed_alone(cluster, name) == lost)
    cluster.kill(lost, lose_disk=True)
    cluster.run(5000)
    caplog.clear()
    cluster.start(lost)
    cluster.settle()
    cluster.until(lambda: cluster.broker(lost).topics.are_all_open)
    cluster.run(3000)
    said = [record.message for record in caplog.records if "may lack" in record.message]
    assert said == [
        "3 partitions may lack records that were safe, and count when others gave them all: t-0, u-0, v-0"
    ]
    errors = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert (
        f"{alone}-0 begins empty: its only copy was on another disk, with which this broker ran before"
        in errors
    )


def test_a_new_disk_is_agreed_on_once_however_often_it_is_asked_for() -> None:
    cluster = cluster_with_topic()
    lost = BrokerId(next(each for each in (3, 2) if each != cluster.leader_id))
    cluster.kill(lost, lose_disk=True)
    cluster.run(5000)
    cluster.start(lost)
    cluster.settle()
    table, disk = cluster.leader.metadata.table, cluster.broker(lost).metadata.me.directory_id
    cluster.until(lambda: table.topics["t"].placements[0].directory_of(lost) == disk)
    end, peering = cluster.leader.metadata.applied_end, cluster.leader.peering
    assert peering is not None
    again = NameDisk(table.topics["t"].topic_id, 0, lost, table.brokers[lost].epoch)
    cluster.do(peering.moves.asked(again))
    assert cluster.leader.metadata.applied_end == end


def _placed_alone(cluster: RingCluster, name: str) -> int:
    body = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    cluster.ask(1, ApiKey.CREATE_TOPICS, 7, {"topics": [body], "timeout_ms": 5000})
    table = cluster.leader.metadata.table
    return table.placement(table.topics[name], 0).replicas[0]
