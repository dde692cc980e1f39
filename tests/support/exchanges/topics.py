"""Topics and configs: create, delete, grow, describe, alter."""

import uuid
from typing import Any

from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.exchanges.world import BROKER, NO_ID, STRANGE_ID, TOPIC, Body, Exchange, World, only
from support.raw_client import RawClient


def _create_topics(client: RawClient, version: int, name: str, **more: Any) -> Body:
    only_validate = more.pop("validate_only", False)
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, **more}
    body = {"topics": [topic], "timeout_ms": 9000, "validate_only": only_validate}
    row = only(client.ask(ApiKey.CREATE_TOPICS, version, body)["topics"])
    assert row["name"] == name
    return row


def create_topics(client: RawClient, version: int, world: World) -> None:
    name = world.fresh("made")
    configs = [{"name": "retention.ms", "value": "1234"}]
    assert _create_topics(client, version, name, validate_only=True, configs=configs)["error_code"] == 0
    row = _create_topics(client, version, name, configs=configs)
    assert (row["error_code"], row["error_message"]) == (0, None)
    if version >= 5:
        assert (row["num_partitions"], row["replication_factor"]) == (1, 1)
        values = {config["name"]: config["value"] for config in row["configs"]}
        assert values["retention.ms"] == "1234"
    if version >= 7:
        assert row["topic_id"] != NO_ID
    assigned = [{"partition_index": 0, "broker_ids": [0]}]
    row = _create_topics(
        client, version, f"{name}-b", num_partitions=-1, replication_factor=-1, assignments=assigned
    )
    assert row["error_code"] == 0


def create_topics_refused(client: RawClient, version: int, world: World) -> None:
    refusals: list[tuple[str, Body, E]] = [
        (world.topic, {}, E.TOPIC_ALREADY_EXISTS),
        ("a/b", {}, E.INVALID_TOPIC_EXCEPTION),
        (world.missing, {"num_partitions": 0}, E.INVALID_PARTITIONS),
        (world.missing, {"replication_factor": 3}, E.INVALID_REPLICATION_FACTOR),
        (world.missing, {"configs": [{"name": "no.such", "value": "1"}]}, E.INVALID_CONFIG),
    ]
    for name, more, code in refusals:
        row = _create_topics(client, version, name, **more)
        assert row["error_code"] == code
        assert row["error_message"]


def _delete_topics(client: RawClient, version: int, name: str | None, topic_id: uuid.UUID = NO_ID) -> Body:
    body: Body = {"topic_names": [name], "timeout_ms": 9000}
    if version >= 6:
        body = {"topics": [{"name": name, "topic_id": topic_id}], "timeout_ms": 9000}
    return only(client.ask(ApiKey.DELETE_TOPICS, version, body)["responses"])


def delete_topics(client: RawClient, version: int, world: World) -> None:
    name = world.fresh("doomed")
    client.create_topic(name)
    row = _delete_topics(client, version, name)
    assert (row["name"], row["error_code"], row["error_message"]) == (name, 0, None)
    if version >= 6:
        topic_id = client.create_topic(name)
        row = _delete_topics(client, version, None, topic_id)
        assert (row["name"], row["topic_id"], row["error_code"]) == (name, topic_id, 0)


def delete_topics_refused(client: RawClient, version: int, world: World) -> None:
    row = _delete_topics(client, version, world.missing)
    assert row["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION
    assert (row["error_message"] is not None) == (version >= 5)
    if version >= 6:
        assert _delete_topics(client, version, None, STRANGE_ID)["error_code"] == E.UNKNOWN_TOPIC_ID
        assert _delete_topics(client, version, None)["error_code"] == E.INVALID_REQUEST
        assert _delete_topics(client, version, "both", STRANGE_ID)["error_code"] == E.INVALID_REQUEST


def _create_partitions(client: RawClient, version: int, name: str, count: int, **more: Any) -> Body:
    topic = {"name": name, "count": count, "assignments": more.pop("assignments", None)}
    body = {"topics": [topic], "timeout_ms": 9000, **more}
    return only(client.ask(ApiKey.CREATE_PARTITIONS, version, body)["results"])


def create_partitions(client: RawClient, version: int, world: World) -> None:
    name = world.fresh("grown")
    client.create_topic(name)
    assert _create_partitions(client, version, name, 2, validate_only=True)["error_code"] == 0
    row = _create_partitions(client, version, name, 2)
    assert (row["name"], row["error_code"], row["error_message"]) == (name, 0, None)
    row = _create_partitions(client, version, name, 3, assignments=[{"broker_ids": [0]}])
    assert row["error_code"] == 0
    assert client.end_offset(name, 2) == 0


def create_partitions_refused(client: RawClient, version: int, world: World) -> None:
    refusals: list[tuple[str, int, list[Body] | None, E]] = [
        (world.missing, 5, None, E.UNKNOWN_TOPIC_OR_PARTITION),
        (world.topic, 2, None, E.INVALID_PARTITIONS),
        (world.topic, -1, None, E.INVALID_PARTITIONS),
        (world.topic, 2**31 - 1, None, E.INVALID_PARTITIONS),
        (world.topic, 3, [{"broker_ids": [7]}], E.INVALID_REPLICA_ASSIGNMENT),
    ]
    for name, count, assignments, code in refusals:
        row = _create_partitions(client, version, name, count, assignments=assignments)
        assert row["error_code"] == code
        assert row["error_message"]


def _describe_configs(client: RawClient, version: int, kind: int, name: str, keys: list[str] | None) -> Body:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    body = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
    row = only(client.ask(ApiKey.DESCRIBE_CONFIGS, version, body)["results"])
    assert (row["resource_type"], row["resource_name"]) == (kind, name)
    return row


def describe_configs(client: RawClient, version: int, world: World) -> None:
    row = _describe_configs(client, version, TOPIC, world.topic, ["retention.ms"])
    assert (row["error_code"], row["error_message"]) == (0, None)
    config = only(row["configs"])
    assert (config["name"], config["value"]) == ("retention.ms", "604800000")
    assert config["synonyms"]
    assert bool(config["documentation"]) == (version >= 3)
    names = {each["name"] for each in _describe_configs(client, version, BROKER, "0", None)["configs"]}
    assert "num.partitions" in names


def describe_configs_refused(client: RawClient, version: int, world: World) -> None:
    refusals = [
        (TOPIC, world.missing, E.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "..", E.INVALID_TOPIC_EXCEPTION),
        (BROKER, "77", E.INVALID_REQUEST),
        (99, "x", E.INVALID_REQUEST),
    ]
    for kind, name, code in refusals:
        row = _describe_configs(client, version, kind, name, None)
        assert (row["error_code"], row["configs"]) == (code, [])
        assert row["error_message"]


def _alter(client: RawClient, key: ApiKey, version: int, kind: int, resource_name: str, config: Body) -> Body:
    resource = {"resource_type": kind, "resource_name": resource_name, "configs": [config]}
    row = only(client.ask(key, version, {"resources": [resource]})["responses"])
    assert (row["resource_type"], row["resource_name"]) == (kind, resource_name)
    return row


def alter_configs(client: RawClient, version: int, world: World) -> None:
    name = world.fresh("altered")
    client.create_topic(name)
    config = {"name": "retention.ms", "value": "77000"}
    row = _alter(client, ApiKey.ALTER_CONFIGS, version, TOPIC, name, config)
    assert (row["error_code"], row["error_message"]) == (0, None)
    assert only(_describe_configs(client, 4, TOPIC, name, ["retention.ms"])["configs"])["value"] == "77000"


def incremental_alter_configs(client: RawClient, version: int, world: World) -> None:
    name = world.fresh("altered")
    client.create_topic(name)
    for operation, value, becomes in (
        (2, "compact", "delete,compact"),
        (3, "delete", "compact"),
        (1, None, "delete"),
    ):
        config = {"name": "cleanup.policy", "config_operation": operation, "value": value}
        row = _alter(client, ApiKey.INCREMENTAL_ALTER_CONFIGS, version, TOPIC, name, config)
        assert (row["error_code"], row["error_message"]) == (0, None)
        described = only(_describe_configs(client, 4, TOPIC, name, ["cleanup.policy"])["configs"])
        assert set(described["value"].split(",")) == set(becomes.split(","))


def alter_refused(key: ApiKey) -> Exchange:
    def refused(client: RawClient, version: int, world: World) -> None:
        refusals: list[tuple[int, str, str, str | None, E]] = [
            (TOPIC, world.missing, "retention.ms", "1", E.UNKNOWN_TOPIC_OR_PARTITION),
            (TOPIC, world.topic, "no.such", "1", E.INVALID_CONFIG),
            (TOPIC, world.topic, "retention.ms", "soon", E.INVALID_CONFIG),
            (TOPIC, world.topic, "retention.ms", None, E.INVALID_REQUEST),
            (BROKER, "0", "num.partitions", "1", E.INVALID_REQUEST),
            (99, "x", "y", "1", E.INVALID_REQUEST),
        ]
        for kind, name, config, value, code in refusals:
            row = _alter(client, key, version, kind, name, {"name": config, "value": value})
            assert row["error_code"] == code, (config, value, row)
            assert row["error_message"]

    return refused


def list_config_resources(client: RawClient, version: int, world: World) -> None:
    answer = client.ask(ApiKey.LIST_CONFIG_RESOURCES, version, {"resource_types": [TOPIC]})
    assert answer["error_code"] == 0
    names = {row["resource_name"] for row in answer["config_resources"]}
    assert (world.topic in names) == (version >= 1)


def list_config_resources_refused(client: RawClient, version: int, world: World) -> None:
    answer = client.ask(ApiKey.LIST_CONFIG_RESOURCES, version, {"resource_types": [99]})
    assert answer["config_resources"] == []
