"""What members of the metadata quorum say to each other: plain values, with no word about how they travel.

Ends instead of indexes: a log that ends at 7 holds the entries 0 to 6. An entry's place is its offset in the partition
`__cluster_metadata`, its term that partition's leader epoch.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

ENTRY_BYTES = 32
MEMBER_BYTES = 64


class Member(NamedTuple):
    """One replica of the metadata log. A broker that comes back with a blank disk is another member."""

    broker_id: int
    directory_id: str

    def __str__(self) -> str:
        return f"{self.broker_id} ({self.directory_id})"


class Members(NamedTuple):
    """Who keeps the log. Voters elect and count; learners only copy it."""

    voters: frozenset[Member]
    learners: frozenset[Member] = frozenset()

    @property
    def everyone(self) -> frozenset[Member]:
        return self.voters | self.learners

    def is_majority(self, some: frozenset[Member] | set[Member]) -> bool:
        return len(self.voters & some) * 2 > len(self.voters)


class EntryKind(Enum):
    CHANGE = "change"
    """Of the agreed table; the core does not look into it."""
    MEMBERS = "members"
    REIGN = "reign"
    """The first of a leader's term: with it, everything before it is committed."""


class Entry(NamedTuple):
    term: int
    kind: EntryKind
    data: bytes = b""
    members: Members | None = None
    """Of the kind MEMBERS alone."""

    @property
    def size(self) -> int:
        """About as many bytes as it takes in a message."""
        count = len(self.members.everyone) if self.members is not None else 0
        return ENTRY_BYTES + len(self.data) + MEMBER_BYTES * count


class Snapshot(NamedTuple):
    """Stands for all entries below `end`, the last of which is of `term`. `data` is the driver's to know."""

    end: int
    term: int
    members: Members
    data: object = None


class AskVote(NamedTuple):
    """`is_trial`: would you? Nobody's term changes by being asked. `is_transfer`: the leader wants it so."""

    sender: Member
    receiver: Member
    term: int
    log_end: int
    log_term: int
    is_trial: bool
    is_transfer: bool = False


class GiveVote(NamedTuple):
    sender: Member
    receiver: Member
    term: int
    is_trial: bool
    is_given: bool


class AppendEntries(NamedTuple):
    """Entries from `start` on; the one before them is of `term_before`. Entries below `commit_end` are committed."""

    sender: Member
    receiver: Member
    term: int
    start: int
    term_before: int
    entries: Sequence[Entry]
    commit_end: int


class AppendAnswer(NamedTuple):
    """Taken: the log equals the leader's below `end`. Refused: it does not hold what came before `start`, and `end`
    is where to try next."""

    sender: Member
    receiver: Member
    term: int
    is_taken: bool
    end: int
    start: int = 0


class Beat(NamedTuple):
    """I lead. `commit_end` is no more than what the receiver is known to hold; `read` counts questions about that."""

    sender: Member
    receiver: Member
    term: int
    commit_end: int
    read: int


class BeatAnswer(NamedTuple):
    sender: Member
    receiver: Member
    term: int
    read: int


class SendSnapshot(NamedTuple):
    """What the receiver lacks has been dropped; answered like an append that ends where the snapshot does."""

    sender: Member
    receiver: Member
    term: int
    snapshot: Snapshot


class TakeOver(NamedTuple):
    """Stand for election now: you hold everything, and I am leaving."""

    sender: Member
    receiver: Member
    term: int


Message = AskVote | GiveVote | AppendEntries | AppendAnswer | Beat | BeatAnswer | SendSnapshot | TakeOver
FromLeader = AppendEntries | Beat | SendSnapshot
