"""Clusters that break one rule each: the harness must notice every one of them.

| what is broken | who notices |
| --- | --- |
| no adoption from B3 | test_ring_by_seed.py; here, a schedule of whole brokers |
| generation entered before the log is equal | test_ring_by_seed.py |
| a blank replica trusted too early | test_ring_by_seed.py; here, a schedule of whole brokers |
| an old disk believed, or any before the table is known | here, schedules of whole brokers |
| seal by one replica only, seal not kept | test_ring_moves_by_seed.py, a schedule |
| promise not persisted | test_ring_by_seed.py |
| acknowledgement before the sync | test_ring_by_seed.py, test_quorum_mutants.py; here, a schedule of whole brokers |
| vote not persisted | test_quorum_mutants.py, unit/broker/metadata/test_metadata_mutants.py |
| an old term committed by counting | here, Raft's figure 8 |
| reads without a quorum | test_quorum_mutants.py and unit/broker/metadata/test_metadata_mutants.py, schedules |
| a new leader that forgets what producers have sent | here, seeds |
"""

from collections.abc import Callable, Iterator, Sequence

import pytest

from anabranch.broker.ring.driver import RingDriver
from anabranch.broker.ring.replicas import Replicas
from anabranch.cluster.metadata.rows import Placement
from anabranch.cluster.raft.leader_progress import Reign
from anabranch.cluster.raft.log import QuorumLog
from anabranch.cluster.raft.messages import (
    AppendEntries,
    Entry,
    EntryKind,
    GiveVote,
    Member,
    Members,
    Snapshot,
)
from anabranch.cluster.raft.quorum import ELECTION_MS, Quorum, Role
from anabranch.modes.mode import FlushFinished
from anabranch.modes.ring.effects import Effect, Kept, Sync
from anabranch.modes.ring.replica import RingReplica
from anabranch.record.producer_table import ProducerTable
from anabranch.testing.simulation.cluster_runs import trace_of
from anabranch.testing.simulation.cluster_simulator import ClusterSimulator
from anabranch.testing.simulation.simulator import (
    SimulationError,
    fetch_request,
    produced,
    records_from,
)
from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey
from support.schedule import PLACE, Schedule

Patch = pytest.MonkeyPatch
SEEDS_MAX = 15


class RingSchedule(Schedule):
    """One partition, and who keeps it, in this order."""

    produce_ms = 5000

    def __init__(self, seed: int = 1, brokers: int = 3, replicas: Sequence[int] = (1, 2, 3)) -> None:
        assignment = {"partition_index": 0, "broker_ids": list(replicas)}
        topic = {"num_partitions": -1, "replication_factor": -1, "assignments": [assignment], "configs": []}
        super().__init__(ClusterSimulator(seed, brokers), topic)
        self.led_by(replicas[0])

    def led_by(self, broker_id: int) -> None:
        self.sim.run_until(
            lambda: broker_id in self.sim.lives and self.sim.leads(self.sim.lives[broker_id], PLACE)
        )

    def values(self, broker_id: int) -> list[bytes | None]:
        body = self.ask(broker_id, ApiKey.FETCH, 12, fetch_request(*PLACE, 0))
        return [value for _, value in records_from(body["responses"][0]["partitions"][0]["records"], 0)]

    def isolate(self, broker_id: int) -> None:
        self.sim.net.isolate(BrokerId(broker_id))


# --- schedules, and the rules they see broken ----------------------------------------------------------------------


def only_the_third_has_it() -> None:
    """What B1 and B3 have acknowledged outlives B1, though only B2 may lead then."""
    with RingSchedule() as world:
        world.sim.net.cut(BrokerId(1), BrokerId(2))
        world.write(1, b"safe")
        world.sim.kill(1)
        world.sim.net.heal()
        world.led_by(2)
        world.sim.run(1000)
        world.write(2, b"later")
        assert world.values(2) == [b"safe", b"later"]


def no_adoption(patch: Patch) -> None:
    def decide(self: RingReplica) -> Iterator[Effect]:
        if self.candidate is not None and (self.candidate.promises or not self.others):
            yield from self._open_when_synced()

    patch.setattr(RingReplica, "_decide", decide)


def one_disk_is_lost_while_another_is_away() -> None:
    """What B1 and B3 have acknowledged, B1 alone has when B3 comes back blank: nobody leads without B1. (Others vote
    on metadata meanwhile.)"""
    with RingSchedule(brokers=5, replicas=(3, 4, 5)) as world:
        world.isolate(4)
        world.write(3, b"safe")
        world.sim.kill(5)
        world.sim.wipe(5)
        world.sim.kill(3)
        world.sim.net.heal()
        world.sim.start(5)
        world.sim.run(10_000)
        world.sim.start(3)
        world.sim.run_until(world.sim.is_whole)
        world.led_by(3)
        assert world.values(3) == [b"safe"]


def blank_replica_trusted(patch: Patch) -> None:
    patch.setattr(Kept, "is_trusted", property(lambda self: True))


def an_old_disk_comes_back(*, is_told: bool = True) -> None:
    """What B1 and B3 have acknowledged, B1 alone has when B3 gets back the disk that it had before: nobody leads
    without B1. `is_told`: B3 learns at once what was agreed on since."""
    with RingSchedule(brokers=5, replicas=(3, 4, 5)) as world:
        world.sim.stop(5)  # So that this disk knows of the topic.
        world.sim.run_until(lambda: 5 not in world.sim.lives)
        world.sim.wipe(5)
        world.sim.start(5)
        world.sim.run_until(world.sim.is_whole)
        world.isolate(4)
        world.write(3, b"safe")
        world.sim.kill(5)
        world.sim.put_back(5)
        world.sim.kill(3)
        world.sim.net.heal()
        for voter in () if is_told else (1, 2):
            world.sim.net.cut(BrokerId(voter), BrokerId(5))
        world.sim.start(5)
        world.sim.run(10_000)
        world.sim.net.heal()
        world.sim.start(3)
        world.sim.run_until(world.sim.is_whole)
        world.led_by(3)
        assert world.values(3) == [b"safe"]


def an_old_disk_comes_back_and_hears_nothing() -> None:
    an_old_disk_comes_back(is_told=False)


def old_disk_believed(patch: Patch) -> None:
    patch.setattr(Placement, "is_strange_to", lambda *_: False)


def believed_before_the_table_is_known(patch: Patch) -> None:
    patch.setattr(
        Replicas, "is_listening", property(lambda self: True, lambda self, value: None), raising=False
    )


def everybody_loses_power() -> None:
    """While every disk is slow: what was acknowledged is on two of them."""
    for seed in range(5):
        with RingSchedule(seed) as world:
            for life in world.sim.lives.values():
                life.workers.slow_ms_max = 500
            pending = world.send(1, b"safe")
            world.sim.run(200)
            for _ in range(100):
                if pending.is_settled:
                    break
                world.sim.run(10)
            for number in world.sim.machines:
                world.sim.crash(number)
            for number in world.sim.machines:
                world.sim.start(number)
            world.sim.run_until(world.sim.is_whole)
            world.led_by(1)
            assert produced(pending) is None or world.values(1) == [b"safe"]


def acknowledged_before_the_sync(patch: Patch) -> None:
    carry_out = RingDriver._carry_out

    def hasty(self: RingDriver, effect: Effect) -> None:
        if isinstance(effect, Sync):
            self._events.appendleft(FlushFinished(effect.end))
        else:
            carry_out(self, effect)

    patch.setattr(RingDriver, "_carry_out", hasty)


SCHEDULES: list[tuple[Callable[[], None], Callable[[Patch], None]]] = [
    (only_the_third_has_it, no_adoption),
    (one_disk_is_lost_while_another_is_away, blank_replica_trusted),
    (an_old_disk_comes_back, old_disk_believed),
    (an_old_disk_comes_back_and_hears_nothing, believed_before_the_table_is_known),
    (everybody_loses_power, acknowledged_before_the_sync),
]


@pytest.mark.parametrize("happens", [each for each, _ in SCHEDULES], ids=lambda each: each.__name__)
def test_a_schedule_loses_nothing(happens: Callable[[], None]) -> None:
    happens()


@pytest.mark.parametrize(
    ("happens", "mutant"), SCHEDULES, ids=lambda each: each.__name__ if callable(each) else None
)
def test_a_schedule_catches(
    happens: Callable[[], None], mutant: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        happens()


# --- Raft's figure 8 -----------------------------------------------------------------------------------------------

A, B, C = (Member(number, f"disk-{number}") for number in range(1, 4))


def quorum_of(me: Member, entries: list[Entry], term: int) -> Quorum:
    snapshot = Snapshot(0, 0, Members(frozenset({A, B, C})))
    return Quorum(me, QuorumLog(snapshot, entries), lambda _: 0, term=term)


def exchange(*members: Quorum) -> None:
    """Until nobody has anything to say to the others."""
    known = {each.me: each for each in members}
    while any(each.has_ready() for each in members):
        for each in members:
            ready = each.ready()
            each.persisted(ready.token)
            for message in [*ready.now, *ready.after]:
                if message.receiver in known:
                    known[message.receiver].step(message)


def figure_8() -> None:
    """A leads again and gives B its entry of an older term; C, which has a newer one, replaces it on B."""
    old, other = Entry(2, EntryKind.CHANGE, b"old"), Entry(3, EntryKind.CHANGE, b"other")
    one, two, three = quorum_of(A, [old], 3), quorum_of(B, [], 3), quorum_of(C, [other], 3)
    one.tick(ELECTION_MS)
    one.persisted(one.ready().token)
    one.step(GiveVote(B, A, 4, is_trial=True, is_given=True))
    one.persisted(one.ready().token)
    one.step(GiveVote(B, A, 4, is_trial=False, is_given=True))
    one.persisted(one.ready().token)
    assert one.role is Role.LEADER
    two.step(AppendEntries(A, B, 4, 0, 0, [old], 0))
    ready = two.ready()
    two.persisted(ready.token)
    for message in ready.after:
        one.step(message)
    taken = one.commit_end
    for now_ms in range(5 * ELECTION_MS, 30 * ELECTION_MS, ELECTION_MS):
        two.tick(now_ms)
        three.tick(now_ms)
        exchange(two, three)
    assert three.commit_end > 1, "the schedule is not what it should be"
    assert taken == 0, "what was committed was replaced"


def old_term_committed_by_counting(patch: Patch) -> None:
    def committed(self: Reign, commit_end: int) -> int:
        ends = sorted(self._stable_end(voter) for voter in self._log.members.voters)
        return max(commit_end, ends[(len(ends) - 1) // 2])

    patch.setattr(Reign, "committed", committed)


def test_figure_8_commits_nothing_too_early() -> None:
    figure_8()


def test_figure_8_catches_counting_an_old_term(monkeypatch: Patch) -> None:
    old_term_committed_by_counting(monkeypatch)
    with pytest.raises(AssertionError, match="was replaced"):
        figure_8()


# --- seeds ---------------------------------------------------------------------------------------------------------


def test_seeds_catch_a_leader_that_forgets_what_producers_have_sent(monkeypatch: Patch) -> None:
    monkeypatch.setattr(ProducerTable, "replay", lambda self, header: None)
    assert any(_fails(seed) for seed in range(SEEDS_MAX)), "no seed noticed"


def _fails(seed: int) -> bool:
    try:
        trace_of(seed)
    except SimulationError:
        return True
    return False
