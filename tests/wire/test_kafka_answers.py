"""Answers to unusual requests, as Apache Kafka 4.3.1 gave them when it was sent the same bytes."""

import time
import uuid
from typing import Any

import pytest

from anabranch.record.builder import BatchBuilder
from anabranch.record.compression import Codec
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.raw_client import RawClient, batch_of, produce_body

Body = dict[str, Any]
NO_ID = uuid.UUID(int=0)
TOPIC, BROKER = 2, 4


def topic_id_of(client: RawClient, name: str) -> uuid.UUID | None:
    body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
    (row,) = client.ask(ApiKey.METADATA, 12, body)["topics"]
    return row["topic_id"] if row["error_code"] == 0 else None


def overrides_of(client: RawClient, name: str) -> dict[str, str]:
    body = {"resources": [{"resource_type": TOPIC, "resource_name": name, "configuration_keys": None}]}
    (row,) = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, body)["results"]
    return {each["name"]: each["value"] for each in row["configs"] if each["config_source"] == 1}


# --- topics ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 5])
def test_a_topic_named_twice_is_not_deleted(client: RawClient, topic: str, version: int) -> None:
    body = {"topic_names": [topic, topic], "timeout_ms": 1000}
    (row,) = client.ask(ApiKey.DELETE_TOPICS, version, body)["responses"]
    assert row["error_code"] == E.INVALID_REQUEST
    assert topic_id_of(client, topic) is not None


def test_a_topic_named_by_name_and_by_id_is_not_deleted(client: RawClient, topic: str) -> None:
    topic_id = topic_id_of(client, topic)
    asked = [{"name": topic, "topic_id": NO_ID}, {"name": None, "topic_id": topic_id}]
    (row,) = client.ask(ApiKey.DELETE_TOPICS, 6, {"topics": asked, "timeout_ms": 1000})["responses"]
    assert row["error_code"] == E.INVALID_REQUEST
    assert topic_id_of(client, topic) == topic_id


def test_metadata_by_id_makes_no_topic_of_the_name_beside_it(client: RawClient, topic: str) -> None:
    stray = f"{topic}-stray"
    asked = [{"topic_id": topic_id_of(client, topic), "name": stray}]
    (row,) = client.ask(ApiKey.METADATA, 12, {"topics": asked})["topics"]
    assert (row["error_code"], row["name"]) == (0, topic)
    assert topic_id_of(client, stray) is None


def test_a_refused_topic_has_an_empty_list_of_configs(client: RawClient, topic: str) -> None:
    asked = {"name": topic, "num_partitions": 1, "replication_factor": 1}
    (row,) = client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [asked]})["topics"]
    assert (row["error_code"], row["configs"]) == (E.TOPIC_ALREADY_EXISTS, [])


@pytest.mark.parametrize("limit", [0, -1])
def test_a_page_has_one_partition_at_least(client: RawClient, topic: str, limit: int) -> None:
    body = {"topics": [{"name": topic}], "response_partition_limit": limit, "cursor": None}
    answer = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, body)
    assert [row["partition_index"] for row in answer["topics"][0]["partitions"]] == [0]
    assert answer["next_cursor"] == {"topic_name": topic, "partition_index": 1}


# --- configs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", [ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS])
def test_a_resource_altered_twice_is_not_altered(client: RawClient, topic: str, api: ApiKey) -> None:
    resource = {"resource_type": TOPIC, "resource_name": topic}
    resource["configs"] = [{"name": "retention.ms", "value": "5"}]
    answer = client.ask(api, 1, {"resources": [resource, resource]})
    assert [row["error_code"] for row in answer["responses"]] == [E.INVALID_REQUEST] * 2
    assert overrides_of(client, topic) == {}


def test_deleting_what_is_no_config_is_no_error(client: RawClient, topic: str) -> None:
    configs = [{"name": "message.format.version", "config_operation": 1, "value": None}]
    resource = {"resource_type": TOPIC, "resource_name": topic, "configs": configs}
    (row,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})["responses"]
    assert row["error_code"] == 0


@pytest.mark.parametrize(("operation", "code"), [(1, 0), (0, E.INVALID_REQUEST)])
def test_a_brokers_throttles_can_be_cleared_and_not_set(client: RawClient, operation: int, code: int) -> None:
    config = {"name": "leader.replication.throttled.rate", "config_operation": operation, "value": "5"}
    resource = {"resource_type": BROKER, "resource_name": "0", "configs": [config]}
    (row,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})["responses"]
    assert row["error_code"] == code


@pytest.mark.parametrize("operation", [0, 2, 3])
def test_an_alteration_needs_a_value(client: RawClient, topic: str, operation: int) -> None:
    configs = [{"name": "cleanup.policy", "config_operation": operation, "value": None}]
    resource = {"resource_type": TOPIC, "resource_name": topic, "configs": configs}
    (row,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})["responses"]
    assert row["error_code"] == E.INVALID_REQUEST


def test_all_brokers_together_have_no_configs(client: RawClient) -> None:
    body = {"resources": [{"resource_type": BROKER, "resource_name": "", "configuration_keys": None}]}
    (row,) = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, body)["results"]
    assert (row["error_code"], row["configs"]) == (0, [])


def test_a_broker_tells_tools_what_they_look_for_under_kafkas_names(client: RawClient) -> None:
    resource = {"resource_type": 4, "resource_name": "0", "configuration_keys": None}
    (row,) = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [resource]})["results"]
    found = {each["name"]: each["value"] for each in row["configs"]}
    assert len(found) == len(row["configs"]), "no name twice"
    host, port = client.sock.getpeername()
    assert found["listeners"] == found["advertised.listeners"] == f"PLAINTEXT://{host}:{port}"
    assert (found["node.id"], found["broker.id"]) == ("0", "0")
    assert (found["process.roles"], found["inter.broker.listener.name"]) == ("broker,controller", "PLAINTEXT")
    assert all(each["read_only"] for each in row["configs"])
    folders = client.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": []})["results"]
    assert [found["log.dirs"]] == [folder["log_dir"] for folder in folders]
    (only,) = client.ask(
        ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [{**resource, "configuration_keys": ["log.dirs"]}]}
    )["results"]
    assert [each["name"] for each in only["configs"]] == ["log.dirs"]


@pytest.mark.parametrize(("kind", "code"), [(32, 0), (99, E.UNSUPPORTED_VERSION), (0, E.UNSUPPORTED_VERSION)])
def test_types_of_resources_that_nobody_knows_are_not_listed(client: RawClient, kind: int, code: int) -> None:
    answer = client.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": [kind]})
    assert (answer["error_code"], answer["config_resources"]) == (code, [])


# --- records -----------------------------------------------------------------------------------------------


def test_nobody_shortens_the_log_of_committed_offsets(client: RawClient, topic: str) -> None:
    rows = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
    committed = {"group_id": topic, "topics": [{"name": topic, "partitions": rows}]}
    client.ask(ApiKey.OFFSET_COMMIT, 7, committed)
    topics = [{"name": "__consumer_offsets", "partitions": [{"partition_index": 0, "offset": -1}]}]
    answer = client.ask(ApiKey.DELETE_RECORDS, 2, {"topics": topics, "timeout_ms": 1000})
    assert answer["topics"][0]["partitions"][0]["error_code"] == E.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("base_offset", [7, -1])
def test_a_producer_cannot_choose_offsets(client: RawClient, topic: str, base_offset: int) -> None:
    batch = bytearray(batch_of(b"x"))
    batch[:8] = base_offset.to_bytes(8, "big", signed=True)
    assert client.produce(topic, 0, bytes(batch))["error_code"] == E.INVALID_RECORD
    assert client.end_offset(topic) == 0


@pytest.mark.parametrize(("version", "code"), [(3, E.UNSUPPORTED_COMPRESSION_TYPE), (7, E.NONE)])
def test_zstd_came_with_version_7(client: RawClient, topic: str, version: int, code: int) -> None:
    body = produce_body(topic, 0, batch_of(b"x", codec=Codec.ZSTD))
    (row,) = client.ask(ApiKey.PRODUCE, version, body)["responses"][0]["partition_responses"]
    assert row["error_code"] == code


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize(("second_age_ms", "code"), [(60_000, E.INVALID_TIMESTAMP), (0, E.NONE)])
def test_every_record_must_be_young_enough(
    client: RawClient, codec: Codec, second_age_ms: int, code: int
) -> None:
    name = f"young-{uuid.uuid4().hex[:12]}"
    client.create_topic(name, message_timestamp_before_max_ms="30000")
    now_ms = time.time_ns() // 1_000_000
    builder = BatchBuilder(codec=codec)
    for timestamp_ms in (now_ms, now_ms - second_age_ms, -1):
        builder.add(b"key", b"value", timestamp_ms=timestamp_ms)
    assert client.produce(name, 0, bytes(builder.build()))["error_code"] == code


@pytest.mark.parametrize(("producer_id", "epoch"), [(5, -1), (-1, 5)])
def test_half_a_producer_gets_no_id(client: RawClient, producer_id: int, epoch: int) -> None:
    body = {"transactional_id": None, "transaction_timeout_ms": 1000}
    answer = client.ask(
        ApiKey.INIT_PRODUCER_ID, 4, {**body, "producer_id": producer_id, "producer_epoch": epoch}
    )
    assert (answer["error_code"], answer["producer_id"]) == (E.INVALID_REQUEST, -1)


def test_producers_of_what_cannot_be_a_topic_are_not_described(client: RawClient) -> None:
    body = {"topics": [{"name": "a b", "partition_indexes": [0]}]}
    answer = client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, body)
    assert answer["topics"][0]["partitions"][0]["error_code"] == E.INVALID_TOPIC_EXCEPTION


# --- clients -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("software", "code"),
    [
        (("a.b-c", "1.2-3"), E.NONE),
        (("", "1"), E.INVALID_REQUEST),
        (("raw", ""), E.INVALID_REQUEST),
        (("-raw", "1"), E.INVALID_REQUEST),
        (("raw_client", "1"), E.INVALID_REQUEST),
        (("raw", "1+2"), E.INVALID_REQUEST),
    ],
)
@pytest.mark.parametrize("version", [3, 4])
def test_software_has_a_name_that_fits_a_metric(
    client: RawClient, version: int, software: tuple[str, str], code: int
) -> None:
    names = {"client_software_name": software[0], "client_software_version": software[1]}
    answer = client.ask(ApiKey.API_VERSIONS, version, names)
    assert answer["error_code"] == code
    assert bool(answer["api_keys"]) == (code == E.NONE)


@pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
def test_since_version_5_a_member_says_what_it_syncs_for(client: RawClient, topic: str, missing: str) -> None:
    join = {"group_id": topic, "session_timeout_ms": 6000, "member_id": "", "protocol_type": "consumer"}
    join["protocols"] = [{"name": "range", "metadata": b""}]
    joined = client.ask(ApiKey.JOIN_GROUP, 0, join)
    sync = {"group_id": topic, "generation_id": joined["generation_id"], "member_id": joined["member_id"]}
    sync |= {"protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    answer = client.ask(ApiKey.SYNC_GROUP, 5, {**sync, missing: None})
    assert answer["error_code"] == E.INCONSISTENT_GROUP_PROTOCOL
    assert client.ask(ApiKey.SYNC_GROUP, 5, sync)["error_code"] == 0


@pytest.mark.parametrize("version", [0, 3, 6])
def test_the_group_without_a_name_has_a_coordinator_and_offsets(
    client: RawClient, topic: str, version: int
) -> None:
    answer = client.ask(
        ApiKey.FIND_COORDINATOR, version, {"key": "", "key_type": 0, "coordinator_keys": [""]}
    )
    row = answer["coordinators"][0] if version >= 4 else answer
    assert (row["error_code"], row["port"]) == (0, client.sock.getpeername()[1])
    rows = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
    committed = {"group_id": "", "topics": [{"name": topic, "partitions": rows}]}
    answer = client.ask(ApiKey.OFFSET_COMMIT, 7, committed)
    assert answer["topics"][0]["partitions"][0]["error_code"] == 0
