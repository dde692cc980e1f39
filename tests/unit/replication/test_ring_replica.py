"""One replica of a ring, one rule at a time; thousands of steps are in tests/simulation/test_ring_by_seed.py."""

from collections.abc import Iterable

from anabranch.replication.generations import Generations, Row
from anabranch.replication.mode import Publish
from anabranch.replication.ring_effects import CutBack, Effect, Kept, Remember, Sync, Take, Tell
from anabranch.replication.ring_messages import (
    Beat,
    Enter,
    Equal,
    Outdated,
    Promise,
    Propose,
    Pull,
    Push,
    Returned,
)
from anabranch.replication.ring_replica import SILENCE_MS, RingReplica

B1, B2, B3 = 1, 2, 3
RING = (B1, B2, B3)


def table(*rows: tuple[int, int]) -> Generations:
    return Generations([Row(*row) for row in rows])


def replica(me: int, end: int = 0, *, promised: int = 0, rows: Generations | None = None) -> RingReplica:
    return RingReplica(me, RING, Kept(promised, rows or table()), end)


def told(effects: Iterable[Effect], to: int | None = None) -> list[object]:
    return [one.message for one in effects if isinstance(one, Tell) and to in (None, one.to)]


def leader(end: int = 5) -> RingReplica:
    """B1 in generation 3, with B2's promise."""
    one = replica(B1, end, promised=1, rows=table((1, 0)))
    list(one.propose())
    list(one.heard(Promise(B2, 3, True, 3, end, table((1, 0)))))
    assert one.leader is not None
    return one


def test_a_promise_is_on_the_disk_before_anybody_hears_of_it() -> None:
    effects = list(replica(B2, 5, rows=table((1, 0))).heard(Propose(B1, 3)))
    assert isinstance(effects[0], Remember)
    assert effects[0].kept.promised == 3
    assert told(effects) == [Promise(B2, 3, True, 3, 5, table((1, 0)))]


def test_nothing_lower_than_a_promise_is_followed() -> None:
    one = replica(B3, promised=4)
    assert told(one.heard(Propose(B1, 3))) == [Promise(B3, 3, False, 4)]
    assert told(one.heard(Enter(B1, 3, table((3, 0)), {}))) == [Outdated(B3, 4)]
    assert told(one.heard(Beat(B1, 3, 0))) == [Outdated(B3, 4)]


def test_odd_generations_are_the_first_ones_and_even_the_second_ones() -> None:
    assert told(replica(B1, promised=3).propose(), B3) == [Propose(B1, 5)]
    assert told(replica(B2, promised=3).propose(), B3) == [Propose(B2, 4)]


def test_the_third_never_leads_and_the_second_only_when_the_first_is_silent() -> None:
    late_ms = 10 * SILENCE_MS
    assert told(replica(B3).tick(late_ms, frozenset({B1, B2}))) == []
    assert told(replica(B2).tick(late_ms)) == []
    assert told(replica(B2).tick(late_ms, frozenset({B1})), B3) == [Propose(B2, 2)]


def test_the_second_leads_while_the_first_is_not_to_be_trusted() -> None:
    one = replica(B2)
    list(one.tick(10_000))
    list(one.heard(Returned(B1, 0, "new disk")))
    assert told(one.tick(10_100), B3) == [Propose(B2, 2)]


def test_a_record_that_only_the_third_has_is_adopted_before_the_second_leads() -> None:
    one = replica(B2, 5, promised=1, rows=table((1, 0)))
    list(one.propose())
    effects = list(one.heard(Promise(B3, 2, True, 2, 6, table((1, 0)))))
    assert told(effects) == [Pull(B2, 2, 5)]
    effects = list(one.heard(Push(B3, 2, 5, 6, 1, 0, "the record")))
    assert [type(one) for one in effects] == [Take, Sync]
    effects = list(one.synced(6, 0))
    assert Remember(Kept(2, table((1, 0), (2, 6)))) in effects
    assert one.leader is not None


def test_a_generation_is_opened_only_when_the_own_log_is_on_the_disk() -> None:
    one = leader()
    list(one.appended(7))
    list(one.propose())
    effects = list(one.heard(Promise(B2, 5, True, 5, 5, table((1, 0), (3, 5)))))
    assert (effects, one.leader) == ([Sync(7, 0)], None)
    list(one.synced(7, 0))
    assert one.kept.table.last == 5


def test_a_record_is_safe_when_the_leader_and_one_follower_have_synced_it() -> None:
    one = leader()
    list(one.heard(Equal(B2, 3, 5, has_entered=True, is_trusted=True)))
    list(one.appended(6))
    assert Publish(6) not in list(one.heard(Equal(B2, 3, 6, has_entered=True, is_trusted=True)))
    assert list(one.synced(6, 0)) == [Publish(6)]


def test_a_follower_that_has_not_entered_or_is_not_trusted_does_not_count() -> None:
    one = leader()
    list(one.appended(6))
    list(one.synced(6, 0))
    assert not any(isinstance(done, Publish) for done in one.heard(Equal(B2, 3, 6, False, True)))
    assert not any(isinstance(done, Publish) for done in one.heard(Equal(B3, 3, 6, True, False)))
    assert not one.may_write


def test_a_follower_cuts_what_the_leader_does_not_have_and_enters_then() -> None:
    one = replica(B3, 8, promised=3, rows=table((1, 0)))
    effects = list(one.heard(Enter(B1, 3, table((1, 0), (3, 5)), {})))
    assert CutBack(5) in effects
    assert one.kept.table == table((1, 0), (3, 5))
    assert told(effects) == [Equal(B3, 3, 5, has_entered=True, is_trusted=True)]


def test_a_late_enter_of_the_present_generation_cuts_nothing() -> None:
    """It may have been acknowledged because of this copy."""
    one = replica(B3, 9, promised=3, rows=table((1, 0), (3, 5)))
    effects = list(one.heard(Enter(B1, 3, table((1, 0), (3, 5)), {})))
    assert not any(isinstance(done, CutBack) for done in effects)
    assert told(effects) == [Equal(B3, 3, 9, has_entered=True, is_trusted=True)]


def test_a_sync_that_began_before_a_cut_says_nothing_of_what_came_after() -> None:
    one = replica(B3, 8, promised=3, rows=table((1, 0)))
    list(one.heard(Enter(B1, 3, table((1, 0), (3, 5)), {})))
    list(one.heard(Push(B1, 3, 5, 7, 3, 5)))
    assert told(one.synced(8, 0)) == []
    assert told(one.synced(7, 1)) == [Equal(B3, 3, 7, has_entered=True, is_trusted=True)]


def test_a_leader_that_hears_nobody_lets_nobody_write() -> None:
    one = leader()
    list(one.heard(Equal(B2, 3, 5, has_entered=True, is_trusted=True)))
    assert one.may_write
    list(one.tick(10 * SILENCE_MS))
    assert not one.may_write


def test_a_replica_with_a_new_disk_promises_nothing_until_it_has_entered_a_generation_that_knows_of_it() -> (
    None
):
    one = RingReplica(B3, RING, Kept(return_id="new disk"), 0)
    assert list(one.heard(Propose(B1, 3))) == []
    list(one.heard(Enter(B1, 3, table((3, 0)), {})))
    assert not one.kept.is_trusted, "the generation is older than its return"
    list(one.heard(Enter(B1, 5, table((3, 0), (5, 0)), {B3: "new disk"})))
    assert one.kept.is_trusted


def test_a_leader_opens_a_generation_for_whoever_came_back() -> None:
    one = leader()
    assert told(one.heard(Returned(B3, 0, "new disk")), B2) == [Propose(B1, 5)]
    list(one.heard(Promise(B2, 5, True, 5, 5, table((1, 0), (3, 5)))))
    assert one.leader is not None
    assert one.leader.returns == {B3: "new disk"}
