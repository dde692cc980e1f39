"""One replica of a ring, one rule at a time; thousands of steps are in tests/simulation/test_ring_by_seed.py."""

from collections.abc import Iterable
from dataclasses import replace

from anabranch.modes.generations import Generations, Row
from anabranch.modes.mode import Publish
from anabranch.modes.ring.effects import AskForDisk, CutBack, Effect, Kept, Remember, Sync, Take, Tell
from anabranch.modes.ring.messages import (
    Beat,
    Enter,
    Equal,
    Missing,
    Outdated,
    Promise,
    Propose,
    Pull,
    Push,
    Returned,
    Sealed,
)
from anabranch.modes.ring.replica import (
    BEAT_MS,
    PUSHES_UNDER_WAY_MAX,
    RESIGN_MS_MAX,
    SEND_AGAIN_MS,
    SILENCE_MS,
    RingReplica,
)
from anabranch.values import Generation

B1, B2, B3 = 1, 2, 3
RING = (B1, B2, B3)
PIECE_MAX = 100


def fits(start: int, end: int) -> int:
    return min(end, start + PIECE_MAX)


def table(*rows: tuple[int, int]) -> Generations:
    return Generations([Row(*row) for row in rows])


def replica(me: int, end: int = 0, *, promised: int = 0, rows: Generations | None = None) -> RingReplica:
    return RingReplica(me, RING, Kept(promised, rows or table()), end, fits=fits)


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
    third = replica(B3)
    list(third.heard(Missing(B2, 0)))
    assert told(third.tick(late_ms)) == [Missing(B3, 0), Missing(B3, 0)]
    second = replica(B2)
    assert told(second.tick(late_ms), B3) == [Missing(B2, 0)]
    list(second.heard(Missing(B1, 0)))
    assert told(second.tick(late_ms + BEAT_MS), B3) == [Missing(B2, 0)], "only the third can bear witness"
    list(second.heard(Missing(B3, 0)))
    assert told(second.tick(late_ms + 2 * BEAT_MS), B3) == [Propose(B2, 2)]


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


def test_a_follower_that_comes_back_with_less_than_it_had_counts_no_more() -> None:
    one = leader()
    list(one.heard(Equal(B2, 3, 5, has_entered=True, is_trusted=True)))
    list(one.appended(7))
    list(one.heard(Equal(B2, 3, 7, has_entered=True, is_trusted=True)))
    list(one.heard(Equal(B2, 3, 2, has_entered=True, is_trusted=False)))
    assert not one.may_write
    assert not any(isinstance(done, Publish) for done in one.synced(7, 0)), "nobody else is known to have it"
    assert not any(isinstance(done, Publish) for done in one.heard(Equal(B2, 3, 7, True, is_trusted=False)))
    assert Publish(7) in list(one.heard(Equal(B3, 3, 7, has_entered=True, is_trusted=True)))


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
    one = RingReplica(B3, RING, Kept(return_id="new disk"), 0, fits=fits)
    assert list(one.heard(Propose(B1, 3))) == []
    list(one.heard(Enter(B1, 3, table((3, 0)), {})))
    assert not one.kept.is_trusted, "the generation is older than its return"
    list(one.heard(Enter(B1, 5, table((3, 0), (5, 0)), {B3: "new disk"})))
    assert one.kept.is_trusted


def test_a_replica_on_a_disk_that_nobody_agreed_on_is_not_believed_whatever_it_has() -> None:
    one = replica(B3, 5, promised=3, rows=table((3, 0)))
    assert list(one.find_disk("old disk")) == [Remember(replace(one.kept, return_id="old disk"))]
    assert list(one.heard(Propose(B1, 5))) == []
    assert list(one.find_disk("another name")) == [], "it has come back once"


def test_a_new_disk_is_agreed_on_before_it_is_trusted() -> None:
    one = RingReplica(B3, RING, Kept(return_id="new disk"), 0, fits=fits)
    list(one.find_disk("new disk"))
    assert list(one.heard(Enter(B1, 5, table((5, 0)), {B3: "new disk"})))[-1] == AskForDisk()
    assert not one.kept.is_trusted
    assert AskForDisk() not in list(one.tick(BEAT_MS - 1))
    assert AskForDisk() in list(one.tick(BEAT_MS))
    list(one.find_disk(None))
    assert one.kept.is_trusted


def test_a_replica_that_keeps_everything_alone_is_believed_on_any_disk() -> None:
    one = RingReplica(B1, (B1,), Kept(1, table((1, 0))), 5, fits=fits)
    assert list(one.find_disk("other disk")) == []
    assert one.kept.is_trusted


def test_a_leader_opens_a_generation_for_whoever_came_back() -> None:
    one = leader()
    assert told(one.heard(Returned(B3, 0, "new disk")), B2) == [Propose(B1, 5)]
    list(one.heard(Promise(B2, 5, True, 5, 5, table((1, 0), (3, 5)))))
    assert one.leader is not None
    assert one.leader.returns == {B3: "new disk"}


# --- the window of a follower


def pushes(effects: Iterable[Effect], to: int = B2) -> list[tuple[int, int]]:
    return [(one.start, one.end) for one in told(effects, to) if isinstance(one, Push)]


def test_a_follower_far_behind_never_has_more_than_the_window_under_way() -> None:
    one = leader(10_000)
    waiting = pushes(one.heard(Equal(B2, 3, 0, has_entered=False, is_trusted=True)))
    ends, now_ms = [], 0
    while waiting:
        assert len(waiting) <= PUSHES_UNDER_WAY_MAX
        ends.append(waiting.pop(0)[1])
        now_ms += 10
        list(one.tick(now_ms))  # A beat repeats nothing.
        waiting += pushes(one.heard(Equal(B2, 3, ends[-1], ends[-1] == 10_000, is_trusted=True)))
    assert ends == list(range(PIECE_MAX, 10_001, PIECE_MAX))


def test_what_is_appended_while_the_window_is_full_leaves_together_when_there_is_room() -> None:
    one = leader(0)
    list(one.heard(Equal(B2, 3, 0, has_entered=True, is_trusted=True)))
    sent = [pushes(one.appended(end)) for end in range(1, PUSHES_UNDER_WAY_MAX + 5)]
    assert sent == [[(end, end + 1)] for end in range(PUSHES_UNDER_WAY_MAX)] + [[]] * 4
    assert pushes(one.heard(Equal(B2, 3, 1, has_entered=True, is_trusted=True))) == [
        (PUSHES_UNDER_WAY_MAX, PUSHES_UNDER_WAY_MAX + 4)
    ]


def test_what_stays_unanswered_is_sent_again_from_where_the_follower_is() -> None:
    one = leader(0)
    list(one.heard(Equal(B2, 3, 0, has_entered=True, is_trusted=True)))
    assert pushes(one.appended(1)) == [(0, 1)]
    assert pushes(one.appended(2)) == [(1, 2)]
    list(one.heard(Equal(B2, 3, 1, has_entered=True, is_trusted=True)))
    list(one.heard(Equal(B3, 3, 0, has_entered=True, is_trusted=True)))
    assert pushes(one.tick(BEAT_MS)) == []
    assert pushes(one.tick(SEND_AGAIN_MS)) == [(1, 2)]


def test_over_a_new_link_everything_begins_again_where_the_follower_says() -> None:
    one = leader(0)
    list(one.heard(Equal(B2, 3, 0, has_entered=True, is_trusted=True)))
    list(one.appended(5))
    assert [type(message) for message in told(one.peer_up(B2), B2)] == [Enter]
    assert pushes(one.appended(6)) == [], "not before it has answered"
    assert pushes(one.heard(Equal(B2, 3, 3, has_entered=True, is_trusted=True))) == [(3, 6)]


def test_a_push_never_crosses_into_the_next_generation_and_that_waits_until_it_is_entered() -> None:
    one = leader(5)  # Generation 1 wrote 0 to 5, generation 3 begins there.
    list(one.appended(9))
    assert pushes(one.heard(Equal(B2, 3, 2, has_entered=False, is_trusted=True))) == [(2, 5)]
    assert pushes(one.heard(Equal(B2, 3, 5, has_entered=True, is_trusted=True))) == [(5, 9)]


def test_what_a_full_link_did_not_take_is_pushed_when_there_is_room() -> None:
    one = leader(0)
    list(one.heard(Equal(B2, 3, 0, has_entered=True, is_trusted=True)))
    assert pushes(one.appended(2)) == [(0, 2)]
    assert pushes(one.appended(3)) == [(2, 3)]
    one.not_sent(B2, 0)
    assert pushes(one.push_on()) == [(0, 3)]


def test_a_follower_that_misses_a_push_asks_for_it_once() -> None:
    one = follower(5)
    assert told(one.heard(Push(B1, 3, 7, 8, 3, 0))) == [Pull(B3, 3, 5)]
    assert told(one.heard(Push(B1, 3, 8, 9, 3, 0))) == [], "it has just asked"


def test_a_push_that_was_not_taken_is_asked_for() -> None:
    one = follower(5)
    effects = one.heard(Push(B1, 3, 5, 7, 3, 0, "spoiled"))
    assert isinstance(next(iter(effects)), Take)
    assert told(one.not_taken(5, 0, is_refused=False)) == [Pull(B3, 3, 5)]
    assert one.end == 5


def test_a_follower_says_what_is_synced_while_more_is_being_synced() -> None:
    one = follower(5)
    list(one.heard(Push(B1, 3, 5, 7, 3, 0)))
    list(one.heard(Push(B1, 3, 7, 8, 3, 0)))
    assert told(one.synced(7, 0)) == [Equal(B3, 3, 7, has_entered=True, is_trusted=True)]


def follower(end: int) -> RingReplica:
    """B3 in generation 3 of B1."""
    one = replica(B3, end, promised=3, rows=table((1, 0), (3, end)))
    list(one.heard(Enter(B1, 3, table((1, 0), (3, end)), {})))
    return one


def test_a_tick_before_its_time_is_not_needed() -> None:
    one = leader(0)
    list(one.tick(BEAT_MS))
    assert one.due_ms == 2 * BEAT_MS
    two = follower(5)
    list(two.tick(BEAT_MS))
    assert two.due_ms == SILENCE_MS
    list(two.heard(Enter(B2, 4, table((1, 0), (3, 5), (4, 5)), {})))
    assert two.due_ms < 0


def test_a_first_replica_that_comes_back_waits_for_whoever_leads() -> None:
    one = replica(B1, 5, promised=2, rows=table((1, 0), (2, 3)))
    assert told(one.tick(SILENCE_MS - 1)) == []
    assert told(one.tick(SILENCE_MS), B2) == [Propose(B1, 3)]


def test_the_first_replica_of_a_new_partition_leads_at_once() -> None:
    assert told(replica(B1).tick(0), B2) == [Propose(B1, 1)]


def test_who_has_promised_gives_the_candidate_time() -> None:
    one = replica(B1, 5, promised=1, rows=table((1, 0)))
    one.at(10 * SILENCE_MS)
    list(one.heard(Propose(B2, 2)))
    assert not any(isinstance(message, Propose) for message in told(one.tick(11 * SILENCE_MS - 1)))
    assert told(one.tick(11 * SILENCE_MS), B2) == [Propose(B1, 3)]


def followed(me: int, generation: int, by: int) -> RingReplica:
    one = replica(me, 5, promised=generation, rows=table((1, 0)))
    list(one.heard(Enter(by, generation, table((1, 0), (generation, 5)), {})))
    assert one.leader_id == by
    return one


def test_a_leader_that_resigns_takes_nothing_more_and_leaves_when_all_is_safe() -> None:
    one = leader()
    list(one.heard(Equal(B2, 3, 5, True, True, 0)))
    list(one.appended(6))
    assert told(one.resign()) == []
    assert not one.may_write
    assert one.leader is not None
    list(one.synced(6, one.cuts))
    effects = list(one.heard(Equal(B2, 3, 6, True, True, 0)))
    assert any(isinstance(effect, Publish) for effect in effects)
    assert told(effects) == [Returned(B1, 3, ""), Returned(B1, 3, "")]
    assert one.leader is None


def test_a_leader_that_resigns_leaves_also_if_nothing_becomes_safe() -> None:
    one = leader()
    list(one.resign())
    list(one.tick(RESIGN_MS_MAX - 1))
    assert one.leader is not None
    assert Returned(B1, 3, "") in told(one.tick(RESIGN_MS_MAX), B2)
    assert one.leader is None


def test_who_resigned_leads_no_more() -> None:
    one = replica(B1)
    list(one.resign())
    assert not any(isinstance(message, Propose) for message in told(one.tick(100 * SILENCE_MS)))


def test_the_second_leads_as_soon_as_the_first_resigns_and_the_first_as_soon_as_the_second_does() -> None:
    assert told(followed(B2, 3, by=B1).heard(Returned(B1, 3, "")), B3) == [Propose(B2, 4)]
    assert told(followed(B1, 4, by=B2).heard(Returned(B2, 4, "")), B3) == [Propose(B1, 5)]


def test_the_third_does_not_lead_when_the_first_resigns() -> None:
    assert told(followed(B3, 3, by=B1).heard(Returned(B1, 3, ""))) == []


def test_that_somebody_else_is_unfit_changes_nothing() -> None:
    assert told(followed(B2, 3, by=B1).heard(Returned(B3, 3, ""))) == []


def test_a_candidate_that_nobody_answers_asks_again_for_the_same_generation() -> None:
    one = replica(B1, 5, promised=1, rows=table((1, 0)))
    list(one.tick(SILENCE_MS))
    effects = list(one.tick(2 * SILENCE_MS))
    assert told(effects) == [Propose(B1, 3), Propose(B1, 3)]
    assert not any(isinstance(effect, Remember) for effect in effects)


def test_of_two_replicas_the_other_leads_when_one_has_lost_its_disk() -> None:
    for me, other in ((B1, B2), (B2, B1)):
        one = RingReplica(me, (B1, B2), Kept(2, table((1, 0))), 5, fits=fits)
        one.at(SILENCE_MS)
        list(one.heard(Returned(other, 0, "new")))
        blank = RingReplica(other, (B1, B2), Kept(return_id="new"), 0, fits=fits)
        (asked,) = [each for each in told(one.tick(SILENCE_MS), other) if isinstance(each, Propose)]
        (promise,) = told(blank.heard(asked), me)
        entered = [each for each in told(one.heard(promise), other) if isinstance(each, Enter)]
        assert entered
        assert entered[0].returns == {other: "new"}
        assert not one.may_write


def test_of_two_replicas_none_leads_while_the_other_is_only_silent() -> None:
    one = RingReplica(B1, (B1, B2), Kept(2, table((1, 0))), 5, fits=fits)
    list(one.tick(SILENCE_MS))
    list(one.tick(2 * SILENCE_MS))
    assert one.leader is None


def test_what_no_replica_would_say_is_ignored() -> None:
    follower = replica(B3, 5, promised=1, rows=table((1, 0)))
    assert list(follower.heard(Enter(B1, 3, table(), {}))) == []
    assert list(follower.heard(Enter(B1, 3, table((1, 0)), {}))) == []
    assert (follower.leader_id, follower.kept.promised) == (None, 1)
    candidate = replica(B1, 5, promised=1, rows=table((1, 0)))
    list(candidate.propose())
    assert list(candidate.heard(Promise(9, 3, True, 3, 50, table((1, 0))))) == []
    assert candidate.leader is None
    one = leader()
    one.kept = replace(one.kept, sealed=Generation(3))
    assert list(one.heard(Sealed(9, 3))) == []
    assert one.leader is not None
    assert one.leader.sealed_by == set()


def test_one_who_shall_keep_it_and_is_not_trusted_is_made_so_before_the_view_ends() -> None:
    one = replica(B1, 5, promised=1, rows=table((1, 0)))
    one.replicas = (B1,)
    list(one.aim((9,), move=7))
    list(one.propose())
    assert one.leader is not None
    list(one.heard(Equal(9, 3, 5, has_entered=True, is_trusted=False, move=7)))
    assert not one._is_kept_by_target(one.leader, 5)
    known = told(one.heard(Returned(9, 0, "back")), to=9)
    assert known == [Enter(B1, 5, one.kept.table, {9: "back"})], "a generation that knows of it"
    assert one.leader is not None
    list(one.heard(Equal(9, 5, 5, has_entered=True, is_trusted=True, move=7)))
    assert one._is_kept_by_target(one.leader, 5)


def test_a_follower_knows_how_far_it_is_behind() -> None:
    one = replica(B3, 5, promised=1, rows=table((1, 0)))
    assert one.lag == 0
    list(one.heard(Beat(B1, 1, 40)))
    assert one.lag == 35
    assert leader().lag == 0


def test_a_leader_that_has_fallen_silent_is_not_named() -> None:
    one = replica(B3, 5, promised=1, rows=table((1, 0)))
    list(one.heard(Enter(B1, 1, table((1, 0)), {})))
    assert one.leader_id == B1
    list(one.tick(SILENCE_MS))
    assert one.leader_id is None
