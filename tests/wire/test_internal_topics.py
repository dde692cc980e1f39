"""What clients may not do to the topics that brokers keep for themselves."""

from typing import Any

import pytest

from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.raw_client import RawClient

OFFSETS = "__consumer_offsets"

pytestmark = pytest.mark.usefixtures("others_served")


@pytest.fixture(autouse=True)
def committed(client: RawClient, topic: str) -> str:
    """A group with a committed offset, so that the topic exists."""
    rows = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
    body = {"group_id": topic, "topics": [{"name": topic, "partitions": rows}]}
    answer = client.ask(ApiKey.OFFSET_COMMIT, 7, body)
    assert answer["topics"][0]["partitions"][0]["error_code"] == E.NONE
    return topic


def configs(client: RawClient, topic: str = OFFSETS) -> dict[str, str]:
    body = {"resources": [{"resource_type": 2, "resource_name": topic, "configuration_keys": None}]}
    (row,) = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, body)["results"]
    return {each["name"]: each["value"] for each in row["configs"]}


def alter(client: RawClient, topic: str, **values: str) -> dict[str, Any]:
    rows = [{"name": name.replace("_", "."), "value": value} for name, value in values.items()]
    resource = {"resource_type": 2, "resource_name": topic, "configs": rows}
    (row,) = client.ask(ApiKey.ALTER_CONFIGS, 2, {"resources": [resource]})["responses"]
    return row


def alter_one(client: RawClient, name: str, operation: int, value: str | None) -> dict[str, Any]:
    config = {"name": name, "config_operation": operation, "value": value}
    resource = {"resource_type": 2, "resource_name": OFFSETS, "configs": [config]}
    (row,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})["responses"]
    return row


@pytest.mark.parametrize(
    ("name", "operation", "value"),
    [
        ("cleanup.policy", 0, "delete"),
        ("cleanup.policy", 0, "compact,delete"),
        ("cleanup.policy", 1, None),
        ("cleanup.policy", 2, "delete"),
        ("cleanup.policy", 3, "compact"),
        ("retention.ms", 0, "1"),
        ("retention.bytes", 0, "1"),
    ],
)
def test_configs_that_decide_which_offsets_are_kept_cannot_be_changed(
    client: RawClient, name: str, operation: int, value: str | None
) -> None:
    before = configs(client)
    row = alter_one(client, name, operation, value)
    assert row["error_code"] == E.INVALID_CONFIG
    assert name in row["error_message"]
    assert OFFSETS in row["error_message"]
    assert configs(client) == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delete.retention.ms", "999999999999"),
        ("min.cleanable.dirty.ratio", "1"),
        ("min.compaction.lag.ms", "999999999"),
        ("min.insync.replicas", "3"),
        ("max.message.bytes", "10"),
    ],
)
def test_configs_that_would_let_it_grow_or_have_no_effect_keep_their_limits(
    client: RawClient, name: str, value: str
) -> None:
    before = configs(client)
    row = alter_one(client, name, 0, value)
    assert row["error_code"] == E.INVALID_CONFIG
    assert f"{name} of {OFFSETS} cannot be {value}" in row["error_message"].replace("1.0", "1")
    assert alter(client, OFFSETS, **{name.replace(".", "_"): value})["error_code"] == E.INVALID_CONFIG
    assert configs(client) == before


@pytest.mark.parametrize(
    ("name", "value"), [("min.cleanable.dirty.ratio", "0.1"), ("max.message.bytes", "2000000")]
)
def test_configs_with_a_limit_may_change_on_its_safe_side(client: RawClient, name: str, value: str) -> None:
    assert alter_one(client, name, 0, value)["error_code"] == E.NONE
    assert configs(client)[name] == value
    assert alter_one(client, name, 1, None)["error_code"] == E.NONE


def test_replacing_all_configs_is_refused_if_committed_offsets_would_go(client: RawClient) -> None:
    row = alter(client, OFFSETS, cleanup_policy="delete", retention_ms="1")
    assert row["error_code"] == E.INVALID_CONFIG
    assert configs(client)["cleanup.policy"] == "compact"


def test_replacing_other_configs_leaves_the_topic_compacted(client: RawClient) -> None:
    row = alter(client, OFFSETS, segment_bytes="1048576")
    assert row["error_code"] == E.NONE
    now = configs(client)
    assert (now["cleanup.policy"], now["segment.bytes"]) == ("compact", "1048576")
    assert alter_one(client, "segment.bytes", 0, str(100 * 2**20))["error_code"] == E.NONE


def create(client: RawClient, name: str, factor: int = -1, **values: str) -> dict[str, Any]:
    rows = [{"name": key.replace("_", "."), "value": value} for key, value in values.items()]
    topic = {"name": name, "num_partitions": 1, "replication_factor": factor, "configs": rows}
    (row,) = client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "validate_only": True})["topics"]
    return row


@pytest.mark.parametrize("name", ["__transaction_state", "__share_group_state", "__cluster_metadata"])
def test_names_of_brokers_are_not_for_clients(client: RawClient, name: str) -> None:
    assert create(client, name)["error_code"] == E.INVALID_TOPIC_EXCEPTION
    body = {"topics": [{"name": name}], "allow_auto_topic_creation": True}
    (row,) = client.ask(ApiKey.METADATA, 8, body)["topics"]
    assert row["error_code"] == E.INVALID_TOPIC_EXCEPTION


def test_the_offsets_topic_is_not_made_with_configs_that_lose_offsets(client: RawClient) -> None:
    row = create(client, OFFSETS, cleanup_policy="delete")
    assert row["error_code"] == E.INVALID_CONFIG


def test_nobody_adds_partitions_to_or_deletes_the_offsets_topic(client: RawClient) -> None:
    more = {"topics": [{"name": OFFSETS, "count": 60, "assignments": None}], "timeout_ms": 1000}
    (row,) = client.ask(ApiKey.CREATE_PARTITIONS, 3, more)["results"]
    assert row["error_code"] == E.INVALID_PARTITIONS
    (row,) = client.ask(ApiKey.DELETE_TOPICS, 5, {"topic_names": [OFFSETS]})["responses"]
    assert row["error_code"] == E.INVALID_TOPIC_EXCEPTION
