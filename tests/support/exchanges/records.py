"""Produce, Fetch and what is known of a log: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

import uuid

from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.exchanges.world import STRANGE_ID, Body, World, only
from support.raw_client import RawClient, batch_of


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


def _list_offsets(client: RawClient, version: int, name: str, index: int, timestamp: int) -> Body:
    asked = {"partition_index": index, "timestamp": timestamp}
    topics = [{"name": name, "partitions": [asked]}]
    body = {"replica_id": -1, "isolation_level": 1, "topics": topics, "timeout_ms": 1000}
    topic_row = only(client.ask(ApiKey.LIST_OFFSETS, version, body)["topics"])
    assert topic_row["name"] == name
    return only(topic_row["partitions"])


def list_offsets(client: RawClient, version: int, world: World) -> None:
    asked = [(-1, 3), (-2, 0), (0, 0), (2**62, -1)]
    asked += [(-4, 0)] * (version >= 8) + [(-5, -1)] * (version >= 9)
    for timestamp, offset in asked:
        row = _list_offsets(client, version, world.topic, 0, timestamp)
        assert (row["error_code"], row["offset"]) == (0, offset), (timestamp, row)
        assert row["leader_epoch"] == (0 if version >= 4 and offset >= 0 else -1)


def list_offsets_refused(client: RawClient, version: int, world: World) -> None:
    for name, index in ((world.missing, 0), (world.topic, -1), (world.topic, 2)):
        row = _list_offsets(client, version, name, index, -1)
        assert (row["error_code"], row["offset"]) == (E.UNKNOWN_TOPIC_OR_PARTITION, -1)
    for timestamp in [-99] + [-4] * (version < 8) + [-5] * (version < 9) + [-6] * (version < 11):
        row = _list_offsets(client, version, world.topic, 0, timestamp)
        assert (row["error_code"], row["offset"]) == (E.UNSUPPORTED_VERSION, -1)


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
