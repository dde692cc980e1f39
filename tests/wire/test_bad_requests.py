"""Requests whose frame is whole and whose contents are wrong: a close for what cannot be read, else an error code."""

import struct
import uuid

import pytest

from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import encode_request
from anabranch.wire.error_codes import ErrorCode as E
from anabranch.wire.header import request_header
from support.exchanges import World, make_world, only
from support.raw_client import RawClient, batch_of, fetch_body, produce_body
from support.wire_node import WireNode

pytestmark = pytest.mark.usefixtures("others_served")

LONGEST_STRING = "x" * 32767
ILLEGAL_NAMES = ["..", ".", "/", "", "x" * 250, "a/b", "../../etc", "a b", "ü", "a\0b", "a\nb", "a:b", "日本"]


@pytest.fixture
def world(node: WireNode) -> World:
    with RawClient(node.bootstrap) as client:
        return make_world(client)


def send(client: RawClient, key: ApiKey, version: int, body: bytes) -> None:
    client.send_frame(request_header(key, version, 1, "raw") + body)


# --- what cannot be read closes ------------------------------------------------------------------------------------

INT32_MAX, COMPACT_MAX = b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07"
UNREADABLE = {
    "array length beyond the frame": (ApiKey.METADATA, 1, INT32_MAX),
    "compact array length beyond the frame": (ApiKey.METADATA, 9, COMPACT_MAX + b"\0\0\0\0"),
    "array length just beyond the frame": (ApiKey.METADATA, 1, struct.pack(">ih", 2, 0)),
    "array length -2": (ApiKey.METADATA, 1, struct.pack(">i", -2)),
    "topic array null where it may not be": (ApiKey.METADATA, 0, struct.pack(">i", -1)),
    "compact array null where it may not be": (ApiKey.DELETE_TOPICS, 4, b"\0" + b"\0\0\0\1" + b"\0"),
    "string length -1 where it may not be null": (ApiKey.METADATA, 1, struct.pack(">ih", 1, -1)),
    "compact string null where it may not be": (ApiKey.HEARTBEAT, 4, b"\0\0\0\0\1\1\0\0"),
    "string length -2": (ApiKey.METADATA, 1, struct.pack(">ih", 1, -2)),
    "string length beyond the frame": (ApiKey.METADATA, 1, struct.pack(">ih", 1, 32767)),
    "nullable string length -2": (ApiKey.INIT_PRODUCER_ID, 0, struct.pack(">hi", -2, 0)),
    "bytes length -1 where it may not be null": (
        ApiKey.SYNC_GROUP,
        0,
        struct.pack(">hih", 0, 0, 0) + struct.pack(">ihi", 1, 0, -1),
    ),
    "bytes length -7": (ApiKey.SYNC_GROUP, 0, struct.pack(">hihihi", 0, 0, 0, 1, 0, -7)),
    "bytes length beyond the frame": (ApiKey.SYNC_GROUP, 0, struct.pack(">hihihi", 0, 0, 0, 1, 0, 2**31 - 1)),
    "string that is not UTF-8": (ApiKey.METADATA, 1, struct.pack(">ih", 1, 2) + b"\xc3\x28"),
    "string with half a surrogate pair": (ApiKey.METADATA, 1, struct.pack(">ih", 1, 3) + b"\xed\xa0\x80"),
    "varint that does not end": (ApiKey.METADATA, 9, b"\xff" * 20),
    "tags beyond the frame": (ApiKey.METADATA, 9, b"\x01\0\0\0" + COMPACT_MAX),
    "tag longer than the frame": (ApiKey.METADATA, 9, b"\x01\0\0\0\x01\x00" + COMPACT_MAX),
    "body missing": (ApiKey.METADATA, 1, b""),
    "body cut short": (ApiKey.LIST_OFFSETS, 1, struct.pack(">i", -1)),
    "produce: array length beyond the frame": (ApiKey.PRODUCE, 3, struct.pack(">hhii", -1, 1, 0, 2**31 - 1)),
    "produce: records longer than the frame": (
        ApiKey.PRODUCE,
        3,
        struct.pack(">hhiih", -1, 1, 0, 1, 1) + b"t" + struct.pack(">iii", 1, 0, 2**31 - 1),
    ),
    "produce: records length -2": (
        ApiKey.PRODUCE,
        3,
        struct.pack(">hhiih", -1, 1, 0, 1, 1) + b"t" + struct.pack(">iii", 1, 0, -2),
    ),
    "produce: compact records longer than the frame": (
        ApiKey.PRODUCE,
        9,
        b"\0" + struct.pack(">hi", 1, 0) + b"\x02\x02t\x02" + struct.pack(">i", 0) + COMPACT_MAX + b"\0\0\0",
    ),
    "produce: topic name that is not UTF-8": (
        ApiKey.PRODUCE,
        3,
        struct.pack(">hhiih", -1, 1, 0, 1, 1) + b"\xff" + struct.pack(">i", 0),
    ),
    "fetch: array length beyond the frame": (
        ApiKey.FETCH,
        4,
        struct.pack(">iiiibi", -1, 0, 0, 2**20, 0, 2**31 - 1),
    ),
    "fetch: null topics": (ApiKey.FETCH, 4, struct.pack(">iiiibi", -1, 0, 0, 2**20, 0, -1)),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_request_that_cannot_be_read_closes_its_connection(client: RawClient, case: str) -> None:
    send(client, *UNREADABLE[case])
    client.expect_closed()


def test_bytes_behind_a_request_are_ignored_as_kafka_does(client: RawClient) -> None:
    send(client, ApiKey.METADATA, 1, struct.pack(">i", 0) + b"???")
    assert client.receive_frame()[:4] == (1).to_bytes(4, "big")


@pytest.mark.parametrize("kept", range(1, 40, 3))
def test_a_produce_request_cut_anywhere_appends_nothing(client: RawClient, topic: str, kept: int) -> None:
    body = encode_request(ApiKey.PRODUCE, 9, produce_body(topic, 0, batch_of(b"x")))
    with RawClient("{}:{}".format(*client.sock.getpeername())) as bad:
        send(bad, ApiKey.PRODUCE, 9, body[: len(body) * kept // 40])
        bad.expect_closed()
    assert client.end_offset(topic) == 0


# --- topic names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ILLEGAL_NAMES, ids=repr)
def test_an_illegal_topic_name_is_refused_by_every_api_that_takes_one(client: RawClient, name: str) -> None:
    topics = [{"name": name}]
    asked = client.ask(ApiKey.METADATA, 9, {"topics": topics, "allow_auto_topic_creation": True})
    assert only(asked["topics"])["error_code"] == E.INVALID_TOPIC_EXCEPTION
    new = {"name": name, "num_partitions": 1, "replication_factor": 1}
    made = only(client.ask(ApiKey.CREATE_TOPICS, 5, {"topics": [new]})["topics"])
    assert made["error_code"] == E.INVALID_TOPIC_EXCEPTION
    assert made["error_message"]
    assert client.produce(name, 0, batch_of(b"x"))["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION
    assert client.fetch(name, 0, 0)["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION
    gone = only(client.ask(ApiKey.DELETE_TOPICS, 5, {"topic_names": [name]})["responses"])
    assert gone["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION
    described = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": topics})
    assert only(described["topics"])["error_code"] == E.INVALID_TOPIC_EXCEPTION
    resource = {"resource_type": 2, "resource_name": name}
    configs = only(client.ask(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [resource]})["results"])
    assert configs["error_code"] == E.INVALID_TOPIC_EXCEPTION


def test_a_topic_name_of_249_characters_is_made_and_used(client: RawClient) -> None:
    name = uuid.uuid4().hex + "x" * 217
    client.create_topic(name)
    assert client.produce(name, 0, batch_of(b"x"))["error_code"] == 0


def test_the_longest_string_is_refused_wherever_a_name_is_asked_for(client: RawClient) -> None:
    """An error message that quotes what it refuses must itself fit into a string."""
    name = LONGEST_STRING
    assert client.produce(name, 0, batch_of(b"x"))["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION
    row = only(client.ask(ApiKey.DELETE_TOPICS, 5, {"topic_names": [name]})["responses"])
    assert row["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION
    row = only(client.ask(ApiKey.CREATE_PARTITIONS, 3, {"topics": [{"name": name, "count": 3}]})["results"])
    assert row["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION
    row = only(client.ask(ApiKey.DESCRIBE_GROUPS, 6, {"groups": [name]})["groups"])
    assert row["error_code"] == E.INVALID_GROUP_ID
    asked = [{"name": name, "partition_indexes": [0]}]
    row = only(only(client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": asked})["topics"])["partitions"])
    assert row["error_code"] == E.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["no.such", LONGEST_STRING, "", "retention.ms\0"], ids=len)
def test_a_config_of_any_name_is_refused_by_name(client: RawClient, topic: str, name: str) -> None:
    resource = {"resource_type": 2, "resource_name": topic, "configs": [{"name": name, "value": name}]}
    for key in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
        row = only(client.ask(key, 1, {"resources": [resource]})["responses"])
        assert row["error_code"] == E.INVALID_CONFIG
        assert name[:100] in row["error_message"]


def test_a_config_value_of_the_longest_kind_is_refused(client: RawClient, topic: str) -> None:
    configs = [{"name": "retention.ms", "value": LONGEST_STRING}]
    resource = {"resource_type": 2, "resource_name": topic, "configs": configs}
    row = only(client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})["responses"])
    assert row["error_code"] == E.INVALID_CONFIG
    assert "retention.ms" in row["error_message"]


# --- partitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [-1, 2, 2**31 - 1, -(2**31)])
def test_a_partition_that_is_not_there_is_refused_by_every_api_that_takes_one(
    client: RawClient, world: World, index: int
) -> None:
    name = world.topic
    assert client.produce(name, index, batch_of(b"x"))["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION
    assert client.fetch(name, index, 0)["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION
    asked = {"partition_index": index, "timestamp": -1, "offset": 0}
    offsets = [{"name": name, "partitions": [{"partition_index": index, "timestamp": -1}]}]
    delete = [{"name": name, "partitions": [{"partition_index": index, "offset": 0}]}]
    epochs = [{"topic": name, "partitions": [{"partition": index, "leader_epoch": 0}]}]
    commits = [{"name": name, "partitions": [{"partition_index": index, "committed_metadata": None}]}]
    producers = [{"name": name, "partition_indexes": [index]}]
    for key, version, body in (
        (ApiKey.LIST_OFFSETS, 7, {"replica_id": -1, "topics": offsets}),
        (ApiKey.DELETE_RECORDS, 2, {"topics": delete}),
        (ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, {"topics": epochs}),
        (ApiKey.OFFSET_COMMIT, 8, {"group_id": world.fresh("g"), "topics": commits}),
        (ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": producers}),
    ):
        row = only(only(client.ask(key, version, body)["topics"])["partitions"])
        assert row["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION, (key, row, asked)


def test_the_same_partition_twice_in_one_produce_appends_it_once(client: RawClient, topic: str) -> None:
    rows = [{"index": 0, "records": batch_of(b"1")}, {"index": 0, "records": batch_of(b"2")}]
    body = {"acks": -1, "timeout_ms": 9000, "topic_data": [{"name": topic, "partition_data": rows}]}
    answer = client.ask(ApiKey.PRODUCE, 9, body)
    codes = [row["error_code"] for row in only(answer["responses"])["partition_responses"]]
    assert codes == [0, E.INVALID_REQUEST]
    assert client.end_offset(topic) == 1


def test_the_same_topic_twice_in_one_produce_appends_a_partition_once(client: RawClient, topic: str) -> None:
    data = {"name": topic, "partition_data": [{"index": 0, "records": batch_of(b"1")}]}
    answer = client.ask(ApiKey.PRODUCE, 9, {"acks": -1, "timeout_ms": 9000, "topic_data": [data, data]})
    codes = [only(row["partition_responses"])["error_code"] for row in answer["responses"]]
    assert codes == [0, E.INVALID_REQUEST]
    assert client.end_offset(topic) == 1


def test_the_same_partition_twice_in_list_offsets_is_refused_the_second_time(
    client: RawClient, topic: str
) -> None:
    asked = {"partition_index": 0, "timestamp": -1}
    topics = [{"name": topic, "partitions": [asked, asked]}]
    answer = client.ask(ApiKey.LIST_OFFSETS, 7, {"replica_id": -1, "topics": topics})
    codes = [row["error_code"] for row in only(answer["topics"])["partitions"]]
    assert codes == [0, E.INVALID_REQUEST]


def test_the_same_partition_twice_in_a_fetch_is_answered(client: RawClient, world: World) -> None:
    body = fetch_body(world.topic, 0, 0)
    body["topics"] *= 2
    for epoch in (-1, 0):
        answer = client.ask(ApiKey.FETCH, 12, {**body, "session_epoch": epoch})
        assert answer["error_code"] == 0
        assert {row["error_code"] for topic in answer["responses"] for row in topic["partitions"]} == {0}


def test_the_same_name_twice_in_create_topics_creates_nothing(client: RawClient) -> None:
    new = {"name": f"twice-{uuid.uuid4().hex[:8]}", "num_partitions": 1, "replication_factor": 1}
    row = only(client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [new, new]})["topics"])
    assert row["error_code"] == E.INVALID_REQUEST
    client.create_topic(new["name"])


def test_a_resource_asked_for_many_times_is_described_once(client: RawClient, topic: str) -> None:
    resource = {"resource_type": 2, "resource_name": topic}
    answer = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [resource] * 5000})
    assert only(answer["results"])["error_code"] == 0


@pytest.mark.parametrize("count", [0, -2, 10_001, 2**31 - 1])
def test_an_absurd_number_of_partitions_is_refused(client: RawClient, count: int) -> None:
    new = {"name": f"many-{uuid.uuid4().hex[:8]}", "num_partitions": count, "replication_factor": 1}
    row = only(client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [new]})["topics"])
    assert row["error_code"] == E.INVALID_PARTITIONS


# --- fetch -----------------------------------------------------------------------------------------------------------


def asked_topic(name: str, count: int) -> dict[str, object]:
    return {"name": name, "num_partitions": count, "replication_factor": 1, "assignments": [], "configs": []}


@pytest.mark.parametrize("first", [10_000, -(2**31)])
def test_request_for_too_many_partitions_in_all_creates_none(client: RawClient, first: int) -> None:
    topics = [asked_topic("crowd-0", first), *[asked_topic(f"crowd-{each}", 10_000) for each in range(1, 30)]]
    answer = client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout_ms": 30_000})
    assert {row["error_code"] for row in answer["topics"]} == {E.POLICY_VIOLATION}
    found = client.ask(
        ApiKey.METADATA, 9, {"topics": [{"name": "crowd-1"}], "allow_auto_topic_creation": False}
    )
    assert only(found["topics"])["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION


def test_partitions_beyond_what_a_broker_may_keep_are_refused(client: RawClient, topic: str) -> None:
    asked = {"topics": [asked_topic("crowd", 10_000)], "timeout_ms": 30_000}  # Besides those of `topic`.
    row = only(client.ask(ApiKey.CREATE_TOPICS, 7, asked)["topics"])
    assert row["error_code"] == E.INVALID_PARTITIONS
    assert "partitions.max" in row["error_message"]
    grown = {"topics": [{"name": topic, "count": 10_000, "assignments": None}], "timeout_ms": 30_000}
    assert client.ask(ApiKey.CREATE_PARTITIONS, 3, grown)["results"][0]["error_code"] == E.INVALID_PARTITIONS


@pytest.mark.parametrize("offset", [-1, -(2**63), 4, 2**63 - 1])
def test_an_offset_outside_the_log_is_out_of_range(client: RawClient, world: World, offset: int) -> None:
    row = client.fetch(world.topic, 0, offset)
    assert row["error_code"] == E.OFFSET_OUT_OF_RANGE
    assert len(row["records"]) == 0


@pytest.mark.parametrize("number", [-1, -(2**31), 0])
def test_byte_limits_and_waits_below_one_are_taken_as_none(
    client: RawClient, world: World, number: int
) -> None:
    body = fetch_body(world.topic, 0, 0, wait_ms=number)
    body.update(max_bytes=number, min_bytes=number)
    body["topics"][0]["partitions"][0]["partition_max_bytes"] = number
    row = only(only(client.ask(ApiKey.FETCH, 12, body)["responses"])["partitions"])
    assert row["error_code"] == 0
    assert len(row["records"]) > 0, "the first batch comes whole, whatever the limit"


def test_a_fetch_session_that_does_not_exist_is_told(client: RawClient, world: World) -> None:
    body = {**fetch_body(world.topic, 0, 0), "session_id": 12345, "session_epoch": 1}
    assert client.ask(ApiKey.FETCH, 12, body)["error_code"] == E.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("epoch", [-2, 9, 2**31 - 1])
def test_a_fetch_session_epoch_that_is_not_next_is_told(client: RawClient, world: World, epoch: int) -> None:
    body = {**fetch_body(world.topic, 0, 0), "session_epoch": 0}
    session = client.ask(ApiKey.FETCH, 12, body)["session_id"]
    assert session > 0
    body.update(session_id=session, session_epoch=epoch)
    assert client.ask(ApiKey.FETCH, 12, body)["error_code"] == E.INVALID_FETCH_SESSION_EPOCH


@pytest.mark.parametrize("epoch", [1, 2**31 - 1])
def test_a_leader_epoch_of_the_future_is_told(client: RawClient, world: World, epoch: int) -> None:
    body = fetch_body(world.topic, 0, 0)
    body["topics"][0]["partitions"][0]["current_leader_epoch"] = epoch
    row = only(only(client.ask(ApiKey.FETCH, 12, body)["responses"])["partitions"])
    assert row["error_code"] == E.UNKNOWN_LEADER_EPOCH


# --- produce ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [7, 2, -2, 32767])
def test_acks_that_mean_nothing_are_refused(client: RawClient, topic: str, acks: int) -> None:
    row = client.produce(topic, 0, batch_of(b"x"), acks)
    assert row["error_code"] == E.INVALID_REQUIRED_ACKS
    assert str(acks) in row["error_message"]
    assert client.end_offset(topic) == 0


def test_an_error_of_a_producer_without_acks_closes_its_connection(client: RawClient, topic: str) -> None:
    with RawClient("{}:{}".format(*client.sock.getpeername())) as bad:
        bad.send(ApiKey.PRODUCE, 9, produce_body(topic, 7, batch_of(b"x"), acks=0))
        bad.expect_closed()
    assert client.end_offset(topic) == 0


def test_writing_to_the_log_of_groups_is_refused(client: RawClient, world: World) -> None:
    commits = [{"name": world.topic, "partitions": [{"partition_index": 0, "committed_metadata": None}]}]
    client.ask(ApiKey.OFFSET_COMMIT, 8, {"group_id": world.fresh("g"), "topics": commits})
    for index in range(3):
        before = client.end_offset("__consumer_offsets", index)
        row = client.produce("__consumer_offsets", index, batch_of(b"garbage"))
        assert row["error_code"] == E.INVALID_TOPIC_EXCEPTION
        assert client.end_offset("__consumer_offsets", index) == before


# --- transactions are not there yet ----------------------------------------------------------------------------------


def test_a_transactional_id_is_refused_by_produce(client: RawClient, topic: str) -> None:
    body = {**produce_body(topic, 0, batch_of(b"x")), "transactional_id": "tx"}
    row = only(only(client.ask(ApiKey.PRODUCE, 9, body)["responses"])["partition_responses"])
    assert row["error_code"] == E.INVALID_REQUEST
    assert "transaction" in row["error_message"]
    assert client.end_offset(topic) == 0


@pytest.mark.parametrize("transactional_id", ["tx", ""])
def test_a_transactional_id_is_refused_by_init_producer_id(client: RawClient, transactional_id: str) -> None:
    body = {"transactional_id": transactional_id, "transaction_timeout_ms": 1000}
    answer = client.ask(ApiKey.INIT_PRODUCER_ID, 4, body)
    assert (answer["error_code"], answer["producer_id"]) == (E.INVALID_REQUEST, -1)


def test_a_transaction_coordinator_is_refused_with_a_sentence(client: RawClient) -> None:
    answer = client.ask(ApiKey.FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": ["tx", "ty"]})
    for row in answer["coordinators"]:
        assert row["error_code"] == E.INVALID_REQUEST
        assert "transaction" in row["error_message"]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_transaction_coordinator_is_refused_for_good_to_those_who_would_ask_for_ever(
    client: RawClient, version: int
) -> None:
    """librdkafka asks in these versions, and takes any other code for a reason to ask again."""
    row = client.ask(ApiKey.FIND_COORDINATOR, version, {"key_type": 1, "key": "tx"})
    assert row["error_code"] == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert "transaction" in row["error_message"]


# --- groups ----------------------------------------------------------------------------------------------------------


def test_a_commit_for_an_unknown_member_commits_nothing(client: RawClient, world: World) -> None:
    group = world.fresh("group")
    commits = [{"name": world.topic, "partitions": [{"partition_index": 0, "committed_metadata": None}]}]
    body = {"group_id": group, "member_id": "nobody", "generation_id_or_member_epoch": 3, "topics": commits}
    row = only(only(client.ask(ApiKey.OFFSET_COMMIT, 8, body)["topics"])["partitions"])
    assert row["error_code"] in (E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION)
    asked = {"group_id": group, "topics": [{"name": world.topic, "partition_indexes": [0]}]}
    found = only(client.ask(ApiKey.OFFSET_FETCH, 8, {"groups": [asked]})["groups"])
    assert only(only(found["topics"])["partitions"])["committed_offset"] == -1


def test_a_commit_with_too_long_a_note_is_refused(client: RawClient, world: World) -> None:
    commit = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "n" * 5000}
    body = {"group_id": world.fresh("g"), "topics": [{"name": world.topic, "partitions": [commit]}]}
    row = only(only(client.ask(ApiKey.OFFSET_COMMIT, 8, body)["topics"])["partitions"])
    assert row["error_code"] == E.OFFSET_METADATA_TOO_LARGE


@pytest.mark.parametrize("metadata", [b"", b"\xff", b"\0\0\xff\xff\xff\xff", b"\0\1\x7f\xff\xff\xff"])
def test_a_subscription_that_makes_no_sense_harms_its_own_group_only(
    client: RawClient, world: World, metadata: bytes
) -> None:
    body = {
        "group_id": world.fresh("group"),
        "session_timeout_ms": 6000,
        "rebalance_timeout_ms": 6000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }
    answer = client.ask(ApiKey.JOIN_GROUP, 3, body)
    assert answer["error_code"] == 0
    sync = {
        "group_id": body["group_id"],
        "member_id": answer["member_id"],
        "generation_id": answer["generation_id"],
        "assignments": [{"member_id": answer["member_id"], "assignment": metadata}],
    }
    assert client.ask(ApiKey.SYNC_GROUP, 3, sync)["assignment"] == metadata
    for key, version, asked in (
        (ApiKey.DESCRIBE_GROUPS, 4, {"groups": [body["group_id"]]}),
        (ApiKey.LIST_GROUPS, 4, {}),
        (ApiKey.DELETE_TOPICS, 5, {"topic_names": [world.topic]}),
    ):
        client.ask(key, version, asked)
