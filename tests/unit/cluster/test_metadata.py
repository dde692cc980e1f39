"""The agreed table: the same entries give the same table, and what is not understood is refused."""

import json
import uuid
from dataclasses import replace

import pytest

from anabranch.cluster.metadata.entries import (
    Entry,
    boundary_entry,
    broker_draining_entry,
    broker_entry,
    broker_fenced_entry,
    decode_entry,
    disk_entry,
    encode_entry,
    forced_boundary_entry,
    move_entry,
    partitions_entry,
    producer_ids_entry,
    topic_config_entry,
    topic_entry,
    topic_removed_entry,
)
from anabranch.cluster.metadata.rows import BrokerRow, Placement, Topic
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.errors import CorruptDataError
from anabranch.values import BrokerId, Generation, Offset

TOPIC = Topic("t", uuid.UUID(int=5), 2, {"retention.ms": "1"})


def table_of(*entries: Entry) -> MetadataTable:
    table = MetadataTable()
    for offset, entry in enumerate(entries):
        table.apply(decode_entry(encode_entry(entry)), offset)
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
        table.apply({"type": "no such"}, 1)
    assert table.topics == {"t": TOPIC}


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "topic", "name": "t"},
        {"type": "topic", "name": "t", "id": "no id", "partitions": 1, "overrides": {}},
        {"type": "topic-config", "name": "t", "overrides": 7},
    ],
)
def test_entry_that_does_not_fit_the_table_is_damage(entry: Entry) -> None:
    with pytest.raises(CorruptDataError):
        table_of(topic_entry(TOPIC), entry)


@pytest.mark.parametrize(
    "entry",
    [
        topic_removed_entry("u"),
        partitions_entry("u", 3),
        topic_config_entry("u", {}),
        topic_entry(Topic("t", uuid.UUID(int=9), 7)),
        partitions_entry("t", TOPIC.partition_count),
        partitions_entry("t", TOPIC.partition_count + 2, [[BrokerId(1)]]),
        move_entry(TOPIC.topic_id, TOPIC.partition_count, [BrokerId(1)]),
        move_entry(TOPIC.topic_id, -1, [BrokerId(1)]),
        boundary_entry(TOPIC.topic_id, TOPIC.partition_count, Placement((), view=1)),
        boundary_entry(TOPIC.topic_id, -1, Placement((), view=1)),
    ],
)
def test_entry_that_was_overtaken_by_another_changes_nothing(entry: Entry) -> None:
    table, before = table_of(topic_entry(TOPIC), entry), table_of(topic_entry(TOPIC))
    assert (table.topics, table.topics_by_id) == (before.topics, before.topics_by_id)
    assert table.placements(table.topics["t"]) == before.placements(before.topics["t"])


def test_partitions_without_places_of_their_own_are_added_at_the_founder() -> None:
    placed = replace(TOPIC, placements=(Placement((BrokerId(2),)),) * TOPIC.partition_count)
    count = TOPIC.partition_count + 2
    table = table_of(broker_entry(broker(1)), topic_entry(placed), partitions_entry("t", count))
    assert [each.replicas for each in table.placements(table.topics["t"])][-3:] == [(2,), (1,), (1,)]


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


# --- brokers and places ------------------------------------------------------------------------------------------


def broker(number: int, directory: str = "") -> BrokerRow:
    return BrokerRow(
        BrokerId(number), directory or f"disk-{number}", -1, "host", 9000 + number, "host", 9100 + number
    )


def placed(*replicas: tuple[int, ...]) -> Topic:
    return replace(TOPIC, placements=tuple(Placement(tuple(map(BrokerId, each))) for each in replicas))


def begins(view: int, replicas: tuple[int, ...], start: int = 7, move: int = -1) -> Entry:
    placement = Placement(tuple(map(BrokerId, replicas)), (), view, Offset(start), Generation(4), move=move)
    return boundary_entry(TOPIC.topic_id, 0, placement)


def test_topics_from_before_there_were_brokers_are_at_the_founder() -> None:
    table = table_of(topic_entry(TOPIC))
    assert table.placement(table.topics["t"], 1).replicas == ()
    table.apply(broker_entry(broker(4)), 1)
    table.apply(broker_entry(broker(2)), 2)
    assert table.placement(table.topics["t"], 1) == Placement((BrokerId(4),), ("disk-4",))


def test_an_epoch_is_where_its_registration_lies() -> None:
    table = table_of(broker_entry(broker(1)), broker_entry(broker(2)), broker_entry(broker(1, "other")))
    assert [(row.directory_id, row.epoch) for row in table.brokers.values()] == [("other", 2), ("disk-2", 1)]


def test_fencing_means_one_registration_only() -> None:
    table = table_of(
        broker_entry(broker(1)),
        broker_entry(broker(1)),
        broker_fenced_entry(BrokerId(1), 0, is_fenced=True),
    )
    assert not table.brokers[BrokerId(1)].is_fenced
    table.apply(broker_fenced_entry(BrokerId(1), 1, is_fenced=True), 3)
    assert table.brokers[BrokerId(1)].is_fenced
    table.apply(broker_fenced_entry(BrokerId(1), 1, is_fenced=False), 4)
    assert not table.brokers[BrokerId(1)].is_fenced


def test_a_replica_is_given_to_the_disk_its_broker_has_at_that_point() -> None:
    table = table_of(
        broker_entry(broker(1)),
        topic_entry(placed((1,), (1,))),
        broker_entry(broker(1, "new")),
        partitions_entry("t", 3, [[BrokerId(1)]]),
    )
    assert [each.directories for each in table.topics["t"].placements] == [("disk-1",), ("disk-1",), ("new",)]


def test_partitions_added_to_a_topic_of_the_founder_leave_the_others_there() -> None:
    table = table_of(
        broker_entry(broker(1)), topic_entry(TOPIC), partitions_entry("t", 3, [[BrokerId(2), BrokerId(1)]])
    )
    assert [each.replicas for each in table.placements(table.topics["t"])] == [(1,), (1,), (2, 1)]


def moving(*targets: tuple[int, ...]) -> MetadataTable:
    """A topic on broker 1, told to move to each of these in turn; the first such entry is at offset 3."""
    moves = [move_entry(TOPIC.topic_id, 0, [BrokerId(each) for each in target]) for target in targets]
    return table_of(broker_entry(broker(1)), broker_entry(broker(2)), topic_entry(placed((1,), (1,))), *moves)


def test_a_move_is_a_target_until_its_view_begins() -> None:
    table = moving((1, 2))
    assert table.placement(table.topics["t"], 0).target == (1, 2)
    assert [(index, each.replicas) for _, index, each in table.kept_by(BrokerId(2))] == [(0, (1,))]
    table.apply(begins(1, (1, 2), move=3), 4)
    assert table.placement(table.topics["t"], 0) == Placement(
        (BrokerId(1), BrokerId(2)), ("disk-1", "disk-2"), 1, Offset(7), Generation(4), move=3
    )


def test_a_target_is_given_to_the_disks_of_its_move() -> None:
    table = moving((1, 2))
    table.apply(broker_entry(broker(2, "new")), 4)
    assert table.placement(table.topics["t"], 0).directory_of(BrokerId(2)) == "disk-2"
    table.apply(begins(1, (1, 2), move=3), 5)
    assert table.placement(table.topics["t"], 0).directory_of(BrokerId(2)) == "disk-2"


def test_a_replica_that_has_everything_on_a_new_disk_is_given_to_that_one() -> None:
    table = moving((1, 2))
    table.apply(broker_entry(broker(2, "new")), 4)
    table.apply(disk_entry(TOPIC.topic_id, 0, BrokerId(2), 4), 5)
    table.apply(begins(1, (1, 2), move=3), 6)
    assert table.placement(table.topics["t"], 0).directories == ("disk-1", "new")
    table.apply(broker_entry(broker(1, "other")), 7)
    table.apply(disk_entry(TOPIC.topic_id, 0, BrokerId(1), 7), 8)
    placement = table.placement(table.topics["t"], 0)
    assert placement.directories == ("other", "new")
    assert [placement.is_strange_to(BrokerId(1), disk) for disk in ("disk-1", "other")] == [True, False]


@pytest.mark.parametrize(("number", "epoch"), [(2, 1), (3, 5), (1, 5)])
def test_a_disk_means_one_registration_of_one_replica(number: int, epoch: int) -> None:
    """Neither another disk that has come since, nor a broker that does not keep the partition."""
    table = moving((1, 2))
    table.apply(broker_entry(broker(2, "new")), 4)
    table.apply(broker_entry(broker(3)), 5)
    before = table.topics["t"].placements
    table.apply(disk_entry(TOPIC.topic_id, 0, BrokerId(number), epoch), 6)
    assert table.topics["t"].placements == before
    table.apply(disk_entry(TOPIC.topic_id, 7, BrokerId(2), 4), 7)
    assert table.topics["t"].placements == before


def test_of_two_boundaries_of_one_view_the_first_counts() -> None:
    table = moving((1, 2))
    table.apply(begins(1, (1,)), 4)
    table.apply(begins(1, (1, 2), move=3), 5)
    placement = table.placement(table.topics["t"], 0)
    assert (placement.view, placement.replicas, placement.target) == (1, (1,), (1, 2))


def test_a_boundary_of_an_earlier_move_counts_no_more() -> None:
    table = moving((1, 2), (2, 1), (1, 2))
    table.apply(begins(1, (1, 2), move=3), 6)
    assert table.placement(table.topics["t"], 0).view == 0
    table.apply(begins(1, (1, 2), move=5), 7)
    assert table.placement(table.topics["t"], 0).replicas == (1, 2)


def test_moves_and_boundaries_of_a_topic_that_is_gone_mean_nothing() -> None:
    table = table_of(
        topic_entry(placed((1,), (1,))),
        topic_removed_entry("t"),
        move_entry(TOPIC.topic_id, 0, None),
        begins(1, (2,)),
    )
    assert table.topics == {}


def test_a_snapshot_keeps_brokers_and_places() -> None:
    table = table_of(
        broker_entry(broker(3)),
        broker_entry(broker(1)),
        broker_fenced_entry(BrokerId(1), 1, is_fenced=True),
        topic_entry(replace(placed((1, 3), (3, 1)), is_pinned=True)),
        begins(1, (1, 3)),
        move_entry(TOPIC.topic_id, 1, [BrokerId(1)]),
    )
    assert table.topics["t"].placements[0].view == 1
    other = MetadataTable()
    other.restore(json.loads(json.dumps(table.snapshot())))
    assert (other.brokers, other.founder, other.topics) == (table.brokers, BrokerId(3), table.topics)


def test_a_broker_that_drains_does_so_over_restarts_and_snapshots_until_it_stays_after_all() -> None:
    table = MetadataTable()
    table.apply(broker_entry(broker(4)), 1)
    table.apply(broker_draining_entry(BrokerId(4), is_draining=True), 2)
    table.apply(broker_entry(broker(4)), 3)
    other = MetadataTable()
    other.restore(json.loads(json.dumps(table.snapshot())))
    assert other.brokers[BrokerId(4)].is_draining
    other.apply(broker_draining_entry(BrokerId(4), is_draining=False), 4)
    assert not other.brokers[BrokerId(4)].is_draining
    other.apply(broker_draining_entry(BrokerId(9), is_draining=True), 5)
    assert set(other.brokers) == {4}


def test_a_move_that_somebody_chose_pins_the_topic() -> None:
    table = MetadataTable()
    table.apply(broker_entry(broker(1)), 1)
    topic = Topic("t", uuid.uuid4(), 1)
    table.apply(topic_entry(topic), 2)
    table.apply(move_entry(topic.topic_id, 0, (BrokerId(2),)), 3)
    assert not table.topics["t"].is_pinned
    table.apply(move_entry(topic.topic_id, 0, None, is_pinned=True), 4)
    assert table.topics["t"].is_pinned


def forced(view: int, directory: str, target: tuple[int, ...] | None = None) -> Entry:
    placement = Placement((BrokerId(2),), (directory,), view, Offset(9), Generation(8), target)  # type: ignore[arg-type]
    return forced_boundary_entry(TOPIC.topic_id, 0, placement)


def test_a_forced_view_needs_no_move_and_brings_its_own() -> None:
    table = moving((3, 1))
    table.apply(forced(1, "disk-2", (1, 2)), 50)
    placement = table.placement(table.topics["t"], 0)
    assert (placement.replicas, placement.directories) == ((2,), ("disk-2",))
    assert (placement.target, placement.target_directories, placement.move) == (
        (1, 2),
        ("disk-1", "disk-2"),
        50,
    )
    assert (placement.view, placement.start, placement.generation, placement.is_forced) == (1, 9, 8, True)
    other = MetadataTable()
    other.restore(json.loads(json.dumps(table.snapshot())))
    assert other.placement(other.topics["t"], 0) == placement
    table.apply(forced(1, "disk-2"), 51)
    assert table.placement(table.topics["t"], 0) == placement, "it is the first of its view that counts"
    table.apply(begins(2, (2,)), 52)
    assert not table.placement(table.topics["t"], 0).is_forced


def test_a_forced_view_does_not_count_if_its_disk_was_replaced_meanwhile() -> None:
    table = moving()
    before = table.placement(table.topics["t"], 0)
    table.apply(forced(1, "another"), 50)
    assert table.placement(table.topics["t"], 0) == before


# --- topics in the object store --------------------------------------------------------------------------------


STORED = Topic("s", uuid.UUID(int=6), 2, {"anabranch.mode": "object"})


def test_topic_in_the_object_store_is_kept_by_nobody() -> None:
    table = table_of(broker_entry(BrokerRow(BrokerId(1), "disk", 0, "h", 1)), topic_entry(STORED))
    assert table.placements(STORED) == [Placement(()), Placement(())]
    assert list(table.kept_by(BrokerId(1))) == []


def test_topic_in_the_object_store_is_neither_moved_nor_given_a_view() -> None:
    row = broker_entry(BrokerRow(BrokerId(1), "disk", 0, "h", 1))
    view = boundary_entry(STORED.topic_id, 0, Placement((BrokerId(1),), view=1))
    move, disk = move_entry(STORED.topic_id, 0, [BrokerId(1)]), disk_entry(STORED.topic_id, 0, BrokerId(1), 0)
    table = table_of(row, topic_entry(STORED), move, view, disk)
    assert table.topics["s"] == STORED


def test_topic_in_the_object_store_gets_more_partitions() -> None:
    table = table_of(topic_entry(STORED), partitions_entry("s", 5))
    assert table.topics["s"] == replace(STORED, partition_count=5)
    again = MetadataTable()
    again.restore(json.loads(json.dumps(table.snapshot())))
    assert again.topics == table.topics


def test_every_disk_gets_a_slot_of_its_own_which_stays() -> None:
    table = table_of(
        broker_entry(broker(1)),
        broker_entry(broker(2)),
        broker_entry(broker(1)),
        broker_entry(broker(1, "new")),
    )
    assert table.slots == {broker(1).directory_id: 0, broker(2).directory_id: 1, "new": 2}
    restored = MetadataTable()
    restored.restore(json.loads(json.dumps(table.snapshot())))
    restored.apply(broker_entry(broker(3)), 9)
    assert restored.slots == {**table.slots, broker(3).directory_id: 3}


def test_the_first_slot_is_kept_for_the_founder_whose_entry_was_from_before_there_were_slots() -> None:
    old = {key: value for key, value in broker_entry(broker(1)).items() if key != "slot"}
    table = table_of(old, broker_entry(broker(2)))
    assert table.slots == {broker(2).directory_id: 1}
    table.apply(broker_entry(broker(1)), 2)
    assert table.slots[broker(1).directory_id] == 0


def test_slots_end_and_who_comes_later_has_none() -> None:
    table = table_of(*(broker_entry(broker(1, f"disk-{n}")) for n in range(1026)))
    assert sorted(table.slots.values()) == list(range(1024))


def test_a_branch_topic_is_placed_nowhere_and_names_its_first_primaries() -> None:
    topic = Topic(
        "b", uuid.UUID(int=6), 2, {"anabranch.mode": "branch"}, first=(BrokerId(2), BrokerId(1)), copies=3
    )
    table = table_of(
        broker_entry(broker(1)), topic_entry(topic), partitions_entry("b", 3, first=[BrokerId(2)])
    )
    assert table.topics["b"].first == (2, 1, 2)
    assert [placement.replicas for placement in table.placements(table.topics["b"])] == [(), (), ()]
    restored = MetadataTable()
    restored.restore(json.loads(json.dumps(table.snapshot())))
    assert restored.topics == table.topics
