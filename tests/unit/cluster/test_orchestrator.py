"""What the leader decides next: fences, members, moves. No loop, no clock: time is a number."""

import uuid
from collections.abc import Iterable

import pytest

from anabranch.cluster.metadata.entries import (
    boundary_entry,
    broker_draining_entry,
    broker_entry,
    broker_fenced_entry,
    broker_removed_entry,
    keep_entry,
    move_entry,
    topic_config_entry,
    topic_entry,
)
from anabranch.cluster.metadata.rows import BrokerRow, Placement, Topic
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.cluster.objects.entries import incarnation_entry
from anabranch.cluster.orchestrator import (
    BEAT_MS,
    MOVE_PATIENCE_MS,
    MOVES_AT_ONCE_MAX,
    SESSION_MS,
    SETTLED_MS,
    Action,
    BeginMove,
    ChangeMembers,
    Cluster,
    Fence,
    HandOver,
    Keep,
    Orchestrator,
    voters_wanted,
)
from anabranch.cluster.raft.messages import Member, Members
from anabranch.values import BrokerId


class World:
    """A cluster as its leader, broker 1, sees it; what it decides is done at once."""

    def __init__(self, *brokers: int, racks: str = "") -> None:
        self.table = MetadataTable()
        self.end = 0
        self.now_ms = 0
        self.me = Member(1, "disk1")
        self.members = Members(frozenset({self.me}))
        self.default_factor = 0
        self.silent: set[int] = set()
        self.stopping: set[int] = set()
        self.behind: set[int] = set()
        self.memory = Orchestrator(0)
        self.member_changes: list[Members] = []
        for place, broker in enumerate(brokers):
            self.register(broker, rack=racks[place] if racks else None)

    def commit(self, entry: object) -> None:
        self.table.apply(entry, self.end)  # type: ignore[arg-type]
        self.end += 1

    def register(
        self, broker: int, disk: str = "", rack: str | None = None, *, is_fenced: bool = False
    ) -> None:
        row = BrokerRow(
            BrokerId(broker), disk or f"disk{broker}", 0, "host", 9092, "host", 9192, rack, is_fenced
        )
        self.commit(broker_entry(row))

    def drain(self, broker: int) -> None:
        self.commit(broker_draining_entry(BrokerId(broker), is_draining=True))

    def topic(self, name: str, *replicas: Iterable[int], is_pinned: bool = False) -> Topic:
        placements = tuple(Placement(tuple(BrokerId(each) for each in one)) for one in replicas)
        self.commit(topic_entry(Topic(name, uuid.uuid4(), len(placements), {}, placements, is_pinned)))
        return self.table.topics[name]

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.table, self.members, self.end, self.me, self.default_factor)

    def step(self) -> list[Action]:
        for row in self.table.brokers.values():
            if row.broker_id not in self.silent:
                self.memory.heard(
                    row,
                    0 if row.broker_id in self.behind else self.end,
                    self.end,
                    self.now_ms,
                    is_stopping=row.broker_id in self.stopping,
                )
        actions = self.memory.step(self.cluster, self.now_ms)
        for action in actions:
            self.do(action)
        self.now_ms += BEAT_MS
        return actions

    def do(self, action: Action) -> None:
        match action:
            case Fence():
                self.commit(broker_fenced_entry(action.broker_id, action.epoch, is_fenced=action.is_fenced))
            case ChangeMembers():
                assert len(action.members.voters ^ self.members.voters) <= 1
                self.members = action.members
                self.member_changes.append(action.members)
                self.end += 1
            case BeginMove():
                self.commit(move_entry(action.topic.topic_id, action.partition, action.target))
            case Keep():
                self.commit(keep_entry(action.topic.topic_id, action.partition, action.replicas))
            case HandOver():
                pass

    def run(self, steps: int = 40) -> list[Action]:
        return [action for _ in range(steps) for action in self.step()]

    @property
    def voters(self) -> set[int]:
        return {member.broker_id for member in self.members.voters}

    @property
    def fenced(self) -> set[int]:
        return {row.broker_id for row in self.table.brokers.values() if row.is_fenced}

    def finish_moves(self) -> None:
        """What the leaders of the partitions do: end the old view, begin the next."""
        for topic in list(self.table.topics.values()):
            for partition, placement in enumerate(self.table.placements(topic)):
                if placement.target is not None:
                    after = Placement(placement.target, (), placement.view + 1, move=placement.move)
                    self.commit(boundary_entry(topic.topic_id, partition, after))

    def replicas(self, name: str) -> list[tuple[BrokerId, ...]]:
        return [placement.replicas for placement in self.table.placements(self.table.topics[name])]


# --- fencing


def test_a_silent_broker_is_fenced_after_its_session_and_not_before() -> None:
    world = World(1, 2, 3)
    world.run()
    world.silent = {2}
    assert not any(
        isinstance(action, Fence) for _ in range(SESSION_MS // BEAT_MS - 1) for action in world.step()
    )
    world.run(2)
    assert world.fenced == {2}


def test_a_new_leader_grants_everybody_a_full_session() -> None:
    world = World(1, 2, 3)
    world.run()
    world.memory = Orchestrator(world.now_ms)
    world.silent = {2, 3}
    world.run(SESSION_MS // BEAT_MS)
    assert world.fenced == set()
    world.run(1)
    assert world.fenced == {2, 3}


def test_a_broker_that_beats_again_is_unfenced_once_it_has_caught_up() -> None:
    world = World(1, 2, 3)
    world.silent = {2}
    world.run()
    assert world.fenced == {2}
    world.silent, world.behind = set(), {2}
    world.register(2, is_fenced=True)  # It came back, and registered again.
    world.run()
    assert world.fenced == {2}
    world.behind = set()
    world.run(1)
    assert world.fenced == set()


def test_a_stopping_broker_is_fenced_at_once_and_the_leader_never_fences_itself() -> None:
    world = World(1, 2, 3)
    world.run()
    world.stopping = {1, 2}
    world.run(1)
    assert world.fenced == {2}


def test_a_beat_of_an_earlier_registration_does_not_count() -> None:
    world = World(1, 2)
    old = world.table.brokers[BrokerId(2)]
    world.register(2, "disk2b")
    world.silent = {2}
    for _ in range(10):
        world.memory.heard(old, world.end, world.end, world.now_ms, is_stopping=False)
        world.step()
    assert world.fenced == {2}


# --- members


@pytest.mark.parametrize(("brokers", "voters"), [(1, 1), (2, 1), (3, 3), (6, 3), (7, 5), (30, 5)])
def test_how_many_voters(brokers: int, voters: int) -> None:
    assert voters_wanted(brokers) == voters
    world = World(*range(1, brokers + 1))
    world.run()
    assert len(world.members.voters) == voters
    assert len(world.members.everyone) == brokers
    assert world.me in world.members.voters


def test_a_second_voter_comes_only_when_a_third_is_ready() -> None:
    world = World(1, 2, 3)
    world.behind = {3}
    world.run()
    assert world.voters == {1}
    world.behind = set()
    world.run()
    assert world.voters == {1, 2, 3}


def test_a_learner_that_is_silent_or_stopping_does_not_become_a_voter() -> None:
    world = World(1, 2, 3, 4)
    world.silent, world.stopping = {2}, {3}
    world.run()
    assert world.voters == {1}
    world.stopping = set()
    world.run()
    assert world.voters == {1, 3, 4}


def test_voters_are_taken_from_different_racks() -> None:
    world = World(1, 2, 3, 4, racks="aabc")
    world.run()
    assert world.voters == {1, 3, 4}


def test_a_broker_back_with_another_disk_replaces_its_old_member() -> None:
    world = World(1, 2, 3)
    world.run()
    world.register(3, "disk3b")
    world.run()
    assert world.members == Members(frozenset({world.me, Member(2, "disk2"), Member(3, "disk3b")}))


def test_a_voter_does_not_go_if_too_few_of_the_others_live() -> None:
    world = World(1, 2, 3)
    world.run()
    world.silent = {2}
    world.run(SESSION_MS // BEAT_MS)
    world.register(3, "disk3b")
    before = world.members.voters
    world.run()
    assert world.members.voters == before  # Of 1 and 2, two would be needed, and 2 is silent.
    world.silent = set()
    world.run()
    assert Member(3, "disk3b") in world.members.voters


def test_a_removed_broker_leaves_the_quorum_and_the_number_of_voters_shrinks() -> None:
    world = World(1, 2, 3, 4, 5, 6, 7)
    world.run()
    assert len(world.voters) == 5
    gone = max(world.voters)
    world.commit(broker_removed_entry(BrokerId(gone)))
    world.run()
    assert len(world.voters) == 3
    assert gone not in {member.broker_id for member in world.members.everyone}
    assert 1 in world.voters


def test_a_leader_that_was_removed_leaves_once_another_votes() -> None:
    world = World(1, 2)
    world.run()
    assert world.voters == {1}
    world.commit(broker_removed_entry(BrokerId(1)))
    world.run()
    assert world.voters == {2}


def test_a_leader_that_was_removed_stays_while_nobody_else_could_vote() -> None:
    world = World(1, 2)
    world.silent = {2}
    world.run()
    world.commit(broker_removed_entry(BrokerId(1)))
    world.run()
    assert world.voters == {1}


def test_nothing_is_changed_when_all_is_as_it_should_be() -> None:
    world = World(1, 2, 3, 4)
    world.topic("t", (1, 2, 3))
    world.run()
    world.member_changes.clear()
    assert world.run() == []


# --- a leader that leaves


def test_a_stopping_leader_hands_over_to_the_voter_that_knows_most() -> None:
    world = World(1, 2, 3, 4)
    world.run()
    world.stopping, world.behind = {1}, {2}
    world.memory.sessions[BrokerId(2)].applied_end = 0
    assert not any(isinstance(action, HandOver) for _ in range(2) for action in world.step())
    assert HandOver(Member(3, "disk3")) in world.step()


def test_a_stopping_leader_does_not_hand_over_to_one_that_stops_too() -> None:
    world = World(1, 2, 3)
    world.run()
    world.stopping = {1, 2}
    assert {action for action in world.run() if isinstance(action, HandOver)} == {
        HandOver(Member(3, "disk3"))
    }
    world.stopping = {1, 2, 3}
    assert not any(isinstance(action, HandOver) for action in world.run())


def test_a_stopping_leader_without_another_voter_hands_over_to_nobody() -> None:
    world = World(1, 2)
    world.run()
    world.stopping = {1}
    assert not any(isinstance(action, HandOver) for action in world.run())


# --- moves


def test_topics_grow_once_the_brokers_have_settled() -> None:
    world = World(1)
    world.topic("t", (1,), (1,), (1,))
    world.topic("__consumer_offsets", (1,), (1,))
    world.run()
    world.register(2)
    world.run(1)
    world.register(3)
    early = [action for _ in range(SETTLED_MS // BEAT_MS) for action in world.step()]
    assert not any(isinstance(action, BeginMove) for action in early)
    for _ in range(10):
        world.run(3)
        world.finish_moves()
    for name in ("t", "__consumer_offsets"):
        assert all(sorted(replicas) == [1, 2, 3] for replicas in world.replicas(name))
    assert len({replicas[0] for replicas in world.replicas("t")}) == 3


def test_topics_written_before_there_were_clusters_grow_too() -> None:
    world = World(1)
    world.commit({"type": "topic", "name": "old", "id": uuid.uuid4().hex, "partitions": 2, "overrides": {}})
    world.register(2)
    world.register(3)
    for _ in range(6):
        world.run(10)
        world.finish_moves()
    assert all(sorted(replicas) == [1, 2, 3] for replicas in world.replicas("old"))


def test_only_a_few_moves_are_under_way_at_once() -> None:
    world = World(1, 2, 3)
    world.topic("t", *[(1,)] * 20)
    world.run()
    targets = [placement.target for placement in world.table.topics["t"].placements]
    assert sum(target is not None for target in targets) == MOVES_AT_ONCE_MAX
    for _ in range(10):
        world.finish_moves()
        world.run(5)
    assert all(len(replicas) == 3 for replicas in world.replicas("t"))


def test_a_pinned_topic_does_not_grow_but_leaves_a_draining_broker() -> None:
    world = World(1, 2, 3)
    world.topic("t", (2,), is_pinned=True)
    world.run()
    assert world.replicas("t") == [(2,)]
    world.drain(2)
    world.run()
    world.finish_moves()
    assert world.replicas("t") in ([(1,)], [(3,)])


def test_a_topic_gets_the_copies_of_its_mode() -> None:
    world = World(1, 2, 3)
    world.topic("alone", (2,), (3,))
    world.topic("pinned", (1,), (1,), (1,), is_pinned=True)
    world.topic("pair", (1, 2), is_pinned=True)
    for name, mode in (("alone", "solo"), ("pinned", "ring"), ("pair", "ring")):
        world.commit(topic_config_entry(name, {"anabranch.mode": mode}))
    world.run()
    world.finish_moves()
    assert world.replicas("alone") == [(2,), (3,)]
    rings = world.replicas("pinned")
    assert [sorted(replicas) for replicas in rings] == [[1, 2, 3]] * 3
    assert world.replicas("pair") == [(1, 2)]
    assert 2 in {replicas[0] for replicas in rings}
    world.silent = {2}
    world.run(10)
    world.commit(topic_config_entry("pinned", {"anabranch.mode": "solo"}))
    world.run()
    world.finish_moves()
    assert world.replicas("pinned") == [(next(each for each in replicas if each != 2),) for replicas in rings]
    world.commit(topic_config_entry("alone", {}))
    world.run()
    world.finish_moves()
    assert all(len(replicas) > 1 for replicas in world.replicas("alone"))


def test_growth_keeps_who_already_has_a_copy() -> None:
    world = World(1, 2, 3, 4, 5, 6)
    world.topic("t", *[(4,)] * 4)
    world.run()
    for placement in world.table.topics["t"].placements:
        assert placement.target is not None
        assert 4 in placement.target
        assert len(placement.target) == 3


def test_a_fenced_broker_keeps_its_partitions_and_gets_no_new_ones() -> None:
    world = World(1, 2, 3, 4)
    world.topic("kept", (2, 3, 4))
    world.topic("grows", (1,))
    world.silent = {2}
    world.run()
    world.finish_moves()
    assert world.replicas("kept") == [(2, 3, 4)]
    assert sorted(world.replicas("grows")[0]) == [1, 3, 4]


def test_a_drained_brokers_only_copy_is_not_dropped_when_nobody_can_take_it() -> None:
    world = World(1)
    world.topic("t", (1,))
    world.drain(1)
    assert not any(isinstance(action, BeginMove) for action in world.run())


def test_a_replica_is_not_dropped_only_because_its_broker_drains() -> None:
    world = World(1, 2, 3)
    world.topic("t", (1, 2, 3))
    world.drain(3)
    assert not any(isinstance(action, BeginMove) for action in world.run())
    world.register(4)
    world.run()
    world.finish_moves()
    assert sorted(world.replicas("t")[0]) == [1, 2, 4]


def test_a_move_to_a_broker_that_does_not_come_back_goes_to_another() -> None:
    world = World(1, 2, 3, 4)
    world.topic("t", (1,))
    world.run()
    target = world.table.topics["t"].placements[0].target
    assert target is not None
    lost = next(each for each in target if each != 1)
    world.silent = {lost}
    world.run(MOVE_PATIENCE_MS // BEAT_MS - 2)
    assert world.table.topics["t"].placements[0].target == target
    world.run(10)
    now = world.table.topics["t"].placements[0].target
    assert now is not None
    assert lost not in now
    assert len(now) == 3


def test_a_move_that_somebody_chose_waits_for_its_broker_until_that_is_removed() -> None:
    world = World(1, 2, 3)
    topic = world.topic("t", (1,), is_pinned=True)
    world.commit(move_entry(topic.topic_id, 0, (BrokerId(3),), is_pinned=True))
    world.silent = {3}
    world.run(2 * MOVE_PATIENCE_MS // BEAT_MS)
    assert world.table.topics["t"].placements[0].target == (3,)
    world.commit(broker_removed_entry(BrokerId(3)))
    world.run()
    assert world.table.topics["t"].placements[0].target is None


def test_the_setting_says_how_many_copies_topics_grow_to() -> None:
    world = World(1, 2, 3)
    world.default_factor = 2
    world.topic("t", (1,))
    world.run()
    world.finish_moves()
    world.run()
    assert len(world.replicas("t")[0]) == 2


def test_topics_in_the_object_store_do_not_move() -> None:
    world = World(1, 2, 3)
    stored = Topic("s", uuid.uuid4(), 2, {"anabranch.mode": "object"})
    world.commit(topic_entry(stored))
    actions = world.run()
    world.commit(broker_draining_entry(BrokerId(3), is_draining=True))
    actions += world.run()
    assert not any(isinstance(action, BeginMove) for action in actions)
    assert world.table.topics["s"] == stored


# --- forms ----------------------------------------------------------------------------------------------------


def test_a_few_partitions_at_once_go_into_the_store_and_the_others_follow() -> None:
    world = World(1, 2, 3)
    world.topic("t", *[(1, 2, 3)] * 6)
    world.run()
    world.commit(topic_config_entry("t", {"anabranch.mode": "object"}))
    moves = [action for action in world.run() if isinstance(action, BeginMove)]
    assert [(move.partition, move.target) for move in moves] == [(index, ()) for index in range(4)]
    world.commit(incarnation_entry(7))
    world.finish_moves()  # They are empty, so the store has everything at once.
    assert world.table.topics["t"].all_forms.count("stored") == 4
    assert [action.partition for action in world.run() if isinstance(action, BeginMove)] == [4, 5]


def test_what_shall_go_from_the_store_into_branches_is_kept_first_and_then_sealed() -> None:
    world = World(1, 2, 3)
    world.commit(topic_entry(Topic("t", uuid.uuid4(), 1, {"anabranch.mode": "object"})))
    world.run()
    world.commit(topic_config_entry("t", {"anabranch.mode": "branch"}))
    actions = world.run()
    (keep,) = [action for action in actions if isinstance(action, Keep)]
    assert set(keep.replicas) == {1, 2, 3}
    (move,) = [action for action in actions if isinstance(action, BeginMove)]
    assert move.target == keep.replicas
    assert world.table.topics["t"].placements[0].leaves_for_branches


def test_who_shall_keep_what_leaves_the_store_is_alive_and_stays() -> None:
    world = World(1, 2, 3, 4)
    world.commit(topic_entry(Topic("t", uuid.uuid4(), 2, {"anabranch.mode": "object"})))
    world.run()
    world.drain(2)
    world.silent.add(3)
    world.run(10)
    world.commit(topic_config_entry("t", {"anabranch.mode": "ring"}))
    kept = [action for action in world.step() if isinstance(action, Keep)]
    assert [(keep.partition, set(keep.replicas)) for keep in kept] == [(0, {1, 4}), (1, {1, 4})]
    assert not [action for action in world.run() if isinstance(action, Keep)]
