"""What the agreed table makes of partitions that come out of branches."""

import json
import uuid

import pytest

from anabranch.cluster.metadata.entries import (
    Entry,
    broker_entry,
    broker_removed_entry,
    leave_entry,
    left_entry,
    move_entry,
    topic_config_entry,
    topic_entry,
)
from anabranch.cluster.metadata.rows import NO_MOVE, BrokerRow, Placement, Topic
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.values import BrokerId, Offset

TOPIC = uuid.UUID(int=5)
ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
START = Offset(7 * 2**32 + 1)


class World:
    """Three brokers, and a topic in mode branch that shall be a ring."""

    def __init__(self) -> None:
        self.table = MetadataTable()
        self.end = 0
        for broker in (ONE, TWO, THREE):
            self.register(broker, f"disk{broker}")
        self.agree(
            topic_entry(Topic("t", TOPIC, 2, {"anabranch.mode": "branch"}, first=(ONE, TWO), copies=3))
        )
        self.change("ring")

    def agree(self, entry: Entry) -> int:
        self.table.apply(json.loads(json.dumps(entry)), self.end)
        self.end += 1
        return self.end - 1

    def register(self, broker: BrokerId, disk: str) -> None:
        self.agree(broker_entry(BrokerRow(broker, disk, 0, "here", 9092, "here", 9192)))

    def change(self, mode: str) -> None:
        self.agree(topic_config_entry("t", {"anabranch.mode": mode}))

    @property
    def topic(self) -> Topic:
        return self.table.topics["t"]

    @property
    def placement(self) -> Placement:
        return self.table.placement(self.topic, 0)

    def leave(self, closer: BrokerId | None = TWO) -> int:
        return self.agree(leave_entry(TOPIC, 0, closer, self.placement.move))

    def end_branches(self, move: int, *replicas: BrokerId) -> None:
        self.agree(left_entry(TOPIC, 0, START, replicas or (TWO, ONE), move))

    @property
    def is_kept(self) -> bool:
        return not self.topic.is_branched(0)


@pytest.fixture
def world() -> World:
    return World()


def test_all_who_are_registered_are_asked_the_one_who_asks_first(world: World) -> None:
    assert not world.placement.is_closing
    move = world.leave()
    assert world.placement.target == (TWO, ONE, THREE)
    assert (world.placement.closer, world.placement.move) == (TWO, move)
    assert world.topic.is_branched(0)
    assert list(world.table.kept_by(ONE)) == []


def test_it_is_kept_by_those_who_have_everything(world: World) -> None:
    world.end_branches(world.leave())
    placement = world.placement
    assert world.topic.forms == ("kept", "branched")
    assert (placement.replicas, placement.directories) == ((TWO, ONE), ("disk2", "disk1"))
    assert (placement.start, placement.view, placement.since_view) == (START, 1, 1)
    assert placement.target is None
    assert placement.left != NO_MOVE


def test_an_attempt_that_was_overtaken_ends_nothing(world: World) -> None:
    first = world.leave()
    second = world.leave(ONE)
    assert world.placement.closer == ONE
    world.end_branches(first)
    assert not world.is_kept
    world.end_branches(second)
    assert world.is_kept


def test_an_attempt_that_was_called_off_ends_nothing(world: World) -> None:
    move = world.leave()
    world.leave(None)
    assert not world.placement.is_closing
    world.end_branches(move)
    assert not world.is_kept


def test_of_two_attempts_after_the_same_one_the_first_counts(world: World) -> None:
    before = world.placement.move
    world.agree(leave_entry(TOPIC, 0, TWO, before))
    world.agree(leave_entry(TOPIC, 0, ONE, before))
    assert world.placement.closer == TWO


@pytest.mark.parametrize("what", ["joined", "removed", "another disk"])
def test_it_does_not_end_where_somebody_may_have_promised_nothing(world: World, what: str) -> None:
    move = world.leave()
    match what:
        case "joined":
            world.register(BrokerId(4), "disk4")
        case "removed":
            world.agree(broker_removed_entry(THREE))
        case "another disk":
            world.register(THREE, "disk9")
    world.end_branches(move)
    assert not world.is_kept
    world.end_branches(world.leave())
    assert world.is_kept


def test_a_broker_that_merely_comes_back_has_still_promised(world: World) -> None:
    move = world.leave()
    world.register(THREE, "disk3")
    world.end_branches(move)
    assert world.is_kept


def test_nobody_tries_while_the_topic_is_to_stay(world: World) -> None:
    move = world.leave()
    world.change("branch")
    assert not world.placement.is_closing
    world.end_branches(move)
    world.leave()
    assert not world.placement.is_closing
    assert world.topic.forms == ()


def test_moves_do_not_concern_it_before(world: World) -> None:
    world.agree(move_entry(TOPIC, 0, (ONE,)))
    assert world.placement.target is None


def test_a_snapshot_carries_all_of_it(world: World) -> None:
    world.end_branches(world.leave())
    world.agree(leave_entry(TOPIC, 1, THREE, NO_MOVE))
    other = MetadataTable()
    other.restore(json.loads(json.dumps(world.table.snapshot())))
    assert other.topics == world.table.topics


def test_towards_the_object_store_it_is_kept_first(world: World) -> None:
    world.change("object")
    world.end_branches(world.leave())
    assert world.topic.forms == ("kept", "branched")


def test_a_move_into_branches_that_comes_after_the_wish_is_taken_back_changes_nothing() -> None:
    """It would be sealed again and again: what it waits for does not come."""
    world = World()
    kept = Topic("k", uuid.UUID(int=6), 1, {"anabranch.mode": "ring"}, (Placement((ONE, TWO)),))
    world.agree(topic_entry(kept))
    world.agree(topic_config_entry("k", {"anabranch.mode": "branch"}))
    world.agree(topic_config_entry("k", {"anabranch.mode": "ring"}))
    world.agree(move_entry(kept.topic_id, 0, (ONE, TWO)))
    assert world.table.topics["k"].placements[0].target is None
