"""The Raft core of the metadata quorum: told what happened, it says what to write and whom to tell. It does neither.

    step(message) tick(now) propose(...) read(...)  ->  ready()  ->  write, sync, then persisted(token)

What `ready()` hands out is carried out in its order: messages of `now` may leave at once; state and entries are
written and synced; then messages of `after` leave, and `persisted` is told. No promise leaves the machine before it is
on its disk. `take_committed` gives the entries to apply, each once and in order.

A trial vote comes before every election, so that a member that was cut off does not depose a leader that works; whoever
has heard a leader within the shortest election time refuses to help another. A leader that no majority answers steps
down. A sole voter leads at once, and needs neither ticks nor peers. One that is alone besides, of whose term nobody
else has heard and nobody will, goes on leading in that term and writes nothing for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from anabranch.cluster.raft.leader_progress import Reign
from anabranch.cluster.raft.log import QuorumLog
from anabranch.cluster.raft.messages import (
    AppendAnswer,
    AppendEntries,
    AskVote,
    Beat,
    BeatAnswer,
    Entry,
    EntryKind,
    FromLeader,
    GiveVote,
    Member,
    Members,
    Message,
    SendSnapshot,
    Snapshot,
    TakeOver,
)
from anabranch.errors import NotControllerError, QuorumBusyError

ELECTION_MS = 1000
"""The shortest; each member waits up to twice as long, by chance."""
BEAT_MS = 200


class Role(Enum):
    FOLLOWER = "follower"
    TRIAL = "trial"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(slots=True)
class Ready:
    """What is to be done, in this order."""

    now: list[Message]
    vote: tuple[int, Member | None] | None
    """Term and vote, if they have changed."""
    snapshot: Snapshot | None
    """Replaces everything there is, table and log."""
    entries: tuple[int, list[Entry]] | None
    """From this offset on; what the disk has from there on is replaced."""
    after: list[Message]
    answered: list[tuple[object, int]]
    """Reads, with the end up to which entries must be applied before they are answered."""
    token: tuple[int, int]
    """For `persisted`."""


@dataclass(slots=True)
class _Outbox:
    now: list[Message] = field(default_factory=list)
    after: list[Message] = field(default_factory=list)
    vote_changed: bool = False
    snapshot: Snapshot | None = None
    answered: list[tuple[object, int]] = field(default_factory=list)


class Quorum:
    """One member. `chance(n)` gives a number below n."""

    def __init__(
        self,
        me: Member,
        log: QuorumLog,
        chance: Callable[[int], int],
        *,
        term: int = 0,
        vote: Member | None = None,
        now_ms: int = 0,
        commit_end: int = 0,
        is_alone: bool = False,
    ) -> None:
        """`commit_end`: what is known to be committed; more may be."""
        self.me, self.log = me, log
        self.term, self.vote = term, vote
        self.role = Role.FOLLOWER
        self.leader: Member | None = None
        self.applied_end = log.start
        self.commit_end = max(log.start, min(commit_end, log.end))
        self._chance = chance
        self._now_ms = now_ms
        self._reign: Reign | None = None
        self._votes: set[Member] = set()
        self._out = _Outbox()
        self._restart_timers()
        if is_alone:
            self._go_on_alone()
        elif log.members.voters == {me}:
            self._stand()

    @property
    def members(self) -> Members:
        return self.log.members

    @property
    def is_in_charge(self) -> bool:
        """Leads, and has applied everything that was committed before it did: only then may it judge by its table."""
        return self._reign is not None and self.applied_end > self._reign.start

    def ends(self) -> dict[Member, int]:
        """Of a leader: how far each member is known to have the log on its disk. Of others: nothing."""
        if self._reign is None:
            return {}
        known = {peer: progress.equal_end for peer, progress in self._reign.peers.items()}
        return {**known, self.me: self.log.stable_end}

    def _go_on_alone(self) -> None:
        """All that this disk has is committed, for nobody else is asked; and nobody else can have led meanwhile."""
        assert self.log.members.voters == {self.me}
        self._begin_reign()
        assert self._reign is not None
        self._reign.start = -1
        self.commit_end = self.log.end

    def _restart_timers(self) -> None:
        self._quiet_since_ms = self._beaten_ms = self._now_ms
        self._election_ms = ELECTION_MS + self._chance(ELECTION_MS)

    # --- what happens -----------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        self._now_ms = now_ms
        if self._reign is not None:
            self._tick_leader(self._reign)
        elif now_ms - self._quiet_since_ms >= self._election_ms:
            self._try()

    def _tick_leader(self, reign: Reign) -> None:
        if self._now_ms - self._beaten_ms >= BEAT_MS:
            self._beaten_ms = self._now_ms
            reign.beat(self.commit_end)
        if self._now_ms - self._quiet_since_ms >= ELECTION_MS:
            self._quiet_since_ms = self._now_ms
            if not reign.hears_a_majority():
                self._follow(self.term, None)

    def propose(self, changes: Sequence[bytes]) -> int:
        """Append changes of the table; the offset of the first. Committed once `take_committed` gives them out, which
        another leader's entries at their place may prevent."""
        self._leading()
        start = self.log.end
        self.log.append([Entry(self.term, EntryKind.CHANGE, data) for data in changes])
        return start

    def change_members(self, members: Members) -> int:
        """One voter more or less at a time, and only once the change before it is committed; learners as one likes."""
        reign = self._leading()
        if self.log.members_end > self.commit_end or self.commit_end <= reign.start:
            raise QuorumBusyError("The last change of the members is not committed yet: try again.")
        if len(members.voters ^ self.members.voters) > 1:
            raise QuorumBusyError("Voters come and go one at a time.")
        start = self.log.end
        self.log.append([Entry(self.term, EntryKind.MEMBERS, b"", members)])
        reign.follow_members()
        return start

    def read(self, context: object) -> None:
        """`Ready.answered` gives the context back once it is certain that nobody else leads."""
        reign = self._leading()
        if self.commit_end <= reign.start:
            raise QuorumBusyError("This leader has committed nothing yet: try again.")
        reign.ask(context, self.commit_end)
        reign.beat(self.commit_end)

    def transfer(self, to: Member) -> bool:
        """Hand the leadership over, if that member has everything. Whether it was asked to take over."""
        reign = self._leading()
        progress = reign.peers.get(to)
        if progress is None or to not in self.members.voters or progress.equal_end < self.log.end:
            return False
        self._out.now.append(TakeOver(self.me, to, self.term))
        return True

    def drop(self, end: int, data: object) -> Snapshot:
        """Everything below `end` has been applied and is in `data`, on disk: the entries may go."""
        assert self.log.start < end <= self.applied_end
        term = self.log.term_before(end)
        assert term is not None
        snapshot = Snapshot(end, term, self.log.members_at(end), data)
        self.log.drop(snapshot)
        return snapshot

    def _leading(self) -> Reign:
        if self._reign is None:
            raise NotControllerError("This member does not lead the metadata quorum.")
        return self._reign

    # --- roles ------------------------------------------------------------------------------------------------------

    def _follow(self, term: int, leader: Member | None) -> None:
        if term > self.term:
            self.term, self.vote = term, None
            self._out.vote_changed = True
        self._end_reign()
        self.role, self.leader = Role.FOLLOWER, leader
        self._restart_timers()

    def _end_reign(self) -> None:
        if self._reign is not None:
            self._out.answered += self._reign.answered
            self._reign = None

    def _try(self) -> None:
        """A trial: nothing changes unless a majority would vote for us."""
        if self.me in self.members.voters:
            self._begin(Role.TRIAL)
            self._ask(self.term + 1, is_transfer=False)

    def _stand(self, *, is_transfer: bool = False) -> None:
        if self.me in self.members.voters:
            self._begin(Role.CANDIDATE)
            self.term, self.vote = self.term + 1, self.me
            self._out.vote_changed = True
            self._ask(self.term, is_transfer=is_transfer)

    def _begin(self, role: Role) -> None:
        self._end_reign()
        self.role, self.leader, self._votes = role, None, {self.me}
        self._restart_timers()

    def _ask(self, term: int, *, is_transfer: bool) -> None:
        is_trial = self.role is Role.TRIAL
        end, last_term = self.log.end, self.log.last_term
        self._out.after += [
            AskVote(self.me, voter, term, end, last_term, is_trial, is_transfer)
            for voter in sorted(self.members.voters - {self.me})
        ]
        self._count()

    def _count(self) -> None:
        if not self.members.is_majority(self._votes):
            return
        if self.role is Role.TRIAL:
            self._stand()
        elif self.role is Role.CANDIDATE:
            self._lead()

    def _lead(self) -> None:
        self._begin_reign()
        self.log.append([Entry(self.term, EntryKind.REIGN)])

    def _begin_reign(self) -> None:
        self.role, self.leader = Role.LEADER, self.me
        self._restart_timers()
        self._reign = Reign(self.me, self.term, self.log)

    # --- messages ---------------------------------------------------------------------------------------------------

    def step(self, message: Message) -> None:
        match message:
            case AskVote():
                self._asked(message)
            case GiveVote():
                self._given(message)
            case AppendEntries() | Beat() | SendSnapshot():
                self._from_leader(message)
            case TakeOver():
                if self._is_current(message) and message.sender == self.leader:
                    self._stand(is_transfer=True)
            case AppendAnswer() | BeatAnswer():
                if self._is_current(message) and self._reign is not None:
                    self._from_peer(self._reign, message)

    def _is_current(self, message: Message) -> bool:
        """A greater term ends what we were; a message of a lesser one is of the past."""
        if message.term > self.term:
            self._follow(message.term, None)
        return message.term == self.term

    def _asked(self, ask: AskVote) -> None:
        heard_lately = self.leader is not None and self._now_ms - self._quiet_since_ms < ELECTION_MS
        if heard_lately and ask.term > self.term and not ask.is_transfer:
            return
        if ask.term > self.term and not ask.is_trial:
            self._follow(ask.term, None)
        is_given = self._would_give(ask)
        if is_given and not ask.is_trial:
            self._out.vote_changed = self._out.vote_changed or self.vote != ask.sender
            self.vote = ask.sender
            self._restart_timers()
        term = ask.term if is_given else self.term
        self._out.after.append(GiveVote(self.me, ask.sender, term, ask.is_trial, is_given))

    def _would_give(self, ask: AskVote) -> bool:
        if (ask.log_term, ask.log_end) < (self.log.last_term, self.log.end):
            return False
        if ask.is_trial:
            return ask.term > self.term
        return ask.term == self.term and self.vote in (None, ask.sender)

    def _given(self, vote: GiveVote) -> None:
        if vote.is_trial and vote.is_given:
            if self.role is Role.TRIAL and vote.term == self.term + 1:
                self._votes.add(vote.sender)
                self._count()
            return
        if self._is_current(vote) and vote.is_given and self.role is Role.CANDIDATE:
            self._votes.add(vote.sender)
            self._count()

    def _from_leader(self, message: FromLeader) -> None:
        if message.term < self.term:
            # The past; our answer's term tells its sender so.
            self._out.after.append(AppendAnswer(self.me, message.sender, self.term, False, 0))
            return
        if message.term > self.term or self.role is not Role.FOLLOWER:
            assert self.role is not Role.LEADER or message.term > self.term, "two leaders of one term"
            self._follow(message.term, message.sender)
        self.leader, self._quiet_since_ms = message.sender, self._now_ms
        match message:
            case Beat():
                self._commit(min(message.commit_end, self.log.end))
                self._out.after.append(BeatAnswer(self.me, message.sender, self.term, message.read))
            case AppendEntries():
                self._append(message)
            case SendSnapshot():
                self._install(message)

    def _append(self, message: AppendEntries) -> None:
        start, term_before, entries = message.start, message.term_before, message.entries
        if start < self.commit_end:  # What is committed here is the same there.
            known = min(self.commit_end - start, len(entries))
            start, entries = start + known, entries[known:]
            if start < self.commit_end:
                self._answer_append(message, self.commit_end)
                return
            term_before = self._committed_term()
        if not self.log.holds(start, term_before):
            retry = self.log.last_equal(start, self.commit_end)
            self._out.after.append(AppendAnswer(self.me, message.sender, self.term, False, retry, start))
            return
        self.log.take(start, entries)
        end = start + len(entries)
        self._commit(min(message.commit_end, end))
        self._answer_append(message, end)

    def _committed_term(self) -> int:
        term = self.log.term_before(self.commit_end)
        assert term is not None
        return term

    def _answer_append(self, message: FromLeader, end: int) -> None:
        self._out.after.append(AppendAnswer(self.me, message.sender, self.term, True, end))

    def _install(self, message: SendSnapshot) -> None:
        snapshot = message.snapshot
        if snapshot.end > self.commit_end:
            if self.log.holds(snapshot.end, snapshot.term):
                self._commit(snapshot.end)
            else:
                self.log.replace(snapshot)
                self.commit_end = self.applied_end = snapshot.end
                self._out.snapshot = snapshot
        self._answer_append(message, self.commit_end)

    def _from_peer(self, reign: Reign, answer: AppendAnswer | BeatAnswer) -> None:
        progress = reign.peers.get(answer.sender)
        if progress is None:
            return  # It left.
        progress.is_heard = True
        if isinstance(answer, BeatAnswer):
            reign.hear_beat(answer.sender, answer.read)
            reign.send(answer.sender, self.commit_end)
            return
        reign.hear_append(answer, self.commit_end)
        self._advance()

    # --- commit and output ------------------------------------------------------------------------------------------

    def _commit(self, end: int) -> None:
        self.commit_end = max(self.commit_end, end)

    def _advance(self) -> None:
        if self._reign is None:
            return
        end = self._reign.committed(self.commit_end)
        if end == self.commit_end:
            return
        self.commit_end = end
        self._reign.tell_commit(end)
        if self.log.members_end <= end and self.me not in self.members.voters:
            self._follow(self.term, None)

    def has_ready(self) -> bool:
        out, reign = self._out, self._reign
        return bool(
            out.now
            or out.after
            or out.vote_changed
            or out.snapshot
            or out.answered
            or self.log.unwritten_start is not None
            or (reign is not None and (reign.messages or reign.answered))
        )

    def ready(self) -> Ready:
        reign = self._reign
        if reign is not None:
            if self.log.unwritten_start is not None:
                reign.send_all(self.commit_end)  # All proposals of a turn in one message.
            self._out.now += reign.messages
            self._out.answered += reign.answered
            reign.messages, reign.answered = [], []
        out, self._out = self._out, _Outbox()
        if out.vote_changed:  # A term never leaves before it is on the disk.
            out.now, out.after = [], out.after + out.now
        return Ready(
            out.now,
            (self.term, self.vote) if out.vote_changed else None,
            out.snapshot,
            self.log.unwritten(),
            out.after,
            out.answered,
            (self.log.end, self.log.last_term),
        )

    def persisted(self, token: tuple[int, int]) -> None:
        """What the `Ready` with this token handed out is on the disk."""
        if self.log.written(*token):
            self._advance()

    def take_committed(self) -> list[tuple[int, Entry]]:
        """Only what is on our own disk, too: what was applied must not be gone after a crash."""
        start, end = self.applied_end, min(self.commit_end, self.log.stable_end)
        if end <= start:
            return []
        self.applied_end = end
        return list(enumerate(self.log.slice(start, end - start), start))
