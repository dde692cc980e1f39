"""The Raft core, one rule at a time; what needs thousands of steps is in tests/simulation/test_quorum_by_seed.py."""

import pytest

from anabranch.cluster.raft.leader_progress import BYTES_PER_MESSAGE_MAX
from anabranch.cluster.raft.log import QuorumLog
from anabranch.cluster.raft.messages import (
    AppendAnswer,
    AppendEntries,
    AskVote,
    Beat,
    BeatAnswer,
    Entry,
    EntryKind,
    GiveVote,
    Member,
    Members,
    SendSnapshot,
    Snapshot,
    TakeOver,
)
from anabranch.cluster.raft.quorum import BEAT_MS, ELECTION_MS, Quorum, Ready, Role
from anabranch.errors import NotControllerError, QuorumBusyError

A, B, C, D = (Member(number, f"disk-{number}") for number in range(1, 5))
THREE = Members(frozenset({A, B, C}))


def change(term: int, data: bytes = b"") -> Entry:
    return Entry(term, EntryKind.CHANGE, data)


def member(
    me: Member = A, entries: list[Entry] | None = None, *, members: Members = THREE, term: int = 0
) -> Quorum:
    return Quorum(me, QuorumLog(Snapshot(0, 0, members), entries or []), lambda _: 0, term=term)


def done(quorum: Quorum) -> Ready:
    """Carry out what is to be done, on a disk that never fails."""
    ready = quorum.ready()
    quorum.persisted(ready.token)
    return ready


def leader(entries: list[Entry] | None = None, *, term: int = 0) -> Quorum:
    """A, elected by B."""
    quorum = member(A, entries, term=term)
    quorum.tick(ELECTION_MS)
    done(quorum)
    quorum.step(GiveVote(B, A, quorum.term + 1, is_trial=True, is_given=True))
    done(quorum)
    quorum.step(GiveVote(B, A, quorum.term, is_trial=False, is_given=True))
    assert quorum.role is Role.LEADER
    return quorum


def settled_leader() -> Quorum:
    """One whose first entry is committed."""
    quorum = leader()
    done(quorum)
    quorum.step(AppendAnswer(B, A, quorum.term, is_taken=True, end=1))
    done(quorum)
    return quorum


# --- elections


def test_a_sole_voter_leads_at_once_and_commits_what_is_on_its_disk() -> None:
    quorum = member(members=Members(frozenset({A})))
    assert quorum.role is Role.LEADER
    quorum.propose([b"x"])
    ready = quorum.ready()
    assert quorum.take_committed() == []
    quorum.persisted(ready.token)
    assert [entry.data for _, entry in quorum.take_committed()] == [b"", b"x"]


def test_a_trial_changes_nobodys_term() -> None:
    quorum = member()
    quorum.tick(ELECTION_MS)
    asked = done(quorum)
    assert (quorum.role, quorum.term, asked.vote) == (Role.TRIAL, 0, None)
    assert [(ask.receiver, ask.term, ask.is_trial) for ask in asked.after] == [(B, 1, True), (C, 1, True)]


def test_a_vote_leaves_only_after_it_is_written() -> None:
    quorum = member(B)
    quorum.step(AskVote(A, B, 1, 0, 0, is_trial=False))
    ready = quorum.ready()
    assert ready.now == []
    assert ready.vote == (1, A)
    assert ready.after == [GiveVote(B, A, 1, is_trial=False, is_given=True)]


def test_a_term_has_one_vote() -> None:
    quorum = member(B)
    quorum.step(AskVote(A, B, 1, 0, 0, is_trial=False))
    quorum.step(AskVote(C, B, 1, 0, 0, is_trial=False))
    assert [answer.is_given for answer in done(quorum).after] == [True, False]


def test_a_vote_is_remembered_over_a_restart() -> None:
    quorum = Quorum(B, QuorumLog(Snapshot(0, 0, THREE)), lambda _: 0, term=1, vote=A)
    quorum.step(AskVote(C, B, 1, 0, 0, is_trial=False))
    assert [answer.is_given for answer in done(quorum).after] == [False]


@pytest.mark.parametrize(
    ("log_term", "log_end", "is_given"), [(1, 9, False), (2, 1, False), (2, 2, True), (3, 1, True)]
)
def test_nobody_votes_for_a_log_that_lacks_something(log_term: int, log_end: int, is_given: bool) -> None:
    quorum = member(B, [change(1), change(2)], term=2)
    quorum.step(AskVote(A, B, 3, log_end, log_term, is_trial=False))
    assert [answer.is_given for answer in done(quorum).after] == [is_given]


def test_whoever_has_heard_a_leader_lately_helps_nobody_else() -> None:
    quorum = member(B)
    quorum.step(Beat(A, B, 1, 0, 0))
    done(quorum)
    quorum.tick(ELECTION_MS - 1)
    quorum.step(AskVote(C, B, 2, 0, 0, is_trial=False))
    assert (quorum.term, done(quorum).after) == (1, [])


def test_a_leader_that_no_majority_answers_steps_down() -> None:
    quorum = leader()
    quorum.tick(2 * ELECTION_MS)
    assert quorum.role is Role.FOLLOWER
    with pytest.raises(NotControllerError):
        quorum.propose([b"x"])


def test_a_leader_that_is_answered_stays() -> None:
    quorum = leader()
    done(quorum)
    quorum.step(BeatAnswer(C, A, quorum.term, 0))
    quorum.tick(2 * ELECTION_MS)
    assert quorum.role is Role.LEADER


def test_a_learner_never_stands() -> None:
    quorum = member(D, members=Members(THREE.voters, frozenset({D})))
    quorum.tick(10 * ELECTION_MS)
    assert (quorum.role, quorum.has_ready()) == (Role.FOLLOWER, False)


# --- entries


def test_a_change_is_committed_once_a_majority_has_it_on_disk() -> None:
    quorum = settled_leader()
    start = quorum.propose([b"x"])
    ready = quorum.ready()
    quorum.step(AppendAnswer(B, A, quorum.term, is_taken=True, end=start + 1))
    assert quorum.commit_end == start, "its own disk does not have it yet"
    quorum.persisted(ready.token)
    assert quorum.commit_end == start + 1


def test_entries_of_an_older_term_are_committed_only_with_one_of_the_own() -> None:
    """Raft's figure 8: a majority that has an old entry can still lose it to another leader."""
    quorum = leader([change(1), change(2)], term=2)
    done(quorum)
    quorum.step(AppendAnswer(B, A, quorum.term, is_taken=True, end=2))
    assert quorum.commit_end == 0
    quorum.step(AppendAnswer(B, A, quorum.term, is_taken=True, end=3))
    assert quorum.commit_end == 3


def test_a_follower_answers_only_after_it_has_written() -> None:
    quorum = member(B)
    quorum.step(AppendEntries(A, B, 1, 0, 0, [change(1)], 0))
    ready = quorum.ready()
    assert ready.now == []
    assert ready.entries == (0, [change(1)])
    assert AppendAnswer(B, A, 1, is_taken=True, end=1) in ready.after


def test_what_disagrees_is_cut_off_and_replaced() -> None:
    quorum = member(B, [change(1), change(1, b"old"), change(1, b"older")], term=1)
    quorum.step(AppendEntries(A, B, 2, 1, 1, [change(2, b"new")], 0))
    assert done(quorum).entries == (1, [change(2, b"new")])
    assert quorum.log.end == 2


def test_a_late_message_cuts_nothing_that_a_later_one_brought() -> None:
    quorum = member(B)
    quorum.step(AppendEntries(A, B, 1, 0, 0, [change(1), change(1)], 0))
    done(quorum)
    quorum.step(AppendEntries(A, B, 1, 0, 0, [change(1)], 0))
    assert (quorum.log.end, done(quorum).entries) == (2, None)


def test_a_gap_is_refused_with_the_place_to_try_next() -> None:
    quorum = member(B, [change(1)], term=1)
    quorum.step(AppendEntries(A, B, 1, 5, 1, [change(1)], 0))
    assert done(quorum).after == [AppendAnswer(B, A, 1, is_taken=False, end=1, start=5)]


def test_a_leader_of_the_past_learns_the_present_term() -> None:
    quorum = member(B, term=5)
    quorum.step(AppendEntries(A, B, 4, 0, 0, [change(4)], 0))
    assert [(answer.term, answer.is_taken) for answer in done(quorum).after] == [(5, False)]
    assert quorum.log.end == 0


def test_a_follower_commits_no_further_than_what_it_was_sent() -> None:
    """Behind it may lie entries of another leader that are to be cut."""
    quorum = member(B, [change(1), change(1, b"stray")], term=1)
    quorum.step(AppendEntries(A, B, 2, 1, 1, [], 9))
    assert quorum.commit_end == 1


def test_what_was_not_answered_is_sent_again() -> None:
    quorum = settled_leader()
    quorum.propose([b"x"])
    first = [message for message in done(quorum).now if message.receiver == B]
    assert first, "it was sent"
    again: list[object] = []
    for beat in range(1, 6):
        quorum.tick(ELECTION_MS + beat * BEAT_MS)
        quorum.step(BeatAnswer(B, A, quorum.term, 0))
        again += [
            one
            for one in done(quorum).now
            if isinstance(one, AppendEntries) and one.receiver == B and one.entries
        ]
    assert again


def test_a_member_that_joins_is_sent_something_although_the_first_message_was_lost() -> None:
    """It is probed from the end of the log on, and a probe without an entry would never be sent again."""
    quorum = settled_leader()
    quorum.change_members(Members(THREE.voters, frozenset({D})))
    done(quorum)
    sent: list[object] = []
    for beat in range(1, 6):
        quorum.tick(ELECTION_MS + beat * BEAT_MS)
        quorum.step(BeatAnswer(D, A, quorum.term, 0))
        sent += [one for one in done(quorum).now if isinstance(one, AppendEntries) and one.receiver == D]
    assert any(one.entries for one in sent)


# --- reading


def test_a_read_waits_until_a_majority_has_answered_a_later_beat() -> None:
    quorum = settled_leader()
    quorum.step(BeatAnswer(B, A, quorum.term, 0))
    quorum.read("mine")
    beats = [message for message in done(quorum).now if isinstance(message, Beat)]
    assert done(quorum).answered == []
    quorum.step(BeatAnswer(B, A, quorum.term, beats[0].read))
    assert done(quorum).answered == [("mine", 1)]


def test_a_new_leader_reads_nothing_before_its_first_commit() -> None:
    quorum = leader()
    with pytest.raises(QuorumBusyError):
        quorum.read("mine")


# --- members


def test_voters_come_and_go_one_at_a_time() -> None:
    quorum = settled_leader()
    with pytest.raises(QuorumBusyError, match="one at a time"):
        quorum.change_members(Members(frozenset({A})))
    quorum.change_members(Members(frozenset({A, B})))
    with pytest.raises(QuorumBusyError, match="not committed"):
        quorum.change_members(Members(frozenset({A})))


def test_a_new_majority_counts_as_soon_as_it_is_written() -> None:
    quorum = settled_leader()
    quorum.change_members(Members(frozenset({A, B, C, D})))
    done(quorum)
    quorum.step(AppendAnswer(B, A, quorum.term, is_taken=True, end=2))
    assert quorum.commit_end == 1, "two of four are no majority"
    quorum.step(AppendAnswer(D, A, quorum.term, is_taken=True, end=2))
    assert quorum.commit_end == 2


def test_a_leader_that_is_removed_leads_until_that_is_committed() -> None:
    quorum = settled_leader()
    quorum.change_members(Members(frozenset({B, C})))
    done(quorum)
    quorum.step(AppendAnswer(B, A, quorum.term, is_taken=True, end=2))
    assert quorum.role is Role.LEADER, "B alone is no majority of B and C"
    quorum.step(AppendAnswer(C, A, quorum.term, is_taken=True, end=2))
    assert quorum.role is Role.FOLLOWER


def test_members_that_were_cut_off_the_log_are_taken_back() -> None:
    quorum = member(B, [change(1)], term=1)
    two = Entry(1, EntryKind.MEMBERS, b"", Members(frozenset({A, B})))
    quorum.step(AppendEntries(A, B, 1, 1, 1, [two], 0))
    assert quorum.members.voters == {A, B}
    quorum.step(AppendEntries(C, B, 2, 1, 1, [change(2)], 0))
    assert quorum.members == THREE


# --- snapshots and transfer


def test_a_peer_that_lacks_what_was_dropped_gets_the_snapshot() -> None:
    quorum = settled_leader()
    quorum.take_committed()
    quorum.drop(1, "table")
    quorum.step(AppendAnswer(C, A, quorum.term, is_taken=False, end=0, start=1))
    sent = [message for message in done(quorum).now if isinstance(message, SendSnapshot)]
    assert [(one.receiver, one.snapshot.end, one.snapshot.data) for one in sent] == [(C, 1, "table")]


def test_a_snapshot_replaces_what_is_there() -> None:
    quorum = member(B, [change(1)], term=1)
    snapshot = Snapshot(7, 2, THREE, "table")
    quorum.step(SendSnapshot(A, B, 2, snapshot))
    ready = done(quorum)
    assert ready.snapshot == snapshot
    assert (quorum.log.start, quorum.log.end, quorum.applied_end) == (7, 7, 7)
    assert AppendAnswer(B, A, 2, is_taken=True, end=7) in ready.after


def test_an_old_snapshot_takes_nothing_back() -> None:
    quorum = member(B)
    quorum.step(AppendEntries(A, B, 1, 0, 0, [change(1), change(1)], 2))
    done(quorum)
    quorum.step(SendSnapshot(A, B, 1, Snapshot(1, 1, THREE, "old")))
    assert (done(quorum).snapshot, quorum.log.end) == (None, 2)


def test_leadership_goes_only_to_a_voter_that_has_everything() -> None:
    quorum = settled_leader()
    assert not quorum.transfer(C)
    assert quorum.transfer(B)
    assert TakeOver(A, B, quorum.term) in done(quorum).now


def test_whoever_is_asked_to_take_over_is_elected_although_the_leader_lives() -> None:
    quorum = member(B)
    quorum.step(Beat(A, B, 1, 0, 0))
    quorum.step(TakeOver(A, B, 1))
    asks = [message for message in done(quorum).after if isinstance(message, AskVote)]
    assert [(ask.term, ask.is_transfer) for ask in asks] == [(2, True), (2, True)]
    other = member(C)
    other.step(Beat(A, C, 1, 0, 0))
    other.step(asks[1])
    assert GiveVote(C, B, 2, is_trial=False, is_given=True) in done(other).after


def test_message_holds_as_many_entries_as_fit_and_at_least_one() -> None:
    large = change(1, b"x" * (BYTES_PER_MESSAGE_MAX + 1))
    half = change(1, b"x" * (BYTES_PER_MESSAGE_MAX // 2 - 100))
    log = QuorumLog(Snapshot(0, 0, THREE), [large, half, half, half, change(1)])
    counts = [len(log.portion(start, 512, BYTES_PER_MESSAGE_MAX)) for start in range(6)]
    assert counts == [1, 2, 3, 2, 1, 0]
    assert len(log.portion(1, 1, BYTES_PER_MESSAGE_MAX)) == 1


def test_leader_splits_what_a_peer_lacks_by_bytes() -> None:
    quorum = settled_leader()
    quorum.propose([b"x" * 700_000] * 3)
    sent = [message for message in done(quorum).now if isinstance(message, AppendEntries)]
    assert [(message.receiver, len(message.entries)) for message in sent if message.receiver == B] == [
        (B, 1)
    ] * 3


def test_lone_voter_goes_on_in_its_term_and_writes_nothing_for_it() -> None:
    log = QuorumLog(Snapshot(0, 0, Members(frozenset({A}))), [change(4), change(4)])
    quorum = Quorum(A, log, lambda _: 0, term=4, is_alone=True)
    assert (quorum.role, quorum.term, quorum.has_ready()) == (Role.LEADER, 4, False)
    assert [offset for offset, _ in quorum.take_committed()] == [0, 1]
    assert quorum.is_in_charge
    quorum.read("question")
    assert quorum.ready().answered == [("question", 2)]
    assert quorum.propose([b"next"]) == 2
    ready = done(quorum)
    assert (ready.vote, ready.entries) == (None, (2, [change(4, b"next")]))
    assert [offset for offset, _ in quorum.take_committed()] == [2]


def test_lone_voter_takes_back_what_its_disk_refused() -> None:
    log = QuorumLog(Snapshot(0, 0, Members(frozenset({A}))), [change(0)])
    quorum = Quorum(A, log, lambda _: 0, is_alone=True)
    quorum.propose([b"refused"])
    quorum.ready()
    log.take_back(1)
    assert (log.end, quorum.has_ready()) == (1, False)
    assert quorum.propose([b"taken"]) == 1
    done(quorum)
    assert [entry.data for _, entry in quorum.take_committed()] == [b"", b"taken"]


def test_leader_is_in_charge_once_it_has_applied_what_was_before() -> None:
    quorum = leader([change(0)])
    assert not quorum.is_in_charge
    done(quorum)
    quorum.step(AppendAnswer(B, A, quorum.term, True, quorum.log.end))
    assert not quorum.is_in_charge
    quorum.take_committed()
    assert quorum.is_in_charge
