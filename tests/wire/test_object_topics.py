"""Every API that speaks of a partition, asked about one in the object store: answers as for any other topic, and where
it is different, said so."""

import json
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.record.records import records_of
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.node_process import START_S_MAX, NodeProcess
from support.raw_client import RawClient, batch_of, produce_body
from support.waiting import wait_until

Body = dict[str, Any]
TOPIC, BROKER, OBJECTS = 2, 4, 100
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
NO_ID = uuid.UUID(int=0)


def settings_of(folder: Path) -> dict[str, str]:
    return {
        "num.partitions": "2",
        "group.initial.rebalance.delay.ms": "0",
        "object.store": f"file://{folder}/store",
        "object.gather.ms": "5",
        "http": "127.0.0.1:0",
    }


@pytest.fixture(scope="module")
def store_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("object-node")
    with NodeProcess(folder, settings_of(folder)) as running:
        yield running


@pytest.fixture
def client(store_node: NodeProcess) -> Iterator[RawClient]:
    with RawClient(store_node.bootstrap) as connected:
        yield connected


@pytest.fixture
def topic(client: RawClient) -> str:
    name = f"o-{uuid.uuid4().hex[:12]}"
    client.create_topic(name, partitions=2, anabranch_mode="object")
    return name


def list_offset(client: RawClient, topic: str, timestamp: int, partition: int = 0, **fields: Any) -> Body:
    asked = {"partition_index": partition, "timestamp": timestamp, **fields}
    body = {"replica_id": -1, "topics": [{"name": topic, "partitions": [asked]}]}
    row: Body = client.ask(ApiKey.LIST_OFFSETS, 8, body)["topics"][0]["partitions"][0]
    return row


def values_from(client: RawClient, topic: str, offset: int, partition: int = 0) -> list[tuple[int, bytes]]:
    """All from there to the end: one answer carries what is at hand."""
    found: list[tuple[int, bytes]] = []
    while True:
        row = client.fetch(topic, partition, offset)
        assert row["error_code"] == 0, row
        more = [(each.offset, bytes(each.value or b"")) for each in _records(row["records"] or b"")]
        found += [each for each in more if each[0] >= offset]
        if offset >= row["high_watermark"]:
            return found
        offset = found[-1][0] + 1 if more else offset


def _records(data: bytes) -> Iterator[Any]:
    position = 0
    while position < len(data):
        size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        yield from records_of(data[position : position + size])
        position += size


def configs_of(client: RawClient, kind: int, name: str) -> Body:
    body = {"resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]}
    (row,) = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, body)["results"]
    assert row["error_code"] == 0, row
    return {each["name"]: each["value"] for each in row["configs"]}


def create(client: RawClient, name: str, **fields: Any) -> Body:
    configs = [{"name": "anabranch.mode", "value": "object"}]
    asked = {"name": name, "num_partitions": 1, "replication_factor": -1, "configs": configs, **fields}
    (row,) = client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [asked], "timeout_ms": 5000})["topics"]
    assert isinstance(row, dict)
    return row


# --- records ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [1, -1])
def test_what_is_acknowledged_has_its_offset_and_is_read_back(
    client: RawClient, topic: str, acks: int
) -> None:
    assert client.produce(topic, 0, batch_of(b"a", b"b"), acks)["base_offset"] == 0
    row = client.produce(topic, 0, batch_of(b"c"), acks)
    assert (row["error_code"], row["base_offset"], row["log_start_offset"]) == (0, 2, 0)
    assert values_from(client, topic, 0) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert values_from(client, topic, 2) == [(2, b"c")]


def test_what_nobody_waits_for_arrives_too(client: RawClient, topic: str) -> None:
    client.send(ApiKey.PRODUCE, 9, produce_body(topic, 1, batch_of(b"silent"), acks=0))
    wait_until(lambda: client.end_offset(topic, 1) == 1, "the record")
    assert values_from(client, topic, 1, partition=1) == []
    assert values_from(client, topic, 0, partition=1) == [(0, b"silent")]


def test_partitions_have_offsets_of_their_own_although_they_share_objects(
    client: RawClient, topic: str
) -> None:
    rows = [{"index": index, "records": batch_of(b"x", b"y")} for index in (0, 1)]
    body = {"acks": -1, "timeout_ms": 10_000, "topic_data": [{"name": topic, "partition_data": rows}]}
    answer = client.ask(ApiKey.PRODUCE, 9, body)["responses"][0]["partition_responses"]
    assert [(row["error_code"], row["base_offset"]) for row in answer] == [(0, 0), (0, 0)]


def test_batch_sent_again_by_an_idempotent_producer_is_kept_once(client: RawClient, topic: str) -> None:
    producer_id = client.ask(
        ApiKey.INIT_PRODUCER_ID,
        4,
        {
            "transactional_id": None,
            "transaction_timeout_ms": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        },
    )["producer_id"]

    def numbered(sequence: int, value: bytes) -> bytes:
        return batch_of(value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)

    assert client.produce(topic, 0, numbered(0, b"a"))["base_offset"] == 0
    assert client.produce(topic, 0, numbered(1, b"b"))["base_offset"] == 1
    assert client.produce(topic, 0, numbered(0, b"a"))["base_offset"] == 0
    assert client.produce(topic, 0, numbered(3, b"d"))["error_code"] == E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert client.end_offset(topic) == 2
    body = {"topics": [{"name": topic, "partition_indexes": [0]}]}
    (row,) = client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, body)["topics"][0]["partitions"]
    assert [(each["producer_id"], each["last_sequence"]) for each in row["active_producers"]] == [
        (producer_id, 1)
    ]


def test_store_has_as_many_copies_as_anybody_wants(client: RawClient, topic: str) -> None:
    name = f"{topic}-min"
    client.create_topic(name, anabranch_mode="object", min_insync_replicas="2")
    assert client.produce(name, 0, batch_of(b"x"), acks=-1)["error_code"] == 0


def test_transactional_batch_is_refused(client: RawClient, topic: str) -> None:
    body = {**produce_body(topic, 0, batch_of(b"x")), "transactional_id": "mine"}
    row = client.ask(ApiKey.PRODUCE, 9, body)["responses"][0]["partition_responses"][0]
    assert row["error_code"] == E.INVALID_REQUEST
    row = client.produce(topic, 0, batch_of(b"x", producer_id=1, producer_epoch=0, transactional=True))
    assert row["error_code"] == E.INVALID_REQUEST


def test_damaged_and_oversized_batches_are_refused_before_they_are_gathered(
    client: RawClient, topic: str
) -> None:
    damaged = bytearray(batch_of(b"x"))
    damaged[-1] ^= 1
    assert client.produce(topic, 0, bytes(damaged))["error_code"] == E.CORRUPT_MESSAGE
    assert client.produce(topic, 0, batch_of(b"x" * 2**21))["error_code"] == E.MESSAGE_TOO_LARGE
    assert client.end_offset(topic) == 0


def test_fetch_that_waits_is_woken_by_a_record(store_node: NodeProcess, topic: str) -> None:
    with RawClient(store_node.bootstrap) as reader, RawClient(store_node.bootstrap) as writer:
        row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 2**20}
        body = {
            "max_wait_ms": 9000,
            "min_bytes": 1,
            "max_bytes": 2**22,
            "topics": [{"topic": topic, "partitions": [row]}],
        }
        reader.send(ApiKey.FETCH, 12, body)
        time.sleep(0.05)
        writer.produce(topic, 0, batch_of(b"news"))
        answer = reader.receive(ApiKey.FETCH, 12)["responses"][0]["partitions"][0]
        assert [bytes(each.value) for each in _records(answer["records"])] == [b"news"]


def test_fetch_outside_of_what_is_there_is_out_of_range(client: RawClient, topic: str) -> None:
    client.produce(topic, 0, batch_of(b"a"))
    assert client.fetch(topic, 0, 7)["error_code"] == E.OFFSET_OUT_OF_RANGE
    assert client.fetch(topic, 0, -5)["error_code"] == E.OFFSET_OUT_OF_RANGE


# --- offsets ------------------------------------------------------------------------------------------------


def test_offsets_are_listed_by_end_start_time_and_newest(client: RawClient, topic: str) -> None:
    assert list_offset(client, topic, LATEST)["offset"] == 0
    assert list_offset(client, topic, EARLIEST)["offset"] == 0
    assert list_offset(client, topic, MAX_TIMESTAMP)["offset"] == -1
    for value in (b"a", b"b", b"c"):
        client.produce(topic, 0, batch_of(value))
    assert list_offset(client, topic, LATEST)["offset"] == 3
    newest = list_offset(client, topic, MAX_TIMESTAMP)
    assert newest["offset"] >= 0
    found = list_offset(client, topic, newest["timestamp"])
    assert (found["offset"], found["timestamp"]) == (newest["offset"], newest["timestamp"])
    assert list_offset(client, topic, 0)["offset"] == 0
    assert list_offset(client, topic, newest["timestamp"] + 1)["offset"] == -1
    assert list_offset(client, topic, LATEST)["leader_epoch"] == 0


def test_offsets_of_what_is_not_there_are_refused(client: RawClient, topic: str) -> None:
    assert list_offset(client, topic, LATEST, partition=9)["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION
    stale = list_offset(client, topic, LATEST, current_leader_epoch=5)
    assert stale["error_code"] == E.UNKNOWN_LEADER_EPOCH
    asked = {"partition_index": 0, "timestamp": LATEST}
    body = {"replica_id": -1, "topics": [{"name": topic, "partitions": [asked, asked]}]}
    rows = client.ask(ApiKey.LIST_OFFSETS, 8, body)["topics"][0]["partitions"]
    assert [row["error_code"] for row in rows] == [0, E.INVALID_REQUEST]


def test_offsets_of_several_kinds_of_topics_are_listed_in_one_request(client: RawClient, topic: str) -> None:
    plain = f"{topic}-plain"
    client.create_topic(plain)
    client.produce(plain, 0, batch_of(b"a"))
    client.produce(topic, 0, batch_of(b"a", b"b"))
    asked = [{"partition_index": 0, "timestamp": LATEST}]
    body = {"replica_id": -1, "topics": [{"name": name, "partitions": asked} for name in (plain, topic)]}
    rows = client.ask(ApiKey.LIST_OFFSETS, 8, body)["topics"]
    assert [row["partitions"][0]["offset"] for row in rows] == [1, 2]


def test_the_only_generation_ends_where_the_partition_does(client: RawClient, topic: str) -> None:
    client.produce(topic, 0, batch_of(b"a", b"b"))

    def end_of(generation: int) -> tuple[int, int]:
        asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": generation}
        body = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [asked]}]}
        answer = client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, body)["topics"][0]["partitions"][0]
        return answer["leader_epoch"], answer["end_offset"]

    assert end_of(0) == (0, 2)
    assert end_of(3) == (-1, -1)


def test_deleted_records_are_gone_and_the_rest_is_there(client: RawClient, topic: str) -> None:
    def delete(offset: int) -> Body:
        rows = [{"partition_index": 0, "offset": offset}]
        body = {"topics": [{"name": topic, "partitions": rows}], "timeout_ms": 5000}
        row: Body = client.ask(ApiKey.DELETE_RECORDS, 2, body)["topics"][0]["partitions"][0]
        return row

    client.produce(topic, 0, batch_of(b"a", b"b", b"c"))
    client.produce(topic, 0, batch_of(b"d"))
    assert delete(9)["error_code"] == E.OFFSET_OUT_OF_RANGE
    assert (delete(2)["error_code"], delete(2)["low_watermark"]) == (0, 2)
    assert list_offset(client, topic, EARLIEST)["offset"] == 2
    assert client.fetch(topic, 0, 1)["error_code"] == E.OFFSET_OUT_OF_RANGE
    assert values_from(client, topic, 2) == [(2, b"c"), (3, b"d")]
    assert delete(-1)["low_watermark"] == 4
    assert client.end_offset(topic) == 4
    assert client.produce(topic, 0, batch_of(b"e"))["base_offset"] == 4


# --- topics -------------------------------------------------------------------------------------------------


def test_metadata_names_one_broker_as_leader_and_only_replica(client: RawClient, topic: str) -> None:
    asked = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
    (row,) = client.ask(ApiKey.METADATA, 12, asked)["topics"]
    described = client.ask(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        {"topics": [{"name": topic}], "response_partition_limit": 100, "cursor": None},
    )
    for rows in (row["partitions"], described["topics"][0]["partitions"]):
        assert len(rows) == 2
        for each in rows:
            assert each["leader_id"] >= 0
            assert each["replica_nodes"] == each["isr_nodes"] == [each["leader_id"]]
            assert (each["leader_epoch"], each["offline_replicas"], each["error_code"]) == (0, [], 0)


def test_creation_answers_with_the_mode_and_one_replica(client: RawClient, topic: str) -> None:
    row = create(client, f"{topic}-2", num_partitions=3)
    assert (row["error_code"], row["num_partitions"], row["replication_factor"]) == (0, 3, 1)
    assert {each["name"]: each["value"] for each in row["configs"]}["anabranch.mode"] == "object"


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"replication_factor": 3}, E.INVALID_REPLICATION_FACTOR, "copies in the object store"),
        (
            {"num_partitions": -1, "assignments": [{"partition_index": 0, "broker_ids": [0]}]},
            E.INVALID_REPLICA_ASSIGNMENT,
            "kept by no broker",
        ),
        ({"num_partitions": 0}, E.INVALID_PARTITIONS, "1 to"),
    ],
)
def test_what_makes_no_sense_in_the_object_store_is_refused(
    client: RawClient, topic: str, fields: Body, code: E, words: str
) -> None:
    row = create(client, f"{topic}-no", **fields)
    assert row["error_code"] == code
    assert words in row["error_message"]


def test_internal_topics_stay_with_the_brokers(client: RawClient) -> None:
    row = create(client, "__transaction_state")
    assert row["error_code"] == E.INVALID_TOPIC_EXCEPTION
    assert "__transaction_state" in row["error_message"]


def test_partitions_are_added(client: RawClient, topic: str) -> None:
    def grow(count: int, assignments: list[Body] | None = None) -> Body:
        asked = {"name": topic, "count": count, "assignments": assignments}
        body = {"topics": [asked], "timeout_ms": 5000, "validate_only": False}
        (row,) = client.ask(ApiKey.CREATE_PARTITIONS, 3, body)["results"]
        assert isinstance(row, dict)
        return row

    refused = grow(3, [{"broker_ids": [0]}])
    assert refused["error_code"] == E.INVALID_REPLICA_ASSIGNMENT
    assert grow(3)["error_code"] == 0
    assert client.produce(topic, 2, batch_of(b"new"))["base_offset"] == 0
    assert values_from(client, topic, 0, partition=2) == [(0, b"new")]


def alter(client: RawClient, name: str, config: str, value: str | None) -> Body:
    configs = [{"name": config, "config_operation": 0 if value is not None else 1, "value": value}]
    resource = {"resource_type": TOPIC, "resource_name": name, "configs": configs}
    body = {"resources": [resource], "validate_only": False}
    (row,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body)["responses"]
    assert isinstance(row, dict)
    return row


def test_configs_are_described_and_altered(client: RawClient, topic: str) -> None:
    assert configs_of(client, TOPIC, topic)["anabranch.mode"] == "object"
    assert alter(client, topic, "max.message.bytes", "100")["error_code"] == 0
    assert client.produce(topic, 0, batch_of(b"x" * 200))["error_code"] == E.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("value", ["solo", None])
def test_topic_does_not_leave_the_object_store(client: RawClient, topic: str, value: str | None) -> None:
    row = alter(client, topic, "anabranch.mode", value)
    assert row["error_code"] == E.INVALID_CONFIG
    assert "out of the object store" in row["error_message"]


def test_topic_of_a_broker_does_not_go_into_the_object_store(client: RawClient, topic: str) -> None:
    client.create_topic(f"{topic}-solo")
    row = alter(client, f"{topic}-solo", "anabranch.mode", "object")
    assert row["error_code"] == E.INVALID_CONFIG
    assert "into or out of the object store on a node that runs alone" in row["error_message"]


def test_configs_that_are_replaced_as_a_whole_leave_the_records_where_they_are(
    client: RawClient, topic: str
) -> None:
    configs = [{"name": "retention.ms", "value": "1000000"}]
    resource = {"resource_type": TOPIC, "resource_name": topic, "configs": configs}
    (row,) = client.ask(ApiKey.ALTER_CONFIGS, 2, {"resources": [resource], "validate_only": False})[
        "responses"
    ]
    assert row["error_code"] == 0, row
    configs_now = configs_of(client, TOPIC, topic)
    assert (configs_now["anabranch.mode"], configs_now["retention.ms"]) == ("object", "1000000")


def test_nothing_is_moved_or_elected(client: RawClient, topic: str) -> None:
    rows = [{"partition_index": 0, "replicas": [0]}]
    body = {"topics": [{"name": topic, "partitions": rows}], "timeout_ms": 5000}
    answer = client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, body)["responses"][0]["partitions"][0]
    assert answer["error_code"] == E.INVALID_REPLICA_ASSIGNMENT
    assert client.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"topics": None})["topics"] == []
    for kind in (0, 1):
        asked = [{"topic": topic, "partitions": [0]}]
        body = {"election_type": kind, "topic_partitions": asked, "timeout_ms": 1000}
        answer = client.ask(ApiKey.ELECT_LEADERS, 2, body)["replica_election_results"][0]
        assert answer["partition_result"][0]["error_code"] == E.ELECTION_NOT_NEEDED


def test_the_store_looks_like_a_second_folder(store_node: NodeProcess, client: RawClient, topic: str) -> None:
    client.produce(topic, 0, batch_of(b"x" * 1000))
    folder, store = client.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None})["results"]
    assert folder["log_dir"] == str(store_node.data_folder)
    assert store["log_dir"].startswith("file://")
    assert topic not in {each["name"] for each in folder["topics"]}
    sizes = {each["name"]: [row["partition_size"] for row in each["partitions"]] for each in store["topics"]}
    assert sizes[topic][0] > 1000
    assert sizes[topic][1] == 0


def test_topic_has_no_folder(store_node: NodeProcess, client: RawClient, topic: str) -> None:
    client.produce(topic, 0, batch_of(b"x"))
    assert [each.name for each in store_node.data_folder.iterdir() if each.name.startswith(topic)] == []


def test_deleted_topic_is_gone_and_its_name_is_free(client: RawClient, topic: str) -> None:
    client.produce(topic, 0, batch_of(b"old"))
    body = {"topics": [{"name": topic, "topic_id": NO_ID}], "timeout_ms": 5000}
    (row,) = client.ask(ApiKey.DELETE_TOPICS, 6, body)["responses"]
    assert row["error_code"] == 0
    assert client.produce(topic, 0, batch_of(b"x"))["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION
    client.create_topic(topic, anabranch_mode="object")
    assert client.end_offset(topic) == 0
    assert client.produce(topic, 0, batch_of(b"new"))["base_offset"] == 0
    assert values_from(client, topic, 0) == [(0, b"new")]


def test_broker_says_what_it_gathers_and_what_is_stored(client: RawClient, topic: str) -> None:
    client.produce(topic, 0, batch_of(b"x"))
    facts = {name: json.loads(value) for name, value in configs_of(client, OBJECTS, "0").items()}
    assert facts["store"]["url"].startswith("file://")
    assert facts["flushed"]["segments"] >= 1
    assert facts["objects"]["written"] >= 1
    assert facts["objects"]["bytes"] > 0


def test_metrics_count_what_goes_to_the_store(store_node: NodeProcess, client: RawClient, topic: str) -> None:
    client.produce(topic, 0, batch_of(b"x" * 100))
    url = f"http://{str(store_node.ready['http']).removeprefix('http://')}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[0] != "#")
    assert float(lines["anabranch_object_partitions"]) >= 2
    assert float(lines["anabranch_object_bytes"]) > 100
    assert float(lines["anabranch_object_puts_total"]) >= 1
    assert float(lines["anabranch_object_held_bytes"]) == 0


# --- lives --------------------------------------------------------------------------------------------------


def restarted(tmp_path: Path, end: Callable[[NodeProcess], None]) -> None:
    with NodeProcess(tmp_path, settings_of(tmp_path)) as node:
        with RawClient(node.bootstrap) as client:
            client.create_topic("t", anabranch_mode="object")
            for number in range(20):
                client.produce("t", 0, batch_of(b"%d" % number))
        end(node)
        node.start()
        with RawClient(node.bootstrap) as client:
            assert client.end_offset("t") == 20
            assert client.produce("t", 0, batch_of(b"20"))["base_offset"] == 20
            found = [value for _, value in values_from(client, "t", 0)]
            assert found == [b"%d" % number for number in range(21)]


def test_records_are_there_after_a_restart(tmp_path: Path) -> None:
    restarted(tmp_path, NodeProcess.stop)


def test_records_are_there_after_a_kill(tmp_path: Path) -> None:
    restarted(tmp_path, NodeProcess.kill)


def test_node_that_syncs_in_intervals_has_nothing_to_sync_of_it(tmp_path: Path) -> None:
    settings = {**settings_of(tmp_path), "flush": "interval", "flush.interval.ms": "20"}
    with NodeProcess(tmp_path, settings) as node, RawClient(node.bootstrap) as client:
        client.create_topic("t", anabranch_mode="object")
        for number in range(10):
            assert client.produce("t", 0, batch_of(b"x"))["base_offset"] == number
        client.create_topic("kept")
        client.produce("kept", 0, batch_of(b"x"))
        time.sleep(0.1)
        assert client.produce("t", 0, batch_of(b"x"))["base_offset"] == 10
    assert "defect" not in node.log_path.read_text()


def test_node_with_another_store_does_not_start(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, settings_of(tmp_path)) as node, RawClient(node.bootstrap) as client:
        client.create_topic("stored", anabranch_mode="object")
        client.produce("stored", 0, batch_of(b"x"))
    wrong = {**settings_of(tmp_path), "object.store": f"file://{tmp_path}/another"}
    command = NodeProcess(tmp_path, wrong)._command()
    refused = subprocess.run(command, capture_output=True, text=True, timeout=START_S_MAX)
    assert refused.returncode != 0
    assert "holds none of the objects" in refused.stdout + refused.stderr
    with NodeProcess(tmp_path, settings_of(tmp_path)) as node, RawClient(node.bootstrap) as client:
        assert values_from(client, "stored", 0) == [(0, b"x")]


def test_node_without_the_store_serves_its_other_topics(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, settings_of(tmp_path)) as node, RawClient(node.bootstrap) as client:
        client.create_topic("stored", anabranch_mode="object")
        client.create_topic("kept")
        client.produce("stored", 0, batch_of(b"x"))
    with NodeProcess(tmp_path, {"num.partitions": "1"}) as node, RawClient(node.bootstrap) as client:
        assert client.produce("kept", 0, batch_of(b"y"))["base_offset"] == 0
        assert values_from(client, "kept", 0) == [(0, b"y")]
        row = client.produce("stored", 0, batch_of(b"x"))
        assert row["error_code"] == E.KAFKA_STORAGE_ERROR
        assert "--object-store" in row["error_message"]
        assert client.fetch("stored", 0, 0)["error_code"] == E.KAFKA_STORAGE_ERROR
        assert list_offset(client, "stored", LATEST)["error_code"] == E.KAFKA_STORAGE_ERROR
        assert list_offset(client, "stored", EARLIEST)["error_code"] == E.KAFKA_STORAGE_ERROR
        assert create(client, "more")["error_code"] == E.INVALID_CONFIG
        assert "topic stored is in the object store" in node.log_path.read_text()
    with NodeProcess(tmp_path, settings_of(tmp_path)) as node, RawClient(node.bootstrap) as client:
        assert values_from(client, "stored", 0) == [(0, b"x")]
