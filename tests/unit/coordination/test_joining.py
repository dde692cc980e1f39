"""Who comes in, under which id, and what that does to the group."""

from anabranch.coordination.groups.group_base import GroupState
from anabranch.coordination.groups.messages import Identity, JoinAnswer
from anabranch.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceError,
    GroupFullError,
    InconsistentGroupProtocolError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from support.group_bench import RANGE, REBALANCE_MS, SESSION_MS, Bench, subscription

BOTH = (("sticky", subscription("orders")), ("range", subscription("orders")))


def test_the_first_member_leads_generation_one_after_the_initial_delay() -> None:
    bench = Bench(delay_ms=100)
    assert bench.join("a") is None
    bench.after(99)
    assert bench.group.state is GroupState.PREPARING_REBALANCE
    bench.after(1)
    answer = bench.answers["a"]
    assert (answer.generation, answer.leader, answer.protocol_name) == (1, answer.member_id, "range")
    assert [member.member_id for member in answer.members] == [answer.member_id]
    assert bench.group.state is GroupState.COMPLETING_REBALANCE


def test_only_the_leader_is_told_who_the_members_are() -> None:
    bench = Bench()
    bench.join("a")
    bench.join("b")
    bench.after(200)
    assert len(bench.answers["a"].members) == 2
    assert bench.answers["b"].members == ()
    assert bench.answers["b"].leader == bench.answers["a"].member_id


def test_a_newcomer_extends_the_initial_delay() -> None:
    bench = Bench(delay_ms=100)
    bench.join("a")
    bench.after(60)
    bench.join("b")
    bench.after(60)
    assert bench.answers == {}
    bench.after(80)
    assert {answer.generation for answer in bench.answers.values()} == {1}


def test_the_initial_delay_ends_with_the_rebalance_timeout_however_many_come() -> None:
    bench = Bench(delay_ms=100)
    for name in "abcdefgh":
        bench.join(name, rebalance_timeout_ms=300)
        bench.after(50)
    assert isinstance(bench.answers["a"], JoinAnswer)


def test_from_version_4_a_new_member_must_come_back_with_the_id_it_is_given() -> None:
    bench = Bench()
    refused = bench.join("a", version=4)
    assert isinstance(refused, MemberIdRequiredError)
    assert refused.member_id == "app-id1"
    assert len(bench.group.roster) == 0
    bench.join("again", refused.member_id, version=4)
    bench.after(100)
    assert bench.answers["again"].member_id == refused.member_id


def test_a_member_id_is_never_longer_than_a_record_can_hold() -> None:
    refused = Bench().join("a", version=4, client_id="x" * 32_767)
    assert isinstance(refused, MemberIdRequiredError)
    assert len(refused.member_id) < 300


def test_an_id_that_is_not_used_within_a_session_is_forgotten() -> None:
    bench = Bench()
    refused = bench.join("a", version=4)
    bench.after(SESSION_MS)
    assert isinstance(bench.join("late", refused.member_id, version=4), UnknownMemberIdError)


def test_a_rebalance_waits_for_a_member_that_has_its_id_but_has_not_joined_yet() -> None:
    bench = Bench()
    ids = bench.stable("a")
    pending = bench.join("b", version=4).member_id
    bench.join("a-again", ids["a"])
    assert "a-again" not in bench.answers
    bench.join("b-again", pending, version=4)
    assert bench.answers["a-again"].generation == bench.answers["b-again"].generation == 2


def test_a_pending_member_that_never_comes_does_not_hold_up_the_rest() -> None:
    bench = Bench()
    ids = bench.stable("a")
    bench.join("b", version=4)
    bench.join("a-again", ids["a"])
    bench.after(SESSION_MS)
    assert bench.answers["a-again"].generation == 2


def test_an_unknown_member_id_is_refused() -> None:
    bench = Bench()
    bench.stable("a")
    assert isinstance(bench.join("x", "nobody"), UnknownMemberIdError)


def test_a_join_without_protocols_or_type_is_inconsistent() -> None:
    assert isinstance(Bench().join("a", protocols=()), InconsistentGroupProtocolError)
    assert isinstance(Bench().join("a", protocol_type=""), InconsistentGroupProtocolError)


def test_a_member_of_another_type_or_without_a_common_protocol_is_refused() -> None:
    bench = Bench()
    bench.stable("a")
    assert isinstance(bench.join("b", protocol_type="connect"), InconsistentGroupProtocolError)
    assert isinstance(bench.join("c", protocols=(("sticky", b""),)), InconsistentGroupProtocolError)


def test_an_empty_group_may_change_its_type() -> None:
    bench = Bench()
    ids = bench.stable("a")
    bench.take(bench.group.leave([Identity(ids["a"])], bench.now)[1])
    bench.join("b", protocol_type="connect", protocols=(("sessioned", b""),))
    bench.after(100)
    assert bench.answers["b"].protocol_type == "connect"


def test_the_protocol_with_most_votes_among_those_all_support_wins() -> None:
    bench = Bench()
    bench.join("a", protocols=(*RANGE, ("sticky", b"")))
    bench.join("b", protocols=BOTH)
    bench.join("c", protocols=(("own", b""), *BOTH))
    bench.after(300)
    assert bench.answers["a"].protocol_name == "sticky"


def test_a_new_member_makes_a_settled_group_rebalance() -> None:
    bench = Bench()
    ids = bench.stable("a")
    bench.join("b")
    assert bench.group.state is GroupState.PREPARING_REBALANCE
    bench.join("a-again", ids["a"])
    assert bench.answers["b"].generation == bench.answers["a-again"].generation == 2
    assert bench.answers["b"].leader == ids["a"]


def test_members_that_do_not_rejoin_within_the_rebalance_timeout_are_removed() -> None:
    bench = Bench()
    ids = bench.stable("a", "b", session_timeout_ms=REBALANCE_MS * 2)
    bench.join("a-again", ids["a"])
    bench.after(REBALANCE_MS - 1)
    assert "a-again" not in bench.answers
    bench.after(1)
    assert [member.member_id for member in bench.answers["a-again"].members] == [ids["a"]]


def test_a_leader_that_does_not_rejoin_is_replaced() -> None:
    bench = Bench()
    ids = bench.stable("a", "b", session_timeout_ms=REBALANCE_MS * 2)
    bench.join("b-again", ids["b"], protocols=BOTH)
    bench.after(REBALANCE_MS)
    assert bench.answers["b-again"].leader == ids["b"]


def test_a_follower_that_rejoins_unchanged_gets_the_current_generation() -> None:
    bench = Bench()
    ids = bench.stable("a", "b")
    answer = bench.join("b-again", ids["b"])
    assert (answer.generation, answer.members) == (1, ())
    assert bench.group.state is GroupState.STABLE


def test_a_follower_that_rejoins_changed_starts_a_rebalance() -> None:
    bench = Bench()
    ids = bench.stable("a", "b")
    assert bench.join("b-again", ids["b"], protocols=(("range", subscription("other")),)) is None
    assert bench.group.state is GroupState.PREPARING_REBALANCE


def test_a_leader_that_rejoins_starts_a_rebalance() -> None:
    bench = Bench()
    ids = bench.stable("a", "b")
    assert bench.join("a-again", ids["a"]) is None
    assert bench.group.state is GroupState.PREPARING_REBALANCE


def test_a_lost_join_answer_is_said_again_while_the_leader_assigns() -> None:
    bench = Bench()
    bench.join("a")
    bench.join("b")
    bench.after(200)
    leader, follower = bench.answers["a"].member_id, bench.answers["b"].member_id
    assert len(bench.join("a-again", leader).members) == 2
    assert bench.join("b-again", follower).members == ()
    assert bench.group.generation == 1


def test_a_second_join_of_a_waiting_member_takes_the_place_of_the_first() -> None:
    bench = Bench()
    pending = bench.join("first", version=4).member_id
    bench.join("a", pending, version=4)
    bench.join("a-retry", pending, version=4)
    assert isinstance(bench.answers["a"], RebalanceInProgressError)
    bench.after(200)
    assert bench.answers["a-retry"].member_id == pending


def test_a_full_group_refuses_newcomers_but_not_its_members() -> None:
    bench = Bench(members_max=2)
    ids = bench.stable("a", "b")
    assert isinstance(bench.join("c"), GroupFullError)
    assert bench.join("b-again", ids["b"]).generation == 1


def test_while_members_gather_only_as_many_as_may_be_are_let_in() -> None:
    bench = Bench(members_max=1)
    bench.join("a")
    assert isinstance(bench.join("b"), GroupFullError)


def test_the_last_to_rejoin_a_group_that_became_too_large_goes() -> None:
    bench = Bench()
    ids = bench.stable("a", "b")
    bench.group._settings = Bench(members_max=1).settings
    bench.join("a-again", ids["a"])
    assert isinstance(bench.join("b-again", ids["b"]), GroupFullError)
    assert len(bench.answers["a-again"].members) == 1


def test_a_new_member_whose_client_gave_up_does_not_wait_for_ever() -> None:
    bench = Bench(new_member_join_timeout_ms=1_000)
    ids = bench.stable("a", session_timeout_ms=REBALANCE_MS * 2, rebalance_timeout_ms=REBALANCE_MS)
    bench.join("b")
    bench.after(1_000)
    assert isinstance(bench.answers["b"], UnknownMemberIdError)
    assert list(bench.group.roster.members) == [ids["a"]]


def test_a_group_being_deleted_asks_newcomers_to_try_again() -> None:
    bench = Bench()
    bench.group.begin_deletion(bench.now)
    assert isinstance(bench.join("a"), CoordinatorNotAvailableError)


# --- static members ---------------------------------------------------------------------------------------


def test_a_static_member_comes_back_without_a_rebalance_and_keeps_its_assignment() -> None:
    bench = Bench()
    ids = bench.stable("a", "static-b")
    answer = bench.join("back", instance_id="static-b")
    assert (answer.generation, answer.skip_assignment) == (1, False)
    assert answer.member_id != ids["static-b"]
    assert bench.group.state is GroupState.STABLE
    assert bench.sync("back-sync", answer.member_id, instance_id="static-b").assignment == b"static-b"


def test_the_return_of_a_static_member_is_answered_once_it_is_written() -> None:
    bench = Bench()
    bench.stable("a", "static-b")
    bench._save_at_once = False
    assert bench.join("back", instance_id="static-b") is None
    bench.finish_save()
    new_id = bench.answers["back"].member_id
    assert {m.member_id: m.assignment for m in bench.last_saved().members}[new_id] == b"static-b"


def test_a_static_return_that_could_not_be_written_is_undone() -> None:
    bench = Bench()
    ids = bench.stable("a", "static-b")
    bench._save_at_once = False
    bench.join("back", instance_id="static-b", protocols=BOTH, session_timeout_ms=7_000)
    bench.finish_save(CoordinatorNotAvailableError("full"))
    assert isinstance(bench.answers["back"], CoordinatorNotAvailableError)
    bench.heartbeat(ids["static-b"], instance_id="static-b")
    assert bench.group.roster.members[ids["static-b"]].protocols == RANGE


def test_the_old_process_of_a_static_member_is_fenced() -> None:
    bench = Bench()
    ids = bench.stable("a", "static-b")
    bench.join("back", instance_id="static-b")
    assert isinstance(bench.join("old", ids["static-b"], instance_id="static-b"), FencedInstanceError)
    assert isinstance(bench.sync("old-s", ids["static-b"], instance_id="static-b"), FencedInstanceError)


def test_an_old_process_that_waits_in_a_join_is_fenced_at_once() -> None:
    bench = Bench()
    bench.join("old", instance_id="static-a")
    bench.join("new", instance_id="static-a")
    assert isinstance(bench.answers["old"], FencedInstanceError)
    bench.after(200)
    assert bench.answers["new"].generation == 1


def test_a_static_leader_stays_leader_and_may_skip_the_assignment_from_version_9() -> None:
    bench = Bench()
    bench.stable("static-a", "b")
    answer = bench.join("back", instance_id="static-a", version=9)
    assert answer.leader == answer.member_id
    assert answer.skip_assignment
    assert len(answer.members) == 2


def test_an_older_static_leader_is_not_told_that_it_leads_so_that_it_does_not_assign() -> None:
    bench = Bench()
    ids = bench.stable("static-a", "b")
    answer = bench.join("back", instance_id="static-a", version=8)
    assert (answer.leader, answer.members, answer.skip_assignment) == (ids["static-a"], (), False)
    assert bench.group.is_leader(answer.member_id)


def test_a_static_member_whose_return_changes_the_protocol_makes_the_group_rebalance() -> None:
    bench = Bench()
    bench.stable("static-a", protocols=(*RANGE, ("sticky", b"")))
    bench.join("back", instance_id="static-a", protocols=BOTH)
    assert bench.answers["back"].generation == 2
    assert bench.answers["back"].protocol_name == "sticky"


def test_a_static_return_while_the_leader_assigns_makes_the_group_rebalance() -> None:
    bench = Bench()
    bench.join("a", instance_id="static-a")
    bench.join("b")
    bench.after(200)
    bench.sync("b-sync", bench.answers["b"].member_id)
    bench.join("back", instance_id="static-a")
    assert isinstance(bench.answers["b-sync"], RebalanceInProgressError)
    assert bench.group.state is GroupState.PREPARING_REBALANCE


def test_a_static_return_overtaken_by_a_rebalance_is_answered_by_it() -> None:
    bench = Bench()
    ids = bench.stable("a", "static-b")
    bench._save_at_once = False
    bench.join("back", instance_id="static-b")
    bench.join("a-again", ids["a"])
    bench.finish_save(CoordinatorNotAvailableError("full"))
    assert bench.answers["back"].generation == bench.answers["a-again"].generation == 2


def test_a_static_member_takes_its_own_place_in_a_full_group() -> None:
    bench = Bench(members_max=2)
    bench.stable("a", "static-b")
    assert bench.join("back", instance_id="static-b").generation == 1


def test_an_absent_static_member_is_kept_through_a_rebalance_until_it_misses_the_sync() -> None:
    bench = Bench()
    ids = bench.stable("a", "static-b", session_timeout_ms=REBALANCE_MS * 3)
    bench.join("a-again", ids["a"], session_timeout_ms=REBALANCE_MS * 3)
    bench.after(REBALANCE_MS)
    assert len(bench.answers["a-again"].members) == 2
    bench.sync("a-s", ids["a"])
    bench.after(REBALANCE_MS)
    assert list(bench.group.roster.members) == [ids["a"]]


def test_a_rebalance_that_nobody_joined_waits_for_the_sessions_of_static_members() -> None:
    bench = Bench()
    ids = bench.stable("a", "static-b", session_timeout_ms=REBALANCE_MS * 3)
    bench.take(bench.group.leave([Identity(ids["a"])], bench.now)[1])
    bench.after(REBALANCE_MS)
    assert bench.group.state is GroupState.PREPARING_REBALANCE
    bench.after(REBALANCE_MS * 3)
    assert bench.group.state is GroupState.EMPTY


def test_a_pending_member_cannot_turn_static() -> None:
    bench = Bench()
    pending = bench.join("a", version=4).member_id
    assert isinstance(bench.join("b", pending, instance_id="static-a"), UnknownMemberIdError)
