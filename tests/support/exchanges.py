"""One good and one refused exchange for every API, in any version: asked, answered, and the answer understood.

Each function takes a client, a version and a `World` (names that exist), asks, and asserts what the answer
means, not only that it came. `EXCHANGES` is the table; it must hold every API that the broker advertises. The
wire fuzzer records what these functions send and mutates it.
"""

import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.raw_client import RawClient, batch_of

NO_ID = uuid.UUID(int=0)
STRANGE_ID = uuid.UUID(int=0xDEAD)
TOPIC, BROKER = 2, 4


class World(NamedTuple):
    """A topic of two partitions with three records in its first."""

    topic: str
    topic_id: uuid.UUID

    @property
    def missing(self) -> str:
        return f"{self.topic}-missing"

    def fresh(self, what: str) -> str:
        return f"{what}-{uuid.uuid4().hex[:12]}"


def make_world(client: RawClient) -> World:
    name = f"world-{uuid.uuid4().hex[:12]}"
    topic_id = client.create_topic(name, partitions=2)
    assert client.produce(name, 0, batch_of(b"a", b"b", b"c"))["error_code"] == 0
    return World(name, topic_id)


Exchange = Callable[[RawClient, int, World], None]
Body = dict[str, Any]


def only(rows: list[Body]) -> Body:
    assert len(rows) == 1, rows[:3]
    return rows[0]


# --- produce and fetch -------------------------------------------------------------------------------------


def _produce(client: RawClient, version: int, topic: str, topic_id: uuid.UUID, index: int) -> Body:
    data = {"name": topic, "topic_id": topic_id}
    data["partition_data"] = [{"index": index, "records": batch_of(b"x", b"y")}]
    answer = client.ask(ApiKey.PRODUCE, version, {"acks": -1, "timeout_ms": 9000, "topic_data": [data]})
    topic_row = only(answer["responses"])
    assert (topic_row["topic_id"] if version >= 13 else topic_row["name"]) == (
        topic_id if version >= 13 else topic
    )
    return only(topic_row["partition_responses"])


def produce(client: RawClient, version: int, world: World) -> None:
    before = client.end_offset(world.topic, 1)
    row = _produce(client, version, world.topic, world.topic_id, 1)
    assert (row["index"], row["error_code"], row["base_offset"]) == (1, 0, before)
    assert row["log_start_offset"] == (0 if version >= 5 else -1)
    assert client.end_offset(world.topic, 1) == before + 2


def produce_refused(client: RawClient, version: int, world: World) -> None:
    row = _produce(client, version, world.missing, STRANGE_ID, 0)
    assert row["error_code"] == (E.UNKNOWN_TOPIC_ID if version >= 13 else E.UNKNOWN_TOPIC_OR_PARTITION)
    assert row["base_offset"] == -1
    row = _produce(client, version, world.topic, world.topic_id, 77)
    assert (row["index"], row["error_code"]) == (77, E.UNKNOWN_TOPIC_OR_PARTITION)
    assert (row["error_message"] is not None) == (version >= 8)


def _fetch(client: RawClient, version: int, key: tuple[str, uuid.UUID], index: int, offset: int) -> Body:
    asked = {"partition": index, "fetch_offset": offset, "partition_max_bytes": 2**20}
    topics = [{"topic": key[0], "topic_id": key[1], "partitions": [asked]}]
    body = {"max_wait_ms": 10, "min_bytes": 1, "max_bytes": 2**20, "topics": topics, "isolation_level": 1}
    answer = client.ask(ApiKey.FETCH, version, {**body, "rack_id": "here"})
    assert answer["error_code"] == 0
    topic_row = only(answer["responses"])
    assert (topic_row["topic_id"] if version >= 13 else topic_row["topic"]) == key[version >= 13]
    return only(topic_row["partitions"])


def fetch(client: RawClient, version: int, world: World) -> None:
    row = _fetch(client, version, world[:2], 0, 0)
    assert (row["partition_index"], row["error_code"], row["high_watermark"]) == (0, 0, 3)
    assert row["last_stable_offset"] == 3
    assert bytes(row["records"])[57:61] == (3).to_bytes(4, "big")
    row = _fetch(client, version, world[:2], 0, 3)
    assert (row["error_code"], len(row["records"])) == (0, 0)


def fetch_refused(client: RawClient, version: int, world: World) -> None:
    row = _fetch(client, version, (world.missing, STRANGE_ID), 0, 0)
    assert row["error_code"] == (E.UNKNOWN_TOPIC_ID if version >= 13 else E.UNKNOWN_TOPIC_OR_PARTITION)
    for index in (-1, 2):
        row = _fetch(client, version, world[:2], index, 0)
        assert row["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION
    for offset in (-1, 4, 2**63 - 1):
        row = _fetch(client, version, world[:2], 0, offset)
        assert (row["error_code"], len(row["records"])) == (E.OFFSET_OUT_OF_RANGE, 0)


# --- offsets of logs -----------------------------------------------------------------------------------------


def _list_offsets(client: RawClient, version: int, name: str, index: int, timestamp: int) -> Body:
    asked = {"partition_index": index, "timestamp": timestamp}
    topics = [{"name": name, "partitions": [asked]}]
    body = {"replica_id": -1, "isolation_level": 1, "topics": topics, "timeout_ms": 1000}
    topic_row = only(client.ask(ApiKey.LIST_OFFSETS, version, body)["topics"])
    assert topic_row["name"] == name
    return only(topic_row["partitions"])


def list_offsets(client: RawClient, version: int, world: World) -> None:
    for timestamp, offset in ((-1, 3), (-2, 0), (-4, 0), (-5, -1), (0, 0), (2**62, -1)):
        row = _list_offsets(client, version, world.topic, 0, timestamp)
        assert (row["error_code"], row["offset"]) == (0, offset), (timestamp, row)
        assert row["leader_epoch"] == (0 if version >= 4 and offset >= 0 else -1)


def list_offsets_refused(client: RawClient, version: int, world: World) -> None:
    for name, index in ((world.missing, 0), (world.topic, -1), (world.topic, 2)):
        row = _list_offsets(client, version, name, index, -1)
        assert (row["error_code"], row["offset"]) == (E.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert _list_offsets(client, version, world.topic, 0, -99)["error_code"] != 0


def _leader_epoch(client: RawClient, version: int, name: str, index: int, epoch: int) -> Body:
    asked = {"partition": index, "current_leader_epoch": 0, "leader_epoch": epoch}
    body = {"replica_id": -1, "topics": [{"topic": name, "partitions": [asked]}]}
    topic_row = only(client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, body)["topics"])
    assert topic_row["topic"] == name
    return only(topic_row["partitions"])


def offset_for_leader_epoch(client: RawClient, version: int, world: World) -> None:
    row = _leader_epoch(client, version, world.topic, 0, 0)
    assert (row["error_code"], row["leader_epoch"], row["end_offset"]) == (0, 0, 3)


def offset_for_leader_epoch_refused(client: RawClient, version: int, world: World) -> None:
    for name, index in ((world.missing, 0), (world.topic, -1), (world.topic, 2)):
        row = _leader_epoch(client, version, name, index, 0)
        assert (row["error_code"], row["end_offset"]) == (E.UNKNOWN_TOPIC_OR_PARTITION, -1)


def _delete_records(client: RawClient, version: int, name: str, index: int, offset: int) -> Body:
    topics = [{"name": name, "partitions": [{"partition_index": index, "offset": offset}]}]
    topic_row = only(
        client.ask(ApiKey.DELETE_RECORDS, version, {"topics": topics, "timeout_ms": 9000})["topics"]
    )
    assert topic_row["name"] == name
    return only(topic_row["partitions"])


def delete_records(client: RawClient, version: int, world: World) -> None:
    name = world.fresh("shortened")
    client.create_topic(name)
    client.produce(name, 0, batch_of(b"a", b"b"))
    row = _delete_records(client, version, name, 0, 1)
    assert (row["error_code"], row["low_watermark"]) == (0, 1)
    row = _delete_records(client, version, name, 0, -1)
    assert (row["error_code"], row["low_watermark"]) == (0, 2)


def delete_records_refused(client: RawClient, version: int, world: World) -> None:
    for name, index in ((world.missing, 0), (world.topic, -1), (world.topic, 2)):
        row = _delete_records(client, version, name, index, 0)
        assert row["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION
    for offset in (4, -2, 2**63 - 1):
        row = _delete_records(client, version, world.topic, 0, offset)
        assert (row["error_code"], row["low_watermark"]) == (E.OFFSET_OUT_OF_RANGE, -1)


# --- the cluster -----------------------------------------------------------------------------------------------


def api_versions(client: RawClient, version: int, world: World) -> None:
    software = {"client_software_name": "raw", "client_software_version": "1.0"}
    answer = client.ask(ApiKey.API_VERSIONS, version, software)
    assert answer["error_code"] == 0
    rows = {row["api_key"]: (row["min_version"], row["max_version"]) for row in answer["api_keys"]}
    assert rows[ApiKey.API_VERSIONS] == (0, 4)
    assert rows[ApiKey.PRODUCE][0] == 0
    assert set(rows) == set(EXCHANGES)


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
        assert answer["error_code"] == E.UNSUPPORTED_ENDPOINT_TYPE
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
    assert [row["partitions"] for row in folder["topics"]] == [[]]


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


# --- topics and configs ------------------------------------------------------------------------------------------


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


def _alter_refused(key: ApiKey) -> Exchange:
    def refused(client: RawClient, version: int, world: World) -> None:
        refusals: list[tuple[int, str, str, str | None, E]] = [
            (TOPIC, world.missing, "retention.ms", "1", E.UNKNOWN_TOPIC_OR_PARTITION),
            (TOPIC, world.topic, "no.such", "1", E.INVALID_CONFIG),
            (TOPIC, world.topic, "retention.ms", "soon", E.INVALID_CONFIG),
            (TOPIC, world.topic, "retention.ms", None, E.INVALID_CONFIG),
            (BROKER, "0", "num.partitions", "1", E.INVALID_CONFIG),
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


# --- producers and coordinators ------------------------------------------------------------------------------------


def init_producer_id(client: RawClient, version: int, world: World) -> None:
    body = {"transactional_id": None, "transaction_timeout_ms": 1000}
    ids = []
    for _ in range(2):
        answer = client.ask(ApiKey.INIT_PRODUCER_ID, version, body)
        assert (answer["error_code"], answer["producer_epoch"]) == (0, 0)
        ids.append(answer["producer_id"])
    assert 0 <= ids[0] < ids[1]


def init_producer_id_refused(client: RawClient, version: int, world: World) -> None:
    answer = client.ask(ApiKey.INIT_PRODUCER_ID, version, {"transactional_id": "tx"})
    assert answer["error_code"] == E.INVALID_REQUEST
    assert (answer["producer_id"], answer["producer_epoch"]) == (-1, -1)


def _find_coordinator(client: RawClient, version: int, kind: int, key: str) -> Body:
    body = {"key": key, "key_type": kind, "coordinator_keys": [key]}
    answer = client.ask(ApiKey.FIND_COORDINATOR, version, body)
    if version < 4:
        return answer
    row = only(answer["coordinators"])
    assert row["key"] == key
    return row


def find_coordinator(client: RawClient, version: int, world: World) -> None:
    row = _find_coordinator(client, version, 0, "some-group")
    assert (row["error_code"], row["error_message"] or None, row["node_id"]) == (0, None, 0)
    assert (row["host"], row["port"]) == client.sock.getpeername()


def find_coordinator_refused(client: RawClient, version: int, world: World) -> None:
    refusals = [(0, "", E.INVALID_GROUP_ID)]
    if version >= 1:
        refusals += [
            (1, "tx", E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if version < 4 else E.INVALID_REQUEST),
            (2, "share", E.INVALID_REQUEST),
            (-3, "x", E.INVALID_REQUEST),
        ]
    for kind, key, code in refusals:
        row = _find_coordinator(client, version, kind, key)
        assert (row["error_code"], row["node_id"]) == (code, -1)
        assert bool(row["error_message"]) == (version >= 1)


# --- groups ----------------------------------------------------------------------------------------------------------


def _join(client: RawClient, version: int, group: str, member: str, **more: Any) -> Body:
    body = {
        "group_id": group,
        "session_timeout_ms": 6000,
        "rebalance_timeout_ms": 6000,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"meta"}],
        "reason": "test",
    }
    return client.ask(ApiKey.JOIN_GROUP, version, {**body, **more})


def _joined(client: RawClient, version: int, group: str) -> Body:
    answer = _join(client, version, group, "")
    if version >= 4:
        assert answer["error_code"] == E.MEMBER_ID_REQUIRED
        answer = _join(client, version, group, answer["member_id"])
    return answer


def _sync(client: RawClient, version: int, group: str, joined: Body, **more: Any) -> Body:
    member = joined["member_id"]
    body = {
        "group_id": group,
        "generation_id": joined["generation_id"],
        "member_id": member,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member, "assignment": b"yours"}],
    }
    return client.ask(ApiKey.SYNC_GROUP, version, {**body, **more})


def _stable(client: RawClient, world: World) -> tuple[str, Body]:
    """A group with one member that has its assignment."""
    group = world.fresh("group")
    joined = _joined(client, 5, group)
    assert _sync(client, 3, group, joined)["error_code"] == 0
    return group, joined


def join_group(client: RawClient, version: int, world: World) -> None:
    answer = _joined(client, version, world.fresh("group"))
    assert (answer["error_code"], answer["generation_id"], answer["protocol_name"]) == (0, 1, "range")
    assert answer["leader"] == answer["member_id"] == only(answer["members"])["member_id"]
    assert answer["members"][0]["metadata"] == b"meta"
    if version >= 7:
        assert answer["protocol_type"] == "consumer"


def join_group_refused(client: RawClient, version: int, world: World) -> None:
    assert _join(client, version, "", "")["error_code"] == E.INVALID_GROUP_ID
    group = world.fresh("group")
    assert _join(client, version, group, "", session_timeout_ms=1)["error_code"] == E.INVALID_SESSION_TIMEOUT
    answer = _join(client, version, group, "nobody")
    assert answer["error_code"] == E.UNKNOWN_MEMBER_ID
    assert answer["members"] == []


def sync_group(client: RawClient, version: int, world: World) -> None:
    group = world.fresh("group")
    answer = _sync(client, version, group, _joined(client, 5, group))
    assert (answer["error_code"], answer["assignment"]) == (0, b"yours")
    if version >= 5:
        assert (answer["protocol_type"], answer["protocol_name"]) == ("consumer", "range")


def sync_group_refused(client: RawClient, version: int, world: World) -> None:
    group, joined = _stable(client, world)
    answer = _sync(client, version, group, {**joined, "member_id": "nobody"})
    assert (answer["error_code"], answer["assignment"]) == (E.UNKNOWN_MEMBER_ID, b"")
    assert _sync(client, version, group, {**joined, "generation_id": 9})["error_code"] == E.ILLEGAL_GENERATION
    if version >= 5:
        answer = _sync(client, version, group, joined, protocol_name="sticky")
        assert answer["error_code"] == E.INCONSISTENT_GROUP_PROTOCOL


def _heartbeat(client: RawClient, version: int, group: str, member: str, generation: int) -> int:
    body = {"group_id": group, "member_id": member, "generation_id": generation}
    code: int = client.ask(ApiKey.HEARTBEAT, version, body)["error_code"]
    return code


def heartbeat(client: RawClient, version: int, world: World) -> None:
    group, joined = _stable(client, world)
    assert _heartbeat(client, version, group, joined["member_id"], joined["generation_id"]) == 0


def heartbeat_refused(client: RawClient, version: int, world: World) -> None:
    group, joined = _stable(client, world)
    assert _heartbeat(client, version, group, "nobody", 1) == E.UNKNOWN_MEMBER_ID
    assert _heartbeat(client, version, group, joined["member_id"], 9) == E.ILLEGAL_GENERATION
    assert _heartbeat(client, version, world.fresh("group"), "m", 1) == E.UNKNOWN_MEMBER_ID


def _leave(client: RawClient, version: int, group: str, member: str) -> int:
    body = {"group_id": group, "member_id": member, "members": [{"member_id": member, "reason": "bye"}]}
    answer = client.ask(ApiKey.LEAVE_GROUP, version, body)
    if version < 3:
        return int(answer["error_code"])
    assert answer["error_code"] == 0
    return int(only(answer["members"])["error_code"])


def leave_group(client: RawClient, version: int, world: World) -> None:
    group, joined = _stable(client, world)
    assert _leave(client, version, group, joined["member_id"]) == 0
    assert _heartbeat(client, 0, group, joined["member_id"], 1) == E.UNKNOWN_MEMBER_ID


def leave_group_refused(client: RawClient, version: int, world: World) -> None:
    group, _ = _stable(client, world)
    assert _leave(client, version, group, "nobody") == E.UNKNOWN_MEMBER_ID


def describe_groups(client: RawClient, version: int, world: World) -> None:
    group, joined = _stable(client, world)
    body = {"groups": [group], "include_authorized_operations": True}
    row = only(client.ask(ApiKey.DESCRIBE_GROUPS, version, body)["groups"])
    assert (row["group_id"], row["error_code"], row["group_state"]) == (group, 0, "Stable")
    assert (row["protocol_type"], row["protocol_data"]) == ("consumer", "range")
    member = only(row["members"])
    assert (member["member_id"], member["client_id"]) == (joined["member_id"], "raw")
    assert (member["member_metadata"], member["member_assignment"]) == (b"meta", b"yours")
    assert (row["authorized_operations"] > 0) == (version >= 3)


def describe_groups_refused(client: RawClient, version: int, world: World) -> None:
    row = only(client.ask(ApiKey.DESCRIBE_GROUPS, version, {"groups": [world.fresh("no")]})["groups"])
    assert row["error_code"] == (E.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    assert (row["group_state"], row["members"]) == ("Dead", [])
    assert bool(row["error_message"]) == (version >= 6)


def list_groups(client: RawClient, version: int, world: World) -> None:
    group, _ = _stable(client, world)
    answer = client.ask(ApiKey.LIST_GROUPS, version, {})
    assert answer["error_code"] == 0
    row = only([row for row in answer["groups"] if row["group_id"] == group])
    assert row["protocol_type"] == "consumer"
    assert row["group_state"] == ("Stable" if version >= 4 else "")
    assert row["group_type"] == ("classic" if version >= 5 else "")


def list_groups_refused(client: RawClient, version: int, world: World) -> None:
    if version >= 4:
        assert client.ask(ApiKey.LIST_GROUPS, version, {"states_filter": ["Nonsense"]})["groups"] == []
    if version >= 5:
        assert client.ask(ApiKey.LIST_GROUPS, version, {"types_filter": ["share"]})["groups"] == []


def delete_groups(client: RawClient, version: int, world: World) -> None:
    group = _committed(client, world)
    row = only(client.ask(ApiKey.DELETE_GROUPS, version, {"groups_names": [group]})["results"])
    assert (row["group_id"], row["error_code"]) == (group, 0)


def delete_groups_refused(client: RawClient, version: int, world: World) -> None:
    busy, _ = _stable(client, world)
    for group, code in ((busy, E.NON_EMPTY_GROUP), (world.fresh("no"), E.GROUP_ID_NOT_FOUND)):
        row = only(client.ask(ApiKey.DELETE_GROUPS, version, {"groups_names": [group]})["results"])
        assert (row["group_id"], row["error_code"]) == (group, code)


# --- committed offsets ---------------------------------------------------------------------------------------------


def _commit(client: RawClient, version: int, group: str, key: tuple[str, uuid.UUID], **more: Any) -> int:
    index = more.pop("index", 0)
    asked = {"partition_index": index, "committed_offset": 2, "committed_metadata": "note"}
    topics = [{"name": key[0], "topic_id": key[1], "partitions": [asked]}]
    answer = client.ask(ApiKey.OFFSET_COMMIT, version, {"group_id": group, "topics": topics, **more})
    topic_row = only(answer["topics"])
    assert (topic_row["topic_id"] if version >= 10 else topic_row["name"]) == key[version >= 10]
    row = only(topic_row["partitions"])
    assert row["partition_index"] == index
    return int(row["error_code"])


def _committed(client: RawClient, world: World) -> str:
    """A group without members that has committed offset 2 of the first partition."""
    group = world.fresh("group")
    assert _commit(client, 8, group, world[:2]) == 0
    return group


def offset_commit(client: RawClient, version: int, world: World) -> None:
    assert _commit(client, version, world.fresh("group"), world[:2]) == 0
    group, joined = _stable(client, world)
    member = {"member_id": joined["member_id"], "generation_id_or_member_epoch": joined["generation_id"]}
    assert _commit(client, version, group, world[:2], **member) == 0


def offset_commit_refused(client: RawClient, version: int, world: World) -> None:
    group, joined = _stable(client, world)
    unknown = {"member_id": "nobody", "generation_id_or_member_epoch": 1}
    assert _commit(client, version, group, world[:2], **unknown) == E.UNKNOWN_MEMBER_ID
    stale = {"member_id": joined["member_id"], "generation_id_or_member_epoch": 9}
    assert _commit(client, version, group, world[:2], **stale) == E.ILLEGAL_GENERATION
    for index in (-1, 2):
        code = _commit(client, version, world.fresh("group"), world[:2], index=index)
        assert code == E.UNKNOWN_TOPIC_OR_PARTITION
    code = _commit(client, version, world.fresh("group"), (world.missing, STRANGE_ID))
    assert code == (E.UNKNOWN_TOPIC_ID if version >= 10 else E.UNKNOWN_TOPIC_OR_PARTITION)


def _fetch_offsets(client: RawClient, version: int, group: str, topics: list[Body] | None) -> Body:
    asked = {"group_id": group, "topics": topics}
    if version >= 8:
        row = only(client.ask(ApiKey.OFFSET_FETCH, version, {"groups": [asked]})["groups"])
        assert row["group_id"] == group
        return row
    return client.ask(ApiKey.OFFSET_FETCH, version, {**asked, "require_stable": version >= 7})


def offset_fetch(client: RawClient, version: int, world: World) -> None:
    group = _committed(client, world)
    topic = {"topic_id": world.topic_id} if version >= 10 else {"name": world.topic}
    answer = _fetch_offsets(client, version, group, [{**topic, "partition_indexes": [0, 1, -1]}])
    assert answer["error_code"] == 0
    topic_row = only(answer["topics"])
    assert topic_row.items() >= topic.items()
    rows = [
        (row["partition_index"], row["committed_offset"], row["error_code"])
        for row in topic_row["partitions"]
    ]
    assert rows == [(0, 2, 0), (1, -1, 0), (-1, -1, 0)]
    assert topic_row["partitions"][0]["metadata"] == "note"
    if version >= 2:
        everything = only(_fetch_offsets(client, version, group, None)["topics"])
        assert everything.items() >= topic.items()
        assert only(everything["partitions"])["committed_offset"] == 2


def offset_fetch_refused(client: RawClient, version: int, world: World) -> None:
    topic = {"topic_id": STRANGE_ID} if version >= 10 else {"name": world.missing}
    answer = _fetch_offsets(client, version, world.fresh("no"), [{**topic, "partition_indexes": [0]}])
    row = only(only(answer["topics"])["partitions"])
    assert row["committed_offset"] == -1
    assert row["error_code"] == (E.UNKNOWN_TOPIC_ID if version >= 10 else 0)


def _delete_offsets(client: RawClient, version: int, group: str, topic: str, index: int) -> Body:
    topics = [{"name": topic, "partitions": [{"partition_index": index}]}]
    return client.ask(ApiKey.OFFSET_DELETE, version, {"group_id": group, "topics": topics})


def offset_delete(client: RawClient, version: int, world: World) -> None:
    group = _committed(client, world)
    answer = _delete_offsets(client, version, group, world.topic, 0)
    assert answer["error_code"] == 0
    assert only(only(answer["topics"])["partitions"])["error_code"] == 0
    topics = _fetch_offsets(client, 2, group, None)["topics"]
    assert topics == []


def offset_delete_refused(client: RawClient, version: int, world: World) -> None:
    assert (
        _delete_offsets(client, version, world.fresh("no"), world.topic, 0)["error_code"]
        == E.GROUP_ID_NOT_FOUND
    )
    group = _committed(client, world)
    for index in (-1, 2):
        answer = _delete_offsets(client, version, group, world.topic, index)
        row = only(only(answer["topics"])["partitions"])
        assert row["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION


EXCHANGES: dict[ApiKey, tuple[Exchange, Exchange]] = {
    ApiKey.PRODUCE: (produce, produce_refused),
    ApiKey.FETCH: (fetch, fetch_refused),
    ApiKey.LIST_OFFSETS: (list_offsets, list_offsets_refused),
    ApiKey.METADATA: (metadata, metadata_refused),
    ApiKey.OFFSET_COMMIT: (offset_commit, offset_commit_refused),
    ApiKey.OFFSET_FETCH: (offset_fetch, offset_fetch_refused),
    ApiKey.FIND_COORDINATOR: (find_coordinator, find_coordinator_refused),
    ApiKey.JOIN_GROUP: (join_group, join_group_refused),
    ApiKey.HEARTBEAT: (heartbeat, heartbeat_refused),
    ApiKey.LEAVE_GROUP: (leave_group, leave_group_refused),
    ApiKey.SYNC_GROUP: (sync_group, sync_group_refused),
    ApiKey.DESCRIBE_GROUPS: (describe_groups, describe_groups_refused),
    ApiKey.LIST_GROUPS: (list_groups, list_groups_refused),
    ApiKey.API_VERSIONS: (api_versions, api_versions_refused),
    ApiKey.CREATE_TOPICS: (create_topics, create_topics_refused),
    ApiKey.DELETE_TOPICS: (delete_topics, delete_topics_refused),
    ApiKey.DELETE_RECORDS: (delete_records, delete_records_refused),
    ApiKey.INIT_PRODUCER_ID: (init_producer_id, init_producer_id_refused),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (offset_for_leader_epoch, offset_for_leader_epoch_refused),
    ApiKey.DESCRIBE_CONFIGS: (describe_configs, describe_configs_refused),
    ApiKey.ALTER_CONFIGS: (alter_configs, _alter_refused(ApiKey.ALTER_CONFIGS)),
    ApiKey.DESCRIBE_LOG_DIRS: (describe_log_dirs, describe_log_dirs_refused),
    ApiKey.CREATE_PARTITIONS: (create_partitions, create_partitions_refused),
    ApiKey.DELETE_GROUPS: (delete_groups, delete_groups_refused),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        incremental_alter_configs,
        _alter_refused(ApiKey.INCREMENTAL_ALTER_CONFIGS),
    ),
    ApiKey.OFFSET_DELETE: (offset_delete, offset_delete_refused),
    ApiKey.DESCRIBE_CLUSTER: (describe_cluster, describe_cluster_refused),
    ApiKey.DESCRIBE_PRODUCERS: (describe_producers, describe_producers_refused),
    ApiKey.LIST_CONFIG_RESOURCES: (list_config_resources, list_config_resources_refused),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (describe_topic_partitions, describe_topic_partitions_refused),
}
