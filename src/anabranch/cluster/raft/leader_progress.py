"""What a leader of the metadata quorum knows of the others, and what follows from it: what to send, what is committed,
which questions may be answered. It begins with an election and is thrown away with the leadership.

A peer is *probed* with one message at a time until it takes one; from then on several are under way. What is not
answered within `PATIENCE_BEATS` beats counts as lost and is sent again.
"""

from dataclasses import dataclass, field

from anabranch.cluster.raft.log import QuorumLog
from anabranch.cluster.raft.messages import (
    AppendAnswer,
    AppendEntries,
    Beat,
    Member,
    Message,
    SendSnapshot,
)

ENTRIES_PER_MESSAGE_MAX = 512
BYTES_PER_MESSAGE_MAX = 2**20
"""A single entry that is larger travels alone."""
MESSAGES_UNDER_WAY_MAX = 64
PATIENCE_BEATS = 2
SNAPSHOT_PATIENCE_BEATS = 20


@dataclass(slots=True)
class Progress:
    """How far one peer is known to be, and what is on its way to it."""

    next: int
    equal_end: int = 0
    """It holds the leader's log below this, on its disk."""
    is_probed: bool = True
    is_heard: bool = False
    """Since the leader last looked whether a majority still hears it."""
    under_way: int = 0
    patience: int = 0

    @property
    def may_send(self) -> bool:
        return self.under_way < (1 if self.is_probed else MESSAGES_UNDER_WAY_MAX)


@dataclass(slots=True)
class Question:
    """A read that must not be answered from the past: it waits until a majority has heard from us after it came."""

    number: int
    end: int
    context: object
    heard: set[Member] = field(default_factory=set)


class Reign:
    def __init__(self, me: Member, term: int, log: QuorumLog) -> None:
        self._me, self.term, self._log = me, term, log
        self.start = log.end
        """Only entries from here on are committed by counting; those before are committed with them."""
        self.peers = {peer: Progress(log.end) for peer in sorted(log.members.everyone - {me})}
        self.messages: list[Message] = []
        self.answered: list[tuple[object, int]] = []
        self._questions: list[Question] = []
        self._question_count = 0

    # --- members

    def follow_members(self) -> None:
        """The members have changed: new ones are probed from the end on, those that left are forgotten."""
        wanted = self._log.members.everyone - {self._me}
        for peer in sorted(wanted - self.peers.keys()):
            self.peers[peer] = Progress(self._log.end)
        for peer in sorted(self.peers.keys() - wanted):
            del self.peers[peer]

    def hears_a_majority(self) -> bool:
        """Asked once per election time; a leader that is not heard must not go on believing it leads."""
        heard = {peer for peer, progress in self.peers.items() if progress.is_heard} | {self._me}
        for progress in self.peers.values():
            progress.is_heard = False
        return self._log.members.is_majority(heard)

    # --- sending

    def beat(self, commit_end: int) -> None:
        number = self._questions[-1].number if self._questions else 0
        for peer, progress in self.peers.items():
            known = min(commit_end, progress.equal_end)
            self.messages.append(Beat(self._me, peer, self.term, known, number))
            self._lose_patience(progress)
            self.send(peer, commit_end)

    def _lose_patience(self, progress: Progress) -> None:
        if progress.patience > 0:
            progress.patience -= 1
            return
        progress.under_way = 0
        if progress.equal_end < self._log.end:
            # A probe without an entry would not be sent: it begins with the last one at the latest.
            probe = min(progress.next, self._log.end - 1) if progress.is_probed else 0
            progress.next = max(progress.equal_end, probe)
            progress.is_probed = True

    def send_all(self, commit_end: int) -> None:
        for peer in self.peers:
            self.send(peer, commit_end)

    def send(self, peer: Member, commit_end: int, *, even_nothing: bool = False) -> None:
        """What the peer lacks, as far as it may be under way."""
        progress = self.peers[peer]
        while progress.may_send:
            if progress.next < self._log.start:
                self._send_snapshot(peer, progress)
                return
            if progress.next >= self._log.end and not even_nothing:
                return
            self._send_entries(peer, progress, commit_end)
            even_nothing = False

    def _send_entries(self, peer: Member, progress: Progress, commit_end: int) -> None:
        entries = self._log.portion(progress.next, ENTRIES_PER_MESSAGE_MAX, BYTES_PER_MESSAGE_MAX)
        term_before = self._log.term_before(progress.next)
        assert term_before is not None
        self.messages.append(
            AppendEntries(self._me, peer, self.term, progress.next, term_before, entries, commit_end)
        )
        progress.under_way += 1
        progress.patience = PATIENCE_BEATS
        if not progress.is_probed:
            progress.next += len(entries)

    def _send_snapshot(self, peer: Member, progress: Progress) -> None:
        self.messages.append(SendSnapshot(self._me, peer, self.term, self._log.snapshot))
        progress.next = self._log.start
        progress.under_way = MESSAGES_UNDER_WAY_MAX
        progress.patience = SNAPSHOT_PATIENCE_BEATS

    def tell_commit(self, commit_end: int) -> None:
        """To those who have everything: they learn it before the next beat."""
        for peer, progress in self.peers.items():
            if progress.next >= self._log.end and not progress.is_probed:
                self.send(peer, commit_end, even_nothing=True)

    # --- hearing

    def hear_append(self, answer: AppendAnswer, commit_end: int) -> None:
        progress = self.peers[answer.sender]
        progress.under_way = max(0, progress.under_way - 1)
        if answer.is_taken:
            self._taken(progress, answer.end)
            self.send(answer.sender, commit_end)
        elif answer.start > progress.equal_end:
            progress.next = max(progress.equal_end, min(answer.end, answer.start - 1))
            progress.is_probed = True
            progress.under_way = 0
            self.send(answer.sender, commit_end, even_nothing=True)

    def _taken(self, progress: Progress, end: int) -> None:
        progress.equal_end = max(progress.equal_end, end)
        if progress.is_probed:
            progress.is_probed = False
            progress.under_way = 0
            progress.next = end
        progress.next = max(progress.next, end)

    def committed(self, commit_end: int) -> int:
        """How far a majority of the voters has the log on disk; an older term's entries alone never move it."""
        ends = sorted(self._stable_end(voter) for voter in self._log.members.voters)
        end = ends[(len(ends) - 1) // 2]
        return end if end > commit_end and end > self.start else commit_end

    def _stable_end(self, voter: Member) -> int:
        return self._log.stable_end if voter == self._me else self.peers[voter].equal_end

    # --- questions

    def ask(self, context: object, commit_end: int) -> None:
        self._question_count += 1
        self._questions.append(Question(self._question_count, commit_end, context, {self._me}))
        self._answer()

    def hear_beat(self, peer: Member, number: int) -> None:
        for question in self._questions:
            if question.number <= number:
                question.heard.add(peer)
        self._answer()

    def _answer(self) -> None:
        while self._questions and self._log.members.is_majority(self._questions[0].heard):
            question = self._questions.pop(0)
            self.answered.append((question.context, question.end))
