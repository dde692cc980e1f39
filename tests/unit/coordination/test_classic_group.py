"""Sync, heartbeat, leave, sessions, commits: a group after its members have joined."""

from typing import Any

import pytest

from anabranch.coordination.groups.classic_group import ClassicGroup
from anabranch.coordination.groups.group_base import GroupState
from anabranch.coordination.groups.group_memory import MEMBER_BYTES, PROTOCOL_BYTES, GroupMemory
from anabranch.coordination.groups.messages import Identity, Now
from anabranch.coordination.groups.roster import size_of
from anabranch.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceError,
    GroupFullError,
    GroupIdNotFoundError,
    GroupNotEmptyError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from support.group_bench import RANGE, REBALANCE_MS, SESSION_MS, WALL_MS, Bench, subscription


def completing(*names: str) -> tuple[Bench, dict[str, str]]:
    bench = Bench(saves=False)
    for name in names:
        bench.join(name)
    bench.after(100 * (len(names) + 1))
    return bench, {name: bench.answers[name].member_id for name in names}


def leave(bench: Bench, *identities: Identity) -> list[type[Exception] | None]:
    outcomes, effects = bench.group.leave(list(identities), bench.now)
    bench.take(effects)
    return [None if outcome.error is None else type(outcome.error) for outcome in outcomes]


# --- sync -------------------------------------------------------------------------------------------------


def test_followers_wait_for_the_leaders_assignment() -> None:
    bench, ids = completing("a", "b")
    assert bench.sync("b-sync", ids["b"]) is None
    bench.sync("a-sync", ids["a"], assignments=((ids["a"], b"0"), (ids["b"], b"1")))
    bench.finish_save()
    assert (bench.answers["a-sync"].assignment, bench.answers["b-sync"].assignment) == (b"0", b"1")
    assert bench.group.state is GroupState.STABLE


def test_nobody_gets_an_assignment_before_the_log_has_it() -> None:
    bench, ids = completing("a")
    assert bench.sync("a-sync", ids["a"], assignments=((ids["a"], b"0"),)) is None
    assert bench.group.state is GroupState.COMPLETING_REBALANCE
    assert bench.last_saved().members[0].assignment == b"0"
    bench.finish_save()
    assert bench.answers["a-sync"].assignment == b"0"


def test_an_assignment_that_could_not_be_written_ends_in_another_rebalance() -> None:
    bench, ids = completing("a", "b")
    bench.sync("b-sync", ids["b"])
    bench.sync("a-sync", ids["a"], assignments=((ids["b"], b"1"),))
    bench.finish_save(CoordinatorNotAvailableError("full"))
    assert isinstance(bench.answers["a-sync"], CoordinatorNotAvailableError)
    assert isinstance(bench.answers["b-sync"], CoordinatorNotAvailableError)
    assert bench.group.state is GroupState.PREPARING_REBALANCE


def test_an_assignment_written_too_late_is_nobodys() -> None:
    bench, ids = completing("a", "b")
    bench.sync("a-sync", ids["a"], assignments=((ids["a"], b"0"),))
    bench.join("c")
    assert isinstance(bench.answers["a-sync"], RebalanceInProgressError)
    bench.finish_save()
    assert bench.group.state is GroupState.PREPARING_REBALANCE


def test_of_two_assignments_for_one_generation_the_first_counts() -> None:
    bench, ids = completing("a")
    bench.sync("a-sync", ids["a"], assignments=((ids["a"], b"first"),))
    bench.sync("a-retry", ids["a"], assignments=((ids["a"], b"second"),))
    assert len(bench.saves) == 1
    bench.finish_save()
    assert isinstance(bench.answers["a-sync"], RebalanceInProgressError)
    assert bench.answers["a-retry"].assignment == b"first"


def test_a_member_the_leader_forgot_gets_an_empty_assignment() -> None:
    bench, ids = completing("a", "b")
    bench.sync("b-sync", ids["b"])
    bench.sync("a-sync", ids["a"], assignments=((ids["a"], b"0"), ("stranger", b"9")))
    bench.finish_save()
    assert bench.answers["b-sync"].assignment == b""
    assert {m.member_id for m in bench.last_saved().members} == set(ids.values())


def test_in_a_settled_group_sync_says_the_assignment_again() -> None:
    bench = Bench()
    ids = bench.stable("a", "b")
    assert bench.sync("again", ids["b"]).assignment == b"b"


def test_sync_is_refused_while_members_gather() -> None:
    bench = Bench()
    ids = bench.stable("a")
    bench.join("b")
    assert isinstance(bench.sync("late", ids["a"]), RebalanceInProgressError)


def test_sync_checks_member_and_generation() -> None:
    bench, ids = completing("a")
    assert isinstance(bench.sync("1", "nobody"), UnknownMemberIdError)
    assert isinstance(bench.sync("2", ids["a"], 0), IllegalGenerationError)
    assert isinstance(bench.sync("3", ids["a"], 2), IllegalGenerationError)


@pytest.mark.parametrize("wrong", [{"protocol_type": "connect"}, {"protocol_name": "sticky"}])
def test_sync_checks_type_and_name_of_the_protocol(wrong: dict[str, str]) -> None:
    bench, ids = completing("a")
    assert isinstance(bench.sync("1", ids["a"], **wrong), InconsistentGroupProtocolError)
    assert bench.sync("2", ids["a"], protocol_type="consumer", protocol_name="range") is None


def test_members_that_do_not_sync_within_the_rebalance_timeout_are_removed() -> None:
    bench, ids = completing("a", "b")
    bench.sync("a-sync", ids["a"])
    bench.finish_save()
    for _ in range(REBALANCE_MS // 5_000):
        bench.after(5_000)
        for member_id in list(bench.group.roster.members):
            with_rebalance = bench.group.state is GroupState.PREPARING_REBALANCE
            if not with_rebalance:
                bench.heartbeat(member_id)
    assert list(bench.group.roster.members) == [ids["a"]]
    assert bench.group.state is GroupState.PREPARING_REBALANCE


def test_a_group_in_which_nobody_syncs_becomes_empty() -> None:
    bench, _ = completing("a")
    bench.after(REBALANCE_MS)
    assert bench.group.state is GroupState.EMPTY


# --- heartbeats and sessions ------------------------------------------------------------------------------


def test_a_member_without_heartbeats_is_removed_after_its_session() -> None:
    bench = Bench()
    ids = bench.stable("a", "b")
    bench.after(SESSION_MS - 1)
    bench.heartbeat(ids["a"])
    bench.after(1)
    assert list(bench.group.roster.members) == [ids["a"]]
    with pytest.raises(RebalanceInProgressError):
        bench.heartbeat(ids["a"])


def test_heartbeats_keep_a_member() -> None:
    bench = Bench()
    ids = bench.stable("a")
    for _ in range(10):
        bench.after(SESSION_MS - 1)
        bench.heartbeat(ids["a"])
    assert bench.group.state is GroupState.STABLE


def test_a_heartbeat_during_a_rebalance_keeps_the_member_and_tells_it_to_rejoin() -> None:
    bench = Bench()
    ids = bench.stable("a")
    bench.join("b")
    for _ in range(3):
        bench.after(SESSION_MS - 1)
        with pytest.raises(RebalanceInProgressError):
            bench.heartbeat(ids["a"])
    assert ids["a"] in bench.group.roster.members


def test_a_heartbeat_is_fine_while_the_leader_assigns() -> None:
    bench, ids = completing("a")
    bench.heartbeat(ids["a"])


def test_a_heartbeat_checks_member_instance_and_generation() -> None:
    bench = Bench()
    ids = bench.stable("static-a")
    with pytest.raises(UnknownMemberIdError):
        bench.heartbeat("nobody")
    with pytest.raises(IllegalGenerationError):
        bench.heartbeat(ids["static-a"], 7)
    with pytest.raises(FencedInstanceError):
        bench.heartbeat("other", instance_id="static-a")
    with pytest.raises(UnknownMemberIdError):
        bench.heartbeat(ids["static-a"], instance_id="static-x")


def test_asking_where_a_member_stands_is_its_heartbeat() -> None:
    bench = Bench()
    ids = bench.stable("a", "b")
    for _ in range(3):
        bench.after(SESSION_MS - 1)
        bench.heartbeat(ids["b"])
        standing = bench.group.standing(ids["a"], bench.now)
    assert (standing.is_stable, standing.is_leader, standing.generation) == (True, True, 1)
    assert (standing.assignment, standing.session_timeout_ms) == (b"a", SESSION_MS)


def test_where_a_member_stands_shows_its_assignment_until_the_next_generation() -> None:
    bench = Bench()
    ids = bench.stable("a")
    bench.join("b")
    standing = bench.group.standing(ids["a"], bench.now)
    assert (standing.is_stable, standing.generation, standing.assignment) == (False, 1, b"a")
    bench.group.check_commit(ids["a"], None, standing.generation, bench.now)
    bench.join("a-again", ids["a"])
    standing = bench.group.standing(ids["a"], bench.now)
    assert (standing.is_stable, standing.generation, standing.assignment) == (False, 2, b"")
    assert standing.metadata == subscription("orders")
    with pytest.raises(UnknownMemberIdError):
        bench.group.standing("nobody", bench.now)


def test_a_member_does_not_expire_while_it_waits_in_a_rejoin() -> None:
    bench = Bench()
    ids = bench.stable("a", "b", rebalance_timeout_ms=SESSION_MS * 5)
    bench.join("a-again", ids["a"])
    for _ in range(4):
        bench.after(SESSION_MS - 1)
        with pytest.raises(RebalanceInProgressError):
            bench.heartbeat(ids["b"])
    assert ids["a"] in bench.group.roster.members


def test_a_member_does_not_expire_while_it_waits_for_the_leader_and_then_gets_a_whole_session() -> None:
    bench, ids = completing("a", "b")
    bench.sync("b-sync", ids["b"])
    bench.after(SESSION_MS - 1_000)
    bench.heartbeat(ids["a"])
    bench.after(SESSION_MS - 1)
    bench.sync("a-sync", ids["a"], assignments=((ids["b"], b"1"),))
    bench.finish_save()
    assert bench.answers["b-sync"].assignment == b"1"
    bench.after(SESSION_MS - 1)
    assert ids["b"] in bench.group.roster.members
    bench.after(1)
    assert ids["b"] not in bench.group.roster.members


def test_when_the_last_member_expires_the_empty_group_is_written() -> None:
    bench = Bench()
    bench.stable("a")
    bench.after(SESSION_MS)
    assert bench.group.state is GroupState.EMPTY
    saved = bench.last_saved()
    assert (saved.generation, saved.members, saved.protocol_type, saved.protocol_name) == (
        2,
        (),
        "consumer",
        None,
    )


def test_a_rebalance_ends_as_soon_as_the_last_missing_member_expires() -> None:
    bench = Bench()
    ids = bench.stable("a", "b")
    bench.join("a-again", ids["a"])
    bench.after(SESSION_MS)
    assert len(bench.answers["a-again"].members) == 1


# --- leave ------------------------------------------------------------------------------------------------


def test_a_member_that_leaves_makes_the_rest_rebalance() -> None:
    bench = Bench()
    ids = bench.stable("a", "b")
    assert leave(bench, Identity(ids["a"])) == [None]
    assert bench.group.is_leader(ids["b"])
    assert bench.group.state is GroupState.PREPARING_REBALANCE


def test_the_last_to_leave_leaves_an_empty_group() -> None:
    bench = Bench()
    ids = bench.stable("a")
    leave(bench, Identity(ids["a"]))
    assert bench.group.state is GroupState.EMPTY
    assert bench.last_saved().members == ()


def test_each_of_many_that_leave_has_its_own_outcome() -> None:
    bench = Bench()
    ids = bench.stable("a", "static-b", "static-c")
    outcomes = leave(
        bench,
        Identity(ids["a"]),
        Identity("", "static-b"),
        Identity("wrong", "static-c"),
        Identity("nobody"),
        Identity("", "static-x"),
        Identity(ids["a"]),
        Identity(""),
    )
    assert outcomes == [
        None,
        None,
        FencedInstanceError,
        UnknownMemberIdError,
        UnknownMemberIdError,
        UnknownMemberIdError,
        UnknownMemberIdError,
    ]
    assert list(bench.group.roster.members) == [ids["static-c"]]


def test_who_leaves_while_it_waits_is_answered() -> None:
    bench, ids = completing("a", "b")
    bench.sync("b-sync", ids["b"])
    leave(bench, Identity(ids["b"]))
    assert isinstance(bench.answers["b-sync"], UnknownMemberIdError)


def test_a_pending_member_can_leave() -> None:
    bench = Bench()
    pending = bench.join("a", version=4).member_id
    assert leave(bench, Identity(pending)) == [None]
    assert bench.group.is_forgettable()


# --- commits ----------------------------------------------------------------------------------------------


def commit(bench: Bench, member_id: str, generation: int, instance_id: str | None = None) -> None:
    bench.group.check_commit(member_id, instance_id, generation, bench.now)


def test_without_members_anybody_may_commit_without_a_generation() -> None:
    commit(Bench(), "", -1)


def test_with_members_only_they_may_commit() -> None:
    bench = Bench()
    ids = bench.stable("static-a")
    commit(bench, ids["static-a"], 1)
    with pytest.raises(UnknownMemberIdError):
        commit(bench, "", -1)
    with pytest.raises(UnknownMemberIdError):
        commit(bench, "nobody", 1)
    with pytest.raises(IllegalGenerationError):
        commit(bench, ids["static-a"], 0)
    with pytest.raises(IllegalGenerationError):
        commit(bench, ids["static-a"], -1)
    with pytest.raises(FencedInstanceError):
        commit(bench, "old", 1, "static-a")


def test_a_member_of_an_empty_group_cannot_commit_with_a_generation() -> None:
    with pytest.raises(UnknownMemberIdError):
        commit(Bench(), "gone", 1)


def test_a_commit_is_possible_while_members_gather_but_not_while_the_leader_assigns() -> None:
    bench = Bench()
    ids = bench.stable("a")
    bench.join("b")
    commit(bench, ids["a"], 1)
    bench.join("a-again", ids["a"])
    with pytest.raises(RebalanceInProgressError):
        commit(bench, ids["a"], 2)


def test_a_commit_keeps_the_session() -> None:
    bench = Bench()
    ids = bench.stable("a")
    bench.after(SESSION_MS - 1)
    commit(bench, ids["a"], 1)
    bench.after(SESSION_MS - 1)
    assert bench.group.state is GroupState.STABLE


# --- topics, deletion, description ------------------------------------------------------------------------


def test_the_topics_of_all_members_are_known_and_none_once_they_are_gone() -> None:
    bench = Bench()
    ids = bench.stable("a", protocols=(("range", subscription("orders", "bills")),))
    assert bench.group.is_subscribed_to("bills")
    assert not bench.group.is_subscribed_to("other")
    leave(bench, Identity(ids["a"]))
    assert not bench.group.is_subscribed_to("bills")


def test_a_consumer_group_with_unreadable_metadata_counts_as_subscribed_to_everything() -> None:
    bench = Bench()
    bench.stable("a", protocols=(("range", b"?"),))
    assert bench.group.is_subscribed_to("anything")


def test_a_group_with_members_cannot_be_deleted() -> None:
    bench = Bench()
    bench.stable("a")
    with pytest.raises(GroupNotEmptyError):
        bench.group.begin_deletion(bench.now)


def test_a_group_is_deleted_once() -> None:
    bench = Bench()
    bench.group.begin_deletion(bench.now)
    with pytest.raises(GroupIdNotFoundError):
        bench.group.begin_deletion(bench.now)
    bench.group.cancel_deletion()
    assert bench.group.state is GroupState.EMPTY


def test_offsets_of_a_group_that_is_no_consumer_group_can_only_be_deleted_when_it_is_empty() -> None:
    bench = Bench()
    bench.group.check_offset_deletion()
    bench.stable("a", protocol_type="connect")
    with pytest.raises(GroupNotEmptyError):
        bench.group.check_offset_deletion()


def test_metadata_is_described_only_in_a_settled_group() -> None:
    bench = Bench()
    ids = bench.stable("a")
    described = bench.group.described()
    assert (described.state, described.protocol_name) == ("Stable", "range")
    assert (described.members[0].metadata, described.members[0].assignment) == (subscription("orders"), b"a")
    bench.join("b")
    described = bench.group.described()
    assert (described.state, described.protocol_name, described.members[0].metadata) == (
        "PreparingRebalance",
        "",
        b"",
    )
    assert described.members[0].member_id == ids["a"]


# --- restart ----------------------------------------------------------------------------------------------


def restarted(bench: Bench, now: Now) -> Bench:
    other = Bench()
    other.now = now
    other.group = ClassicGroup("g", other.settings, lambda: "new", now, other.memory)
    other.group.restore(bench.last_saved())
    other.take(other.group.resume(now))
    return other


def test_a_settled_group_goes_on_after_a_restart_without_a_rebalance() -> None:
    bench = Bench()
    ids = bench.stable("a", "static-b")
    after = restarted(bench, Now(500_000, WALL_MS))
    after.heartbeat(ids["a"], 1)
    assert after.sync("s", ids["static-b"], 1, instance_id="static-b").assignment == b"static-b"
    assert after.join("back", instance_id="static-b", version=9).generation == 1
    assert after.group.is_leader(ids["a"])
    assert after.group.described().state == "Stable"


def test_after_a_restart_everybody_has_a_whole_session() -> None:
    bench = Bench()
    bench.stable("a")
    after = restarted(bench, Now(500_000, WALL_MS))
    after.after(SESSION_MS - 1)
    assert len(after.group.roster) == 1
    after.after(1)
    assert after.group.state is GroupState.EMPTY


def test_an_empty_group_keeps_its_generation_over_a_restart() -> None:
    bench = Bench()
    ids = bench.stable("a")
    leave(bench, Identity(ids["a"]))
    after = restarted(bench, Now(500_000, WALL_MS))
    after.join("b")
    after.after(100)
    assert after.answers["b"].generation == 3


def test_a_restart_with_a_lower_limit_makes_a_group_that_is_too_large_rebalance() -> None:
    bench = Bench()
    bench.stable("a", "b")
    now = Now(0, WALL_MS)
    group = ClassicGroup("g", Bench(members_max=1).settings, lambda: "new", now, GroupMemory(2**20))
    group.restore(bench.last_saved())
    group.resume(now)
    assert group.state is GroupState.PREPARING_REBALANCE


def test_a_stopping_node_answers_everybody_who_waits() -> None:
    bench = Bench()
    bench.join("a")
    bench.take(bench.group.release_all(CoordinatorNotAvailableError("stop")))
    assert isinstance(bench.answers["a"], CoordinatorNotAvailableError)


# --- memory --------------------------------------------------------------------------------------------------


NAMES_BYTES = len("app-id1") + len("app") + len("/127.0.0.1")
"""The ids of a member, and its host."""


def with_metadata(size: int) -> dict[str, Any]:
    return {"protocols": (("range", bytes(size)),)}


def test_member_that_brings_too_much_is_refused_and_leaves_nothing() -> None:
    bench = Bench(memory_bytes_max=2**20)
    assert isinstance(bench.join("large", **with_metadata(2**19)), GroupFullError)
    assert (bench.memory.bytes_taken, len(bench.group.roster)) == (0, 0)
    bench.join("small", **with_metadata(1000))
    assert bench.memory.bytes_taken == MEMBER_BYTES + NAMES_BYTES + PROTOCOL_BYTES + len("range") + 1000


def test_one_host_gets_half_of_the_memory_for_members() -> None:
    bench = Bench(memory_bytes_max=2**20)
    assert bench.join("first", **with_metadata(300_000)) is None
    assert isinstance(bench.join("second", **with_metadata(300_000)), GroupFullError)
    assert bench.join("elsewhere", client_host="/10.0.0.1", **with_metadata(300_000)) is None


def test_memory_of_members_is_given_back_when_they_leave() -> None:
    bench = Bench()
    ids = bench.stable("a", "b")
    one = MEMBER_BYTES + NAMES_BYTES + size_of(RANGE)
    assert bench.memory.bytes_taken == 2 * one + len(b"a") + len(b"b")
    bench.group.leave([Identity(ids["a"])], bench.now)
    assert bench.memory.bytes_taken == one + len(b"b")
    bench.after(SESSION_MS + REBALANCE_MS)
    assert bench.memory.bytes_taken == 0


def test_member_that_joins_again_takes_its_own_place() -> None:
    bench = Bench(memory_bytes_max=2**20)
    bench.join("a", **with_metadata(400_000))
    bench.after(bench.settings.initial_rebalance_delay_ms * 2)
    member_id = bench.answers["a"].member_id
    assert not isinstance(bench.join("again", member_id, **with_metadata(400_001)), GroupFullError)
    assert bench.memory.bytes_taken == MEMBER_BYTES + NAMES_BYTES + PROTOCOL_BYTES + len("range") + 400_001


def test_ids_that_nobody_joins_with_count_until_they_expire() -> None:
    bench = Bench(memory_bytes_max=2**20)
    refused = 0
    for number in range(1000):
        answer = bench.join(f"w{number}", version=4)
        refused += isinstance(answer, GroupFullError)
    assert refused > 0
    assert bench.memory.bytes_taken <= 2**19
    bench.after(SESSION_MS)
    assert bench.memory.bytes_taken == 0


def test_assignment_that_does_not_fit_is_refused() -> None:
    bench = Bench(memory_bytes_max=2**20)
    bench.join("a")
    bench.after(bench.settings.initial_rebalance_delay_ms * 2)
    member_id = bench.answers["a"].member_id
    assert isinstance(bench.sync("s", member_id, assignments=((member_id, bytes(2**20)),)), GroupFullError)
    assert bench.sync("again", member_id, assignments=((member_id, bytes(100)),)) is not None
    assert bench.memory.bytes_taken == MEMBER_BYTES + NAMES_BYTES + size_of(RANGE) + 100


def test_member_with_thousands_of_empty_protocols_is_refused() -> None:
    bench = Bench(memory_bytes_max=2**20)
    assert isinstance(bench.join("many", protocols=(("p", b""),) * 10_000), GroupFullError)
    assert bench.memory.bytes_taken == 0


def test_long_names_count_as_memory_of_a_member() -> None:
    bench = Bench(memory_bytes_max=2**20)
    answers = [bench.join(f"w{number}", client_id="c" * 30_000) for number in range(30)]
    assert any(isinstance(answer, GroupFullError) for answer in answers)
    assert bench.memory.bytes_taken <= 2**19


def test_leader_whose_assignment_is_refused_is_still_awaited() -> None:
    bench = Bench(memory_bytes_max=2**20)
    bench.join("a")
    bench.after(bench.settings.initial_rebalance_delay_ms * 2)
    member_id = bench.answers["a"].member_id
    bench.sync("s", member_id, assignments=((member_id, bytes(2**20)),))
    bench.after(REBALANCE_MS)
    assert member_id not in bench.group.roster.members, "it was dropped when its time to sync was over"


def test_assignments_take_the_place_of_those_of_the_last_generation() -> None:
    bench = Bench(memory_bytes_max=2**20)
    bench.join("a")
    for turn in range(3):
        bench.after(bench.settings.initial_rebalance_delay_ms * 2)
        member_id = bench.answers["a" if not turn else f"a{turn}"].member_id
        given = ((member_id, bytes(400_000)),)
        assert not isinstance(bench.sync(f"s{turn}", member_id, assignments=given), GroupFullError)
        bench.join(f"a{turn + 1}", member_id)


def test_follower_of_a_host_that_has_all_its_memory_gets_its_assignment() -> None:
    bench = Bench(memory_bytes_max=2**20)
    ids = bench.stable("a", "b")
    bench.memory.add("/127.0.0.1", 2**19)
    follower = next(member_id for member_id in ids.values() if member_id != bench.group.roster.leader)
    assert not isinstance(bench.sync("again", follower), GroupFullError)
