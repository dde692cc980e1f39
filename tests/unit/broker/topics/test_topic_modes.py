"""A topic's mode in a cluster: what it means for its copies, and what happens when it is changed."""

from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.broker_bench import batch_of
from support.broker_cluster import close_all
from support.whole_cluster import WholeCluster, whole_cluster_of

Body = dict[str, Any]


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


def create(cluster: WholeCluster, name: str, mode: str | None, factor: int = -1, **more: Any) -> Body:
    configs = [{"name": "anabranch.mode", "value": mode}] if mode is not None else []
    row = {
        "name": name,
        "num_partitions": 2,
        "replication_factor": factor,
        "assignments": [],
        "configs": configs,
    }
    body = {"topics": [{**row, **more}], "timeout_ms": 10_000, "validate_only": False}
    return dict(cluster.ask(cluster.follower_id, ApiKey.CREATE_TOPICS, 7, body)["topics"][0])


def alter(cluster: WholeCluster, name: str, mode: str | None) -> Body:
    config = {"name": "anabranch.mode", "config_operation": 0 if mode else 1, "value": mode}
    resource = {"resource_type": 2, "resource_name": name, "configs": [config]}
    body = {"resources": [resource], "validate_only": False}
    answer = cluster.ask(cluster.follower_id, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body)
    return dict(answer["responses"][0])


def mode_of(cluster: WholeCluster, name: str) -> tuple[str, int]:
    """The value that is told, and where it comes from."""
    resource = {"resource_type": 2, "resource_name": name, "configuration_keys": ["anabranch.mode"]}
    body = {"resources": [resource], "include_synonyms": True, "include_documentation": False}
    row = cluster.ask(cluster.follower_id, ApiKey.DESCRIBE_CONFIGS, 4, body)["results"][0]["configs"][0]
    return row["value"], row["config_source"]


def copies(cluster: WholeCluster, name: str) -> set[int]:
    table = cluster.leader.metadata.table
    return {len(placement.replicas) for placement in table.placements(table.topics[name])}


def produce(cluster: WholeCluster, name: str, index: int, value: bytes) -> int:
    """Where it was written, by whoever leads by now."""
    for _ in range(300):
        broker = next(iter(cluster.lives.values())).broker
        leader = broker.leader_of(broker.topics.known(name), index)
        if leader in cluster.lives:
            data = [{"name": name, "partition_data": [{"index": index, "records": bytes(batch_of(value))}]}]
            body = {"transactional_id": None, "acks": -1, "timeout_ms": 3000, "topic_data": data}
            answer = cluster.ask(leader, ApiKey.PRODUCE, 9, body)
            row = answer["responses"][0]["partition_responses"][0]
            if row["error_code"] == 0:
                return int(row["base_offset"])
        cluster.run(50)
    raise AssertionError("nobody took it")


OWN, DEFAULT = 1, 5


def test_a_new_topic_has_the_copies_of_its_mode_and_says_so() -> None:
    cluster = whole_cluster_of(3)
    for name, mode, factor, count in (
        ("unset", None, -1, 3),
        ("ring", "ring", -1, 3),
        ("pair", "ring", 2, 2),
        ("solo", "solo", -1, 1),
        ("one", "solo", 1, 1),
        ("chosen", None, 1, 1),
    ):
        answer = create(cluster, name, mode, factor)
        assert (answer["error_code"], answer["replication_factor"]) == (0, count), answer
        told = next(config["value"] for config in answer["configs"] if config["name"] == "anabranch.mode")
        expected = "ring" if count > 1 else "solo"
        assert told == expected
        assert mode_of(cluster, name) == (expected, OWN if mode else DEFAULT)
    cluster.run(10_000)
    assert [copies(cluster, name) for name in ("unset", "pair", "solo", "one", "chosen")] == [
        {3},
        {2},
        {1},
        {1},
        {1},
    ]


def test_what_makes_no_sense_is_refused_with_a_sentence() -> None:
    cluster = whole_cluster_of(3)
    for mode, factor, code, words in (
        ("ring", 1, E.INVALID_REPLICATION_FACTOR, "one is no ring"),
        ("solo", 3, E.INVALID_REPLICATION_FACTOR, "has one replica, not 3"),
        ("object", -1, E.INVALID_CONFIG, "start it with --object-store"),
        ("river", -1, E.INVALID_CONFIG, "is not a mode"),
    ):
        answer = create(cluster, "t", mode, factor)
        assert answer["error_code"] == code
        assert words in answer["error_message"]
    assigned = [{"partition_index": 0, "broker_ids": [1, 2]}]
    answer = create(cluster, "t", "solo", num_partitions=-1, assignments=assigned)
    assert "has one replica, not 2" in answer["error_message"]
    assert create(cluster, "t", "solo")["error_code"] == 0
    partitions = [{"partition_index": 0, "replicas": [1, 2, 3]}]
    body = {"topics": [{"name": "t", "partitions": partitions}], "timeout_ms": 5000}
    answer = cluster.ask(1, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, body)["responses"][0]["partitions"][0]
    assert answer["error_code"] == E.INVALID_REPLICATION_FACTOR
    cluster.do(cluster.broker(1).topics.create_on_use("__consumer_offsets"))
    assert "is internal" in alter(cluster, "__consumer_offsets", "solo")["error_message"]


def test_a_solo_topic_stays_so_when_the_cluster_grows() -> None:
    cluster = whole_cluster_of(1)
    assert "there is one" in _create_alone(cluster, "early", "ring")["error_message"]
    assert _create_alone(cluster, "kept", "solo")["error_code"] == 0
    assert _create_alone(cluster, "grown", None)["error_code"] == 0
    cluster.start(2, 3)
    cluster.settle()
    cluster.until(lambda: copies(cluster, "grown") == {3})
    cluster.run(5000)
    assert copies(cluster, "kept") == {1}
    assert mode_of(cluster, "kept") == ("solo", OWN)
    assert mode_of(cluster, "grown") == ("ring", DEFAULT)


def _create_alone(cluster: WholeCluster, name: str, mode: str | None) -> Body:
    configs = [{"name": "anabranch.mode", "value": mode}] if mode is not None else []
    row = {"name": name, "num_partitions": 2, "replication_factor": -1, "assignments": [], "configs": configs}
    body = {"topics": [row], "timeout_ms": 10_000, "validate_only": False}
    return dict(cluster.ask(1, ApiKey.CREATE_TOPICS, 7, body)["topics"][0])


def test_the_mode_of_a_live_topic_is_changed_there_and_back_without_losing_a_record() -> None:
    cluster = whole_cluster_of(3)
    assert create(cluster, "t", "solo")["error_code"] == 0
    for number in range(3):
        assert produce(cluster, "t", 0, b"%d" % number) == number
    assert alter(cluster, "t", "ring")["error_code"] == 0
    cluster.until(lambda: copies(cluster, "t") == {3})
    assert produce(cluster, "t", 0, b"3") == 3
    cluster.until(lambda: _ends(cluster) == {4})
    assert mode_of(cluster, "t") == ("ring", OWN)
    assert alter(cluster, "t", "solo")["error_code"] == 0
    cluster.until(lambda: copies(cluster, "t") == {1})
    assert produce(cluster, "t", 0, b"4") == 4
    assert alter(cluster, "t", None)["error_code"] == 0
    cluster.until(lambda: copies(cluster, "t") == {3})
    assert produce(cluster, "t", 0, b"5") == 5


def _ends(cluster: WholeCluster) -> set[int]:
    found = [life.broker.topics.find_partition("t", 0) for life in cluster.lives.values()]
    return {partition.log.end_offset for partition in found if partition is not None}


def test_a_topic_whose_broker_was_drained_and_added_again_gets_its_third_copy_back() -> None:
    cluster = whole_cluster_of(3)
    assert create(cluster, "t", None)["error_code"] == 0
    drain(cluster, 3, "true")
    reassign(cluster, "t", [1, 2])
    drain(cluster, 3, "false")
    reassign(cluster, "t", [2, 3])
    cluster.until(lambda: copies(cluster, "t") == {3}, 60_000)


def drain(cluster: WholeCluster, broker: int, value: str) -> None:
    config = {"name": "broker.draining", "config_operation": 0, "value": value}
    resource = {"resource_type": 4, "resource_name": str(broker), "configs": [config]}
    body = {"resources": [resource], "validate_only": False}
    answer = cluster.ask(cluster.follower_id, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body)
    assert answer["responses"][0]["error_code"] == 0, answer


def reassign(cluster: WholeCluster, name: str, replicas: list[int]) -> None:
    """As `cluster drain` and `cluster add` do: every partition, and wait until it is there."""
    partitions = [{"partition_index": index, "replicas": replicas} for index in range(2)]
    topics = [{"name": name, "partitions": partitions}]
    body = {"timeout_ms": 5000, "allow_replication_factor_change": True, "topics": topics}
    answer = cluster.ask(cluster.follower_id, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, body)
    assert [row["error_code"] for row in answer["responses"][0]["partitions"]] == [0, 0]

    def is_there() -> bool:
        table = cluster.leader.metadata.table
        return all(list(each.replicas) == replicas for each in table.placements(table.topics[name]))

    cluster.until(is_there)
