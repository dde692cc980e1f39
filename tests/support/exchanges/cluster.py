"""What the node says of itself and its topics: ApiVersions, Metadata and the Describe APIs."""

from typing import Any

from anabranch.broker.handlers import HANDLERS
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.exchanges.world import NO_ID, STRANGE_ID, Body, World, only
from support.raw_client import RawClient, batch_of


def api_versions(client: RawClient, version: int, world: World) -> None:
    software = {"client_software_name": "raw", "client_software_version": "1.0"}
    answer = client.ask(ApiKey.API_VERSIONS, version, software)
    assert answer["error_code"] == 0
    rows = {row["api_key"]: (row["min_version"], row["max_version"]) for row in answer["api_keys"]}
    assert rows[ApiKey.API_VERSIONS] == (0, 4)
    assert rows[ApiKey.PRODUCE][0] == 0
    assert set(rows) == set(HANDLERS)


def api_versions_refused(client: RawClient, version: int, world: World) -> None:
    """Its refusals are about bytes, not names: see the tests of bad bytes."""


def _metadata(client: RawClient, version: int, topics: list[Body] | None, **more: Any) -> Body:
    answer = client.ask(ApiKey.METADATA, version, {"topics": topics, **more})
    broker = only(answer["brokers"])
    assert f"{broker['host']}:{broker['port']}" == "{}:{}".format(*client.sock.getpeername())
    if version >= 1:
        assert answer["controller_id"] == broker["node_id"]
    return answer


def metadata(client: RawClient, version: int, world: World) -> None:
    operations = {
        "include_topic_authorized_operations": version >= 8,
        "include_cluster_authorized_operations": 8 <= version <= 10,
    }
    answer = _metadata(client, version, [{"name": world.topic}], **operations)
    row = only(answer["topics"])
    assert (row["name"], row["error_code"], row["is_internal"]) == (world.topic, 0, False)
    assert row["topic_id"] == (world.topic_id if version >= 10 else NO_ID)
    assert sorted(part["partition_index"] for part in row["partitions"]) == [0, 1]
    assert (row["topic_authorized_operations"] > 0) == (version >= 8)
    everything = _metadata(client, version, [] if version == 0 else None)["topics"]
    assert world.topic in {row["name"] for row in everything}
    if version >= 1:
        assert _metadata(client, version, [])["topics"] == []
    if version >= 12:
        by_id = only(_metadata(client, version, [{"name": None, "topic_id": world.topic_id}])["topics"])
        assert (by_id["name"], by_id["error_code"]) == (world.topic, 0)


def metadata_refused(client: RawClient, version: int, world: World) -> None:
    row = only(_metadata(client, version, [{"name": "a/b"}])["topics"])
    assert (row["name"], row["error_code"], row["partitions"]) == ("a/b", E.INVALID_TOPIC_EXCEPTION, [])
    if version >= 4:
        not_made = _metadata(client, version, [{"name": world.missing}], allow_auto_topic_creation=False)
        assert only(not_made["topics"])["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION
    if version >= 12:
        row = only(_metadata(client, version, [{"name": None, "topic_id": STRANGE_ID}])["topics"])
        assert (row["topic_id"], row["error_code"]) == (STRANGE_ID, E.UNKNOWN_TOPIC_ID)


def describe_cluster(client: RawClient, version: int, world: World) -> None:
    body = {"include_cluster_authorized_operations": True, "include_fenced_brokers": True}
    answer = client.ask(ApiKey.DESCRIBE_CLUSTER, version, body)
    assert (answer["error_code"], answer["error_message"]) == (0, None)
    assert answer["cluster_id"]
    assert only(answer["brokers"])["broker_id"] == answer["controller_id"]
    assert answer["cluster_authorized_operations"] > 0


def describe_cluster_refused(client: RawClient, version: int, world: World) -> None:
    if version >= 1:
        answer = client.ask(ApiKey.DESCRIBE_CLUSTER, version, {"endpoint_type": 2})
        assert answer["error_code"] == E.MISMATCHED_ENDPOINT_TYPE
        assert answer["error_message"]


def describe_log_dirs(client: RawClient, version: int, world: World) -> None:
    topics = [{"topic": world.topic, "partitions": [0]}]
    answer = client.ask(ApiKey.DESCRIBE_LOG_DIRS, version, {"topics": topics})
    folder = only(answer["results"])
    assert (answer["error_code"], folder["error_code"]) == (0, 0)
    assert only(only(folder["topics"])["partitions"])["partition_size"] > 61
    assert (folder["total_bytes"] > folder["usable_bytes"] > 0) == (version >= 4)
    everything = only(client.ask(ApiKey.DESCRIBE_LOG_DIRS, version, {"topics": None})["results"])
    assert world.topic in {row["name"] for row in everything["topics"]}


def describe_log_dirs_refused(client: RawClient, version: int, world: World) -> None:
    topics = [{"topic": world.missing, "partitions": [0]}, {"topic": world.topic, "partitions": [-1, 2]}]
    folder = only(client.ask(ApiKey.DESCRIBE_LOG_DIRS, version, {"topics": topics})["results"])
    assert folder["topics"] == []


def _altered(client: RawClient, version: int, path: str, name: str, index: int) -> int:
    wanted = {"path": path, "topics": [{"name": name, "partitions": [index]}]}
    answer = client.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, version, {"dirs": [wanted]})
    row = only(answer["results"])
    assert row["topic_name"] == name
    partition = only(row["partitions"])
    assert partition["partition_index"] == index
    code: int = partition["error_code"]
    return code


def _log_dir(client: RawClient) -> str:
    path: str = only(client.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": []})["results"])["log_dir"]
    return path


def alter_replica_log_dirs(client: RawClient, version: int, world: World) -> None:
    """What is to be in the only folder is there."""
    path = _log_dir(client)
    assert path.startswith("/")
    assert _altered(client, version, path, world.topic, 0) == E.NONE
    assert _altered(client, version, path + "/", world.topic, 1) == E.NONE


def alter_replica_log_dirs_refused(client: RawClient, version: int, world: World) -> None:
    path = _log_dir(client)
    assert _altered(client, version, path + "2", world.topic, 0) == E.LOG_DIR_NOT_FOUND
    for name, index in ((world.missing, 0), (world.topic, 2), (world.topic, -1)):
        assert _altered(client, version, path, name, index) == E.UNKNOWN_TOPIC_OR_PARTITION


def describe_topic_partitions(client: RawClient, version: int, world: World) -> None:
    body = {"topics": [{"name": world.topic}], "response_partition_limit": 1}
    first = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, version, body)
    assert only(only(first["topics"])["partitions"])["partition_index"] == 0
    assert first["next_cursor"] == {"topic_name": world.topic, "partition_index": 1}
    second = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, version, {**body, "cursor": first["next_cursor"]})
    assert only(only(second["topics"])["partitions"])["partition_index"] == 1
    assert second["next_cursor"] is None


def describe_topic_partitions_refused(client: RawClient, version: int, world: World) -> None:
    for name, code in ((world.missing, E.UNKNOWN_TOPIC_OR_PARTITION), ("..", E.INVALID_TOPIC_EXCEPTION)):
        answer = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, version, {"topics": [{"name": name}]})
        row = only(answer["topics"])
        assert (row["name"], row["error_code"], row["partitions"]) == (name, code, [])


def describe_producers(client: RawClient, version: int, world: World) -> None:
    name = world.fresh("produced")
    client.create_topic(name)
    client.produce(name, 0, batch_of(b"a", producer_id=9, producer_epoch=1, base_sequence=0))
    asked = [{"name": name, "partition_indexes": [0]}]
    answer = client.ask(ApiKey.DESCRIBE_PRODUCERS, version, {"topics": asked})
    row = only(only(answer["topics"])["partitions"])
    assert row["error_code"] == 0
    producer = only(row["active_producers"])
    assert (producer["producer_id"], producer["producer_epoch"], producer["last_sequence"]) == (9, 1, 0)


def describe_producers_refused(client: RawClient, version: int, world: World) -> None:
    asked = [
        {"name": world.missing, "partition_indexes": [0]},
        {"name": world.topic, "partition_indexes": [-1]},
    ]
    answer = client.ask(ApiKey.DESCRIBE_PRODUCERS, version, {"topics": asked})
    for topic_row in answer["topics"]:
        row = only(topic_row["partitions"])
        assert row["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION
        assert row["error_message"]
