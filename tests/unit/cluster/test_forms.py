"""What the agreed table makes of partitions that go into the object store and out of it."""

import json
import uuid

import pytest

from anabranch.cluster.metadata.entries import (
    Entry,
    boundary_entry,
    broker_entry,
    forced_boundary_entry,
    keep_entry,
    move_entry,
    topic_config_entry,
    topic_entry,
)
from anabranch.cluster.metadata.rows import BrokerRow, Placement, Topic
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.cluster.objects.entries import (
    Commit,
    Import,
    Item,
    commit_entry,
    import_entry,
    incarnation_entry,
)
from anabranch.objects.layout.names import ObjectId, ObjectKind, Row
from anabranch.values import BrokerId, Generation, Offset

TOPIC = uuid.UUID(int=5)
KEY = (TOPIC, 0)
LIFE = 77


class World:
    """One table with three brokers and a topic of two partitions."""

    def __init__(self, mode: str) -> None:
        self.table = MetadataTable()
        self.end = 0
        self.number = 0
        self.agree(incarnation_entry(LIFE))
        for broker in (1, 2, 3):
            self.epoch = self.agree(
                broker_entry(BrokerRow(BrokerId(broker), f"disk{broker}", 0, "here", 9092, "here", 9192))
            )
        places = [Placement((BrokerId(1), BrokerId(2), BrokerId(3)))] * 2 if mode != "object" else []
        self.agree(topic_entry(Topic("t", TOPIC, 2, {"anabranch.mode": mode}, tuple(places))))

    def agree(self, entry: Entry) -> int:
        self.table.apply(json.loads(json.dumps(entry)), self.end)
        self.end += 1
        return self.end - 1

    @property
    def topic(self) -> Topic:
        return self.table.topics["t"]

    @property
    def placement(self) -> Placement:
        return self.table.placement(self.topic, 0)

    def change(self, mode: str) -> None:
        self.agree(topic_config_entry("t", {"anabranch.mode": mode}))

    def leave(self) -> int:
        return self.agree(move_entry(TOPIC, 0, ()))

    def bring(self, start: int, end: int, move: int, producers: list[list[object]] | None = None) -> ObjectId:
        object_id = ObjectId(LIFE, self.epoch, self.number, ObjectKind.MERGED)
        self.number += 1
        row = Row(Offset(start), Offset(end), object_id, 0, 100, 5, 1, is_stamped=True)
        part = Import(KEY, move, Offset(0), Offset(end), [row], producers or [])
        self.agree(import_entry(BrokerId(3), self.epoch, part))
        return object_id

    def end_view(self, start: int, move: int) -> None:
        before = self.placement
        placement = Placement(
            (), view=before.view + 1, start=Offset(start), generation=Generation(4), move=move
        )
        self.agree(boundary_entry(TOPIC, 0, placement))

    @property
    def stored_end(self) -> int:
        return self.table.objects.head(KEY).end


def test_another_mode_alone_changes_no_partition() -> None:
    world = World("ring")
    world.change("object")
    assert world.topic.forms == ("kept", "kept")
    assert len(world.placement.replicas) == 3
    world.change("ring")
    assert world.topic.forms == ()


def test_a_partition_goes_over_at_the_offset_up_to_which_the_store_has_everything() -> None:
    world = World("ring")
    world.change("object")
    move = world.leave()
    world.bring(0, 10, move)
    world.end_view(12, move)
    assert not world.topic.is_stored(0)
    world.bring(10, 12, move, [[9, 0, 1, [[3, 4, 10]]]])
    world.end_view(12, move)
    assert world.topic.forms == ("stored", "kept")
    assert (world.placement.replicas, world.placement.generation) == ((), 5)
    assert world.table.objects.producers(KEY).producers[9].batches[0].base_offset == 10


def test_rows_of_another_decision_or_with_a_gap_backwards_count_for_nothing() -> None:
    world = World("ring")
    world.change("object")
    move = world.leave()
    world.bring(0, 10, move + 1)
    assert world.stored_end == 0
    world.bring(0, 10, move)
    late = world.bring(9, 12, move)
    assert world.stored_end == 10
    assert late in set(world.table.objects.unreferenced())


def test_who_begins_anew_gives_up_what_was_copied_and_nothing_below_the_floor() -> None:
    world = World("ring")
    world.change("object")
    move = world.leave()
    world.bring(0, 10, move)
    world.end_view(10, move)
    world.change("ring")
    world.agree(keep_entry(TOPIC, 0, [BrokerId(2)]))
    world.change("object")
    move = world.leave()
    given_up = world.bring(10, 15, move)
    anew = Import(KEY, move, Offset(0), Offset(10), [], [], is_anew=True)
    world.agree(import_entry(BrokerId(3), world.epoch, anew))
    assert world.stored_end == 10
    assert set(world.table.objects.unreferenced()) == {given_up}
    world.bring(10, 20, move)
    assert [row.next_offset for row in world.table.objects.rows(KEY, Offset(0), 9)] == [10, 20]


def test_a_topic_that_shall_stay_after_all_takes_back_what_was_copied() -> None:
    world = World("ring")
    world.change("object")
    move = world.leave()
    copied = world.bring(0, 10, move)
    world.change("ring")
    assert world.stored_end == 0
    assert world.placement.target is None
    assert set(world.table.objects.unreferenced()) == {copied}
    world.bring(0, 10, move)
    world.end_view(10, move)
    assert not world.topic.is_stored(0)
    assert world.stored_end == 0


def test_a_view_that_was_forced_takes_back_what_was_copied_of_records_that_it_may_lack() -> None:
    world = World("ring")
    world.change("object")
    move = world.leave()
    world.bring(0, 10, move)
    forced = Placement(
        (BrokerId(2),), ("disk2",), view=1, start=Offset(7), generation=Generation(4), target=(BrokerId(2),)
    )
    world.agree(forced_boundary_entry(TOPIC, 0, forced))
    assert (world.placement.replicas, world.stored_end) == ((2,), 0)
    move = world.leave()
    world.bring(0, 8, move)
    world.end_view(8, move)
    assert world.topic.is_stored(0)


def test_a_partition_that_comes_back_leaves_its_past_and_goes_on_at_its_end() -> None:
    world = World("ring")
    world.change("object")
    move = world.leave()
    world.bring(0, 10, move)
    world.end_view(10, move)
    world.agree(keep_entry(TOPIC, 0, [BrokerId(2), BrokerId(3)]))
    assert world.topic.is_stored(0), "its mode wants it there"
    world.change("ring")
    world.agree(keep_entry(TOPIC, 0, [BrokerId(2), BrokerId(3)]))
    world.agree(keep_entry(TOPIC, 0, [BrokerId(1)]))
    placement = world.placement
    assert placement.replicas == (2, 3)
    assert (placement.start, placement.floor, placement.view, placement.since_view) == (10, 10, 2, 2)
    assert placement.generation == 5
    assert world.topic.forms == ()
    world.change("object")
    move = world.leave()
    world.bring(10, 15, move)
    world.change("ring")
    assert world.stored_end == 10, "only what was copied now is taken back"
    assert [row.next_offset for row in world.table.objects.rows(KEY, Offset(0), 9)] == [10]


def test_a_partition_goes_from_the_store_into_branches_through_brokers_and_keeps_its_floor() -> None:
    world = World("ring")
    world.change("object")
    move = world.leave()
    world.bring(0, 10, move)
    world.end_view(10, move)
    world.change("branch")
    assert world.topic.forms == ("stored", "kept")
    keepers = (BrokerId(2), BrokerId(3))
    world.agree(keep_entry(TOPIC, 0, keepers))
    assert world.topic.forms == ("kept", "kept")
    move = world.agree(move_entry(TOPIC, 0, keepers))
    sealed = Placement(
        keepers,
        view=world.placement.view + 1,
        start=Offset(14),
        generation=Generation(7),
        move=move,
        lane_start=Offset(10),
    )
    world.agree(boundary_entry(TOPIC, 0, sealed))
    assert world.topic.forms == ("branched", "kept")
    placement = world.placement
    assert (placement.floor, placement.lane_start, placement.start) == (10, 10, 14)
    assert placement.since_view == placement.view - 1, "what is of before it came from the store is nobody's"
    assert world.topic.first[0] == 2
    assert world.stored_end == 10
    again = MetadataTable()
    again.restore(json.loads(json.dumps(world.table.snapshot())))
    assert again.topics == world.table.topics


@pytest.mark.parametrize("mode", ["ring", "object"])
def test_a_snapshot_carries_all_of_it(mode: str) -> None:
    world = World("ring")
    world.change("object")
    move = world.leave()
    world.bring(0, 10, move)
    world.end_view(10, move)
    world.change(mode)
    if mode == "ring":
        world.agree(keep_entry(TOPIC, 0, [BrokerId(2)]))
    again = MetadataTable()
    again.restore(json.loads(json.dumps(world.table.snapshot())))
    assert again.topics == world.table.topics
    assert again.snapshot() == world.table.snapshot()


def test_what_was_gathered_before_a_partition_left_the_store_comes_too_late() -> None:
    world = World("object")
    world.change("ring")
    world.agree(keep_entry(TOPIC, 0, [BrokerId(2)]))
    world.change("object")
    move = world.leave()
    world.end_view(0, move)
    assert world.topic.is_stored(0)
    item = Item(KEY, 0, 70, 1, -1, -1, -1, 0, 5, 6)
    for number, generations in enumerate(({}, {KEY: 4}, {KEY: world.placement.generation})):
        commit = Commit(number, [item], generations)
        world.agree(commit_entry(BrokerId(3), world.epoch, 1, [commit]))
        outcome = world.table.objects.outcome
        assert outcome is not None
        assert (outcome.results[0][0].error is None) == (number == 2)
    assert world.stored_end == 1
