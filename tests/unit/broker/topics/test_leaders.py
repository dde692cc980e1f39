"""Who leads what: own replicas, what others say, and the order in which the table names them."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from anabranch.broker.peers.messages import LeaderRow, Leads
from anabranch.broker.topics.leaders import UNKNOWN_GENERATION, Leader, Leaders
from anabranch.cluster.metadata.entries import (
    Entry,
    broker_entry,
    broker_fenced_entry,
    topic_entry,
    topic_removed_entry,
)
from anabranch.cluster.metadata.rows import BrokerRow, Placement, Topic
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.values import BrokerId, Generation, Offset

TOPIC = UUID(int=7)
B1, B2, B3 = BrokerId(1), BrokerId(2), BrokerId(3)


class Log:
    """In the place of the metadata log."""

    def __init__(self) -> None:
        self.table = MetadataTable()
        self._follow: Callable[[Offset, Entry | None], None]

    def subscribe(self, follow: Callable[[Offset, Entry | None], None]) -> None:
        self._follow = follow

    def apply(self, entry: Entry) -> None:
        self.table.apply(entry, 0)
        self._follow(Offset(0), entry)


class World:
    def __init__(self) -> None:
        self.log = Log()
        self.own: Any = None
        self.away: set[BrokerId] = set()
        self.leaders = Leaders(
            self.log,  # type: ignore[arg-type]
            lambda topic_id, index, placement: self.own,
            lambda broker: broker not in self.away,
        )
        self.log.apply(topic_entry(Topic("t", TOPIC, 1, {}, (Placement((B1, B2, B3)),))))

    def say(self, sender: BrokerId, generation: int, view: int = 0, *, is_whole: bool = False) -> None:
        row = LeaderRow(TOPIC, 0, view, Generation(generation), (sender, B3))
        self.leaders.heard(sender, Leads([row], is_whole))

    @property
    def leader(self) -> Leader:
        return self.leaders.of(TOPIC, 0)


def test_a_partition_begins_with_its_first_replica() -> None:
    world = World()
    assert world.leader == Leader(B1, UNKNOWN_GENERATION, (B1, B2, B3))
    world.away = {B1}
    assert world.leader == Leader(None, UNKNOWN_GENERATION, (B2, B3))


def test_the_newest_generation_counts_whatever_comes_last() -> None:
    world = World()
    world.say(B2, 4)
    assert world.leader == Leader(B2, Generation(4), (B2, B3))
    world.say(B1, 3)
    assert world.leader.broker_id == B2
    world.say(B1, 5)
    assert world.leader == Leader(B1, Generation(5), (B1, B3))
    world.say(B2, 1, view=1)
    assert world.leader == Leader(B2, Generation(1), (B2, B3))


def test_what_is_kept_here_knows_best() -> None:
    world = World()
    world.say(B2, 4)
    world.own = (B3, Generation(9), (B3,))
    assert world.leader == Leader(B3, Generation(9), (B3,))
    world.own = (None, Generation(9), ())  # It keeps a replica, which knows of no leader: others may.
    assert world.leader.broker_id == B2


def test_a_replica_that_knows_of_no_leader_does_not_guess_the_first() -> None:
    world = World()
    world.own = (None, Generation(0), ())
    assert world.leader.broker_id is None


def test_a_leader_that_is_gone_leads_nothing() -> None:
    world = World()
    world.say(B2, 4)
    world.away = {B2}
    assert world.leader == Leader(None, Generation(4), (B3,))


def test_a_whole_list_takes_back_what_it_does_not_name() -> None:
    world = World()
    heard: list[tuple[UUID, int]] = []
    world.leaders.subscribe(heard.append)
    world.say(B2, 4)
    world.leaders.heard(B3, Leads([], is_whole=True))
    assert world.leader.broker_id == B2
    world.leaders.heard(B2, Leads([], is_whole=True))
    assert world.leader == Leader(B1, UNKNOWN_GENERATION, (B1, B2, B3))
    assert heard == [(TOPIC, 0), (TOPIC, 0)]


def test_what_was_said_of_a_deleted_topic_is_forgotten() -> None:
    world = World()
    world.say(B2, 4)
    world.log.apply(topic_removed_entry("t"))
    assert not world.leaders._told


def test_what_was_said_of_an_earlier_view_does_not_count_in_a_later_one() -> None:
    world = World()
    world.say(B2, 4)
    later = Placement((B3, B1, B2), (), view=1)
    topic = world.log.table.topics["t"]
    world.log.table._place(topic, 0, later)
    assert world.leader.broker_id == B3


def test_the_generation_of_a_partition_that_one_broker_keeps_is_known_to_all() -> None:
    world = World()
    world.log.apply(topic_entry(Topic("alone", UUID(int=8), 1, {}, (Placement((B2,)),))))
    assert world.leaders.of(UUID(int=8), 0) == Leader(B2, Generation(0), (B2,))


def test_a_leader_that_leads_no_longer_is_forgotten_but_not_its_successor() -> None:
    world = World()
    gone = LeaderRow(TOPIC, 0, 0, Generation(3), ())
    world.say(B2, 3)
    world.leaders.heard(B2, Leads([gone], False))
    assert world.leader.generation == UNKNOWN_GENERATION
    world.say(B1, 5)
    world.leaders.heard(B2, Leads([gone], False))
    assert (world.leader.broker_id, world.leader.generation) == (B1, 5)


def test_of_what_is_in_the_object_store_a_broker_that_is_heard_is_named() -> None:
    world = World()
    stored = UUID(int=8)
    world.log.apply(topic_entry(Topic("s", stored, 30, {"anabranch.mode": "object"})))
    assert world.leaders.of(stored, 0) == Leader(None, Generation(0), ())
    for broker in (B1, B2, B3):
        world.log.apply(broker_entry(BrokerRow(broker, "disk", 0, "h", 1)))
    before = [world.leaders.of(stored, index) for index in range(30)]
    assert {each.broker_id for each in before} == {B1, B2, B3}
    assert all(each == Leader(each.broker_id, Generation(0), (each.broker_id,)) for each in before)
    world.log.apply(broker_fenced_entry(B2, 0, is_fenced=True))
    after = [world.leaders.of(stored, index) for index in range(30)]
    assert {each.broker_id for each in after} == {B1, B3}
    assert all(new == old for old, new in zip(before, after, strict=True) if old.broker_id != B2)
