"""What clients of a ring are told: by its leader, by the others, and by a new leader."""

from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.broker.ring.driver import ring_driver
from anabranch.values import Offset
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.broker_bench import batch_of
from support.broker_cluster import close_all
from support.ring_cluster import RingCluster


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


def cluster_with_topic(**settings: str) -> RingCluster:
    cluster = RingCluster(**settings)
    cluster.start(1, 2, 3)
    cluster.settle()
    cluster.topic("t")
    return cluster


def only(answer: dict[str, Any]) -> dict[str, Any]:
    """The one partition of an answer."""
    topic = (answer.get("responses") or answer.get("topics"))[0]
    rows = topic.get("partition_responses") or topic.get("partitions")
    return dict(rows[0])


def others(cluster: RingCluster, leader: int) -> list[int]:
    return [each for each in sorted(cluster.lives) if each != leader]


def list_offsets(
    cluster: RingCluster, broker_id: int, timestamp: int = -1, version: int = 7
) -> dict[str, Any]:
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": [asked]}]}
    return only(cluster.ask(broker_id, ApiKey.LIST_OFFSETS, version, body))


def end_of_epoch(cluster: RingCluster, broker_id: int, epoch: int) -> dict[str, Any]:
    asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
    body = {"replica_id": -1, "topics": [{"topic": "t", "partitions": [asked]}]}
    return only(cluster.ask(broker_id, ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, body))


@pytest.mark.parametrize("acks", [1, -1])
def test_the_leader_serves_and_the_others_name_it(acks: int) -> None:
    cluster = cluster_with_topic()
    leader = cluster.led("t")
    assert leader is not None
    assert only(cluster.produce(leader, "t", b"a", b"b", acks=acks))["error_code"] == 0
    generation = cluster.partition(leader, "t").generation
    read = only(cluster.fetch(leader, "t", 0))
    assert (read["error_code"], read["high_watermark"], bool(read["records"])) == (0, 2, True)
    cluster.run(1000)
    for other in others(cluster, leader):
        for answer in (cluster.produce(other, "t", b"c", acks=acks), cluster.fetch(other, "t", 0)):
            row = only(answer)
            assert row["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert row["current_leader"] == {"leader_id": leader, "leader_epoch": generation}
            endpoint = answer["node_endpoints"][0]
            assert (endpoint["node_id"], endpoint["port"]) == (leader, 9000 + leader)
        assert list_offsets(cluster, other)["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert end_of_epoch(cluster, other, generation)["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_versions_without_hints_are_refused_as_ever() -> None:
    cluster = cluster_with_topic()
    other = others(cluster, cluster.led("t") or 0)[0]
    assert (
        only(cluster.produce(other, "t", b"a", version=9))["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
    assert only(cluster.fetch(other, "t", 0, version=11))["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_acks_1_waits_for_a_second_copy_unless_told_otherwise() -> None:
    for setting, is_answered in (("safe", False), ("leader", True)):
        cluster = cluster_with_topic(**{"ring.acks1": setting})
        leader = cluster.led("t") or 0
        cluster.run(200)
        cluster.net.isolate(leader)  # type: ignore[arg-type]
        life = cluster.lives[leader]
        pending: list[Any] = []
        task = cluster.loop.create_task(_collect(cluster, leader, pending))
        cluster.run(200)
        assert bool(pending) is is_answered, setting
        assert life.broker.topics.partition("t", 0).high_watermark == 0
        task.cancel()
        cluster.run(10)


async def _collect(cluster: RingCluster, broker_id: int, pending: list[Any]) -> None:
    data = [{"name": "t", "partition_data": [{"index": 0, "records": bytes(batch_of(b"a"))}]}]
    body = {"transactional_id": None, "acks": 1, "timeout_ms": 5000, "topic_data": data}
    pending.append(await cluster.lives[broker_id].client.ask(ApiKey.PRODUCE, 9, body))


def test_more_copies_than_make_a_record_safe_are_refused() -> None:
    cluster = cluster_with_topic()
    cluster.topic("three", min_insync_replicas="3")
    cluster.topic("two", min_insync_replicas="2")
    answer = cluster.produce(cluster.led("three") or 0, "three", b"a")
    assert only(answer)["error_code"] == ErrorCode.NOT_ENOUGH_REPLICAS
    assert only(cluster.produce(cluster.led("two") or 0, "two", b"a"))["error_code"] == 0


def test_a_reader_survives_the_death_of_the_leader() -> None:
    cluster = cluster_with_topic()
    first = cluster.led("t") or 0
    for number in range(5):
        cluster.produce(first, "t", b"%d" % number)
    old = cluster.partition(first, "t").generation
    cluster.run(100)
    cluster.kill(first)
    cluster.until(lambda: cluster.led("t") is not None)
    second = cluster.led("t") or 0
    new = cluster.partition(second, "t").generation
    assert new > old
    read = only(cluster.fetch(second, "t", 5, last_fetched=old, epoch=new))
    assert (read["error_code"], read["high_watermark"]) == (0, 5)
    stale = cluster.fetch(second, "t", 5, epoch=old)
    assert only(stale)["error_code"] == ErrorCode.FENCED_LEADER_EPOCH
    assert only(stale)["current_leader"] == {"leader_id": second, "leader_epoch": new}
    assert only(cluster.fetch(second, "t", 5, epoch=new + 1))["error_code"] == ErrorCode.UNKNOWN_LEADER_EPOCH
    told = end_of_epoch(cluster, second, old)
    assert (told["leader_epoch"], told["end_offset"]) == (old, 5)
    assert end_of_epoch(cluster, second, new + 2)["end_offset"] == -1
    assert list_offsets(cluster, second)["offset"] == 5


def test_a_reader_of_records_that_were_cut_is_told_where_it_diverges() -> None:
    cluster = cluster_with_topic()
    leader = cluster.led("t") or 0
    cluster.produce(leader, "t", b"a", b"b")
    generation = cluster.partition(leader, "t").generation
    row = only(cluster.fetch(leader, "t", 2, last_fetched=generation + 3))
    assert (row["error_code"], row["diverging_epoch"]) == (0, {"epoch": generation, "end_offset": 2})
    row = only(cluster.fetch(leader, "t", 2, last_fetched=generation))
    assert row["diverging_epoch"] == {"epoch": -1, "end_offset": -1}


def test_between_the_high_watermark_and_the_end_there_is_nothing_yet() -> None:
    cluster = cluster_with_topic()
    leader = cluster.led("t") or 0
    cluster.produce(leader, "t", b"a", b"b")
    cluster.partition(leader, "t").high_watermark = Offset(1)  # As one that leads since a moment.
    row = only(cluster.fetch(leader, "t", 2, wait_ms=0))
    assert (row["error_code"], row["records"] or b"") == (0, b"")
    assert only(cluster.fetch(leader, "t", 3, wait_ms=0))["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_new_leader_does_not_say_where_the_log_ends_before_it_knows() -> None:
    cluster = cluster_with_topic()
    leader = cluster.led("t") or 0
    cluster.produce(leader, "t", b"a", b"b")
    replica = ring_driver(cluster.partition(leader, "t")).mode.replica  # type: ignore[union-attr]
    assert replica.leader is not None
    replica.leader.start = Offset(3)
    assert list_offsets(cluster, leader)["error_code"] == ErrorCode.OFFSET_NOT_AVAILABLE
    assert list_offsets(cluster, leader, version=4)["error_code"] == ErrorCode.LEADER_NOT_AVAILABLE
    assert list_offsets(cluster, leader, timestamp=-2)["error_code"] == 0


# --- rot


def rot(cluster: RingCluster, broker_id: int, position: int) -> None:
    """A bit of the log turns over."""
    log = cluster.partition(broker_id, "t").log
    cluster.lives[broker_id].disk.flip_bit(log.segments[0].file.path, position)


def bytes_of(cluster: RingCluster, broker_id: int) -> bytes:
    log = cluster.partition(broker_id, "t").log
    return log.segments[0].file.pread(log.segments[0].published_bytes, 0)


def filled() -> tuple[RingCluster, int]:
    cluster = cluster_with_topic()
    leader = cluster.led("t") or 0
    for number in range(10):
        cluster.produce(leader, "t", b"%d" % number * 50)
    cluster.run(1000)
    return cluster, leader


@pytest.mark.parametrize(
    ("position", "offset"),
    [(8, 0), (13, 0), (300, 2), (700, 5)],
    ids=["a length", "a generation", "a record", "another"],
)
def test_what_has_rotted_is_fetched_from_another_broker(position: int, offset: int) -> None:
    cluster, leader = filled()
    good = bytes_of(cluster, leader)
    rot(cluster, leader, position)
    assert only(cluster.fetch(leader, "t", offset))["error_code"] == ErrorCode.CORRUPT_MESSAGE
    before = only(cluster.fetch(leader, "t", 0))
    assert before["records"] or before["error_code"] == ErrorCode.CORRUPT_MESSAGE
    assert only(cluster.fetch(leader, "t", offset + 1))["error_code"] == 0
    cluster.run(1000)
    assert bytes_of(cluster, leader) == good
    assert only(cluster.fetch(leader, "t", 0))["error_code"] == 0
    assert cluster.broker(leader).peering.repairs.regions_repaired_total == 1  # type: ignore[union-attr]


def test_without_a_healthy_copy_everything_stays_as_it_is() -> None:
    cluster, leader = filled()
    for broker_id in (1, 2, 3):
        rot(cluster, broker_id, 300)
    bad = bytes_of(cluster, leader)
    assert only(cluster.fetch(leader, "t", 2))["error_code"] == ErrorCode.CORRUPT_MESSAGE
    cluster.run(6000)
    assert only(cluster.fetch(leader, "t", 2))["error_code"] == ErrorCode.CORRUPT_MESSAGE
    assert bytes_of(cluster, leader) == bad
    repairs = cluster.broker(leader).peering.repairs  # type: ignore[union-attr]
    assert (repairs.regions_repaired_total, repairs.regions_beyond_repair_total) == (0, 1)


def test_a_follower_that_the_leader_cannot_read_for_is_served_after_the_repair() -> None:
    cluster, leader = filled()
    behind = others(cluster, leader)[1]
    cluster.kill(behind, lose_disk=True)
    rot(cluster, leader, 300)
    cluster.start(behind)
    cluster.until(lambda: cluster.broker(behind).topics.find_partition("t", 0) is not None)
    cluster.until(lambda: cluster.partition(behind, "t").log.end_offset == 10)
    assert cluster.broker(leader).peering.repairs.regions_repaired_total == 1  # type: ignore[union-attr]
