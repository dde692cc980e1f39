"""The agreed table: the same entries give the same table, and what is not understood is refused."""

import json
import uuid

import pytest

from anabranch.cluster.metadata import (
    Entry,
    MetadataTable,
    Topic,
    decode_entry,
    encode_entry,
    partitions_entry,
    producer_ids_entry,
    topic_config_entry,
    topic_entry,
    topic_removed_entry,
)
from anabranch.errors import CorruptDataError

TOPIC = Topic("t", uuid.UUID(int=5), 2, {"retention.ms": "1"})


def table_of(*entries: Entry) -> MetadataTable:
    table = MetadataTable()
    for entry in entries:
        table.apply(decode_entry(encode_entry(entry)))
    return table


def test_topic_is_found_by_name_and_id() -> None:
    table = table_of(topic_entry(TOPIC))
    assert table.topics == {"t": TOPIC}
    assert table.topics_by_id == {TOPIC.topic_id: TOPIC}


def test_removed_topic_is_found_by_neither() -> None:
    table = table_of(topic_entry(TOPIC), topic_removed_entry("t"))
    assert (table.topics, table.topics_by_id) == ({}, {})


def test_partitions_and_configs_change_one_thing_each() -> None:
    table = table_of(topic_entry(TOPIC), partitions_entry("t", 5), topic_config_entry("t", {"a": "b"}))
    assert table.topics["t"] == Topic("t", TOPIC.topic_id, 5, {"a": "b"})
    assert table.topics_by_id[TOPIC.topic_id] is table.topics["t"]


def test_producer_ids_never_go_back() -> None:
    assert table_of(producer_ids_entry(9), producer_ids_entry(4)).producer_id_next == 9


def test_snapshot_restores_to_an_equal_table() -> None:
    table = table_of(topic_entry(TOPIC), producer_ids_entry(7))
    other = table_of(topic_entry(Topic("old", uuid.UUID(int=1), 1)))
    other.restore(json.loads(json.dumps(table.snapshot())))
    assert (other.topics, other.topics_by_id) == (table.topics, table.topics_by_id)
    assert other.producer_id_next == 7


def test_entry_of_an_unknown_type_is_refused_and_changes_nothing() -> None:
    table = table_of(topic_entry(TOPIC))
    with pytest.raises(CorruptDataError, match="newer version"):
        table.apply({"type": "broker"})
    assert table.topics == {"t": TOPIC}


@pytest.mark.parametrize(
    "entry",
    [
        topic_removed_entry("u"),
        partitions_entry("u", 3),
        topic_config_entry("u", {}),
        {"type": "topic", "name": "t"},
        {"type": "topic", "name": "t", "id": "no id", "partitions": 1, "overrides": {}},
        {"type": "topic-config", "name": "t", "overrides": 7},
    ],
)
def test_entry_that_does_not_fit_the_table_is_damage(entry: Entry) -> None:
    with pytest.raises(CorruptDataError):
        table_of(topic_entry(TOPIC), entry)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7", b"{}", b"\xff"])
def test_bytes_that_are_no_entry_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_entry(data)


@pytest.mark.parametrize(
    ("name", "internal"),
    [("__consumer_offsets", True), ("__transaction_state", True), ("__mine", False), ("t", False)],
)
def test_internal_are_kafkas_own_topics_only(name: str, internal: bool) -> None:
    assert Topic(name, uuid.UUID(int=1), 1).is_internal is internal
