"""Where partitions are and who leads: reassignments, elections, the metadata quorum, unregistering."""

from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.exchanges.world import Body, World, only
from support.raw_client import RawClient


def _own_id(client: RawClient) -> int:
    return int(only(client.ask(ApiKey.DESCRIBE_CLUSTER, 0, {})["brokers"])["broker_id"])


def _moved(client: RawClient, version: int, topic: str, index: int, replicas: list[int] | None) -> Body:
    partitions = [{"partition_index": index, "replicas": replicas}]
    body = {"topics": [{"name": topic, "partitions": partitions}], "timeout_ms": 1000}
    answer = client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, body)
    assert (answer["error_code"], answer["error_message"]) == (0, None)
    return only(only(answer["responses"])["partitions"])


def alter_reassignments(client: RawClient, version: int, world: World) -> None:
    row = _moved(client, version, world.topic, 1, [_own_id(client)])
    assert (row["partition_index"], row["error_code"], row["error_message"]) == (1, 0, None)


def alter_reassignments_refused(client: RawClient, version: int, world: World) -> None:
    for topic, index, replicas, code in (
        (world.missing, 0, [0], E.UNKNOWN_TOPIC_OR_PARTITION),
        (world.topic, 9, [0], E.UNKNOWN_TOPIC_OR_PARTITION),
        (world.topic, 0, [77], E.INVALID_REPLICA_ASSIGNMENT),
        (world.topic, 0, [], E.INVALID_REPLICA_ASSIGNMENT),
        (world.topic, 0, [1, 1], E.INVALID_REPLICA_ASSIGNMENT),
        (world.topic, 0, None, E.NO_REASSIGNMENT_IN_PROGRESS),
    ):
        row = _moved(client, version, topic, index, replicas)
        assert row["error_code"] == code
        assert row["error_message"]


def list_reassignments(client: RawClient, version: int, world: World) -> None:
    asked = [{"name": world.topic, "partition_indexes": [0, 1]}]
    for topics in (None, asked):
        answer = client.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, version, {"topics": topics})
        assert (answer["error_code"], answer["error_message"], answer["topics"]) == (0, None, [])


def list_reassignments_refused(client: RawClient, version: int, world: World) -> None:
    """What is not there is not being moved."""
    asked = [{"name": world.missing, "partition_indexes": [0, -1]}]
    answer = client.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, version, {"topics": asked})
    assert (answer["error_code"], answer["topics"]) == (0, [])


def elect_leaders(client: RawClient, version: int, world: World) -> None:
    asked = [{"topic": world.topic, "partitions": [0, 1, 1]}]
    answer = client.ask(ApiKey.ELECT_LEADERS, version, {"topic_partitions": asked, "timeout_ms": 1000})
    rows = only(answer["replica_election_results"])["partition_result"]
    assert [(row["partition_id"], row["error_code"]) for row in rows] == [
        (0, E.ELECTION_NOT_NEEDED),
        (1, E.ELECTION_NOT_NEEDED),
    ]
    everything = client.ask(ApiKey.ELECT_LEADERS, version, {"topic_partitions": None, "timeout_ms": 1000})
    assert (everything["error_code"], everything["replica_election_results"]) == (0, [])


def elect_leaders_refused(client: RawClient, version: int, world: World) -> None:
    asked = [{"topic": world.missing, "partitions": [0]}, {"topic": world.topic, "partitions": [-1]}]
    answer = client.ask(ApiKey.ELECT_LEADERS, version, {"topic_partitions": asked, "timeout_ms": 1000})
    rows = [only(topic["partition_result"]) for topic in answer["replica_election_results"]]
    assert [row["error_code"] for row in rows] == [E.UNKNOWN_TOPIC_OR_PARTITION] * 2
    if version >= 1:
        asked += [{"topic": world.topic, "partitions": [1]}]
        for kind, codes in (
            (1, [*[E.UNKNOWN_TOPIC_OR_PARTITION] * 2, E.ELECTION_NOT_NEEDED]),
            (7, [E.INVALID_REQUEST] * 3),
        ):
            body = {"election_type": kind, "topic_partitions": asked, "timeout_ms": 1000}
            answer = client.ask(ApiKey.ELECT_LEADERS, version, body)
            rows = [row for topic in answer["replica_election_results"] for row in topic["partition_result"]]
            assert [row["error_code"] for row in rows] == codes
        body = {"election_type": 1, "topic_partitions": None, "timeout_ms": 1000}
        assert client.ask(ApiKey.ELECT_LEADERS, version, body)["error_code"] == E.INVALID_REQUEST


def _quorum(client: RawClient, version: int, topic: str, index: int) -> Body:
    asked = [{"topic_name": topic, "partitions": [{"partition_index": index}]}]
    answer = client.ask(ApiKey.DESCRIBE_QUORUM, version, {"topics": asked})
    assert answer["error_code"] == 0
    return only(only(answer["topics"])["partitions"])


def describe_quorum(client: RawClient, version: int, world: World) -> None:
    row = _quorum(client, version, "__cluster_metadata", 0)
    assert (row["error_code"], row["leader_id"]) == (0, _own_id(client))
    assert row["observers"] == []
    voter = only(row["current_voters"])
    assert voter["replica_id"] == row["leader_id"]
    assert voter["log_end_offset"] >= row["high_watermark"] > 0
    assert (voter["last_caught_up_timestamp"] > 0) == (version >= 1)
    assert (voter["replica_directory_id"].int > 0) == (version >= 2)


def describe_quorum_refused(client: RawClient, version: int, world: World) -> None:
    for topic, index in ((world.topic, 0), ("__cluster_metadata", 1)):
        row = _quorum(client, version, topic, index)
        assert (row["error_code"], row["leader_id"]) == (E.UNKNOWN_TOPIC_OR_PARTITION, -1)


def unregister_broker(client: RawClient, version: int, world: World) -> None:
    """There is only one, which cannot go."""
    answer = client.ask(ApiKey.UNREGISTER_BROKER, version, {"broker_id": _own_id(client)})
    assert answer["error_code"] == E.INVALID_REQUEST
    assert "only one" in answer["error_message"]


def unregister_broker_refused(client: RawClient, version: int, world: World) -> None:
    answer = client.ask(ApiKey.UNREGISTER_BROKER, version, {"broker_id": 77})
    assert answer["error_code"] == E.BROKER_ID_NOT_REGISTERED
    assert "77" in answer["error_message"]
