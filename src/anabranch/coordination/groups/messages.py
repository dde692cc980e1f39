"""What goes into a group and what comes out: requests, answers and effects, as plain immutable values.

A *waiter* is whatever the caller wants back with the answer to a request that may have to wait; the group
never looks at it. `Now` carries both times: `ms` never goes back and decides every wait, `wall_ms` is what
gets written down.
"""

from collections.abc import Hashable
from typing import NamedTuple

from anabranch.errors import AnabranchError
from anabranch.values import TopicPartition

Waiter = Hashable
LogRecord = tuple[bytes, bytes | None]
"""A key and a value of the `__consumer_offsets` log; no value deletes what the key names."""


class Now(NamedTuple):
    ms: int
    wall_ms: int


class JoinRequest(NamedTuple):
    group_id: str
    member_id: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Assignor names with the member's metadata for each, the most wanted first."""
    session_timeout_ms: int
    rebalance_timeout_ms: int = -1
    """-1 (version 0 has no such field): as long as the session."""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    version: int = 9

    @property
    def rebalance_ms(self) -> int:
        return self.rebalance_timeout_ms if self.rebalance_timeout_ms >= 0 else self.session_timeout_ms

    @property
    def must_know_its_id(self) -> bool:
        return self.version >= 4

    @property
    def may_skip_assignment(self) -> bool:
        return self.version >= 9


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    member_id: str
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str
    members: tuple[JoinedMember, ...] = ()
    """Everybody, for the leader; nobody, for the others."""
    skip_assignment: bool = False


class SyncRequest(NamedTuple):
    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class SyncAnswer(NamedTuple):
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes


class Identity(NamedTuple):
    """Who leaves: by member id, or by instance id with an empty member id."""

    member_id: str
    instance_id: str | None = None


class PartitionCommit(NamedTuple):
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class CommitRequest(NamedTuple):
    group_id: str
    partitions: tuple[PartitionCommit, ...]
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    retention_ms: int = -1
    """Versions 2 to 4 may say how long these offsets live; -1: as long as the settings say."""
    version: int = 9


# --- effects ----------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """Wake this waiter with an answer, or with the error to raise."""

    waiter: Waiter
    outcome: JoinAnswer | SyncAnswer | Exception


class AssignmentSaved(NamedTuple):
    generation: int
    assignments: dict[str, bytes]


class StaticMemberSaved(NamedTuple):
    """A static member came back under a new id; what is needed to finish that, or to undo it."""

    generation: int
    member_id: str
    old_member_id: str
    old_protocols: tuple[tuple[str, bytes], ...]
    old_session_timeout_ms: int
    old_rebalance_timeout_ms: int
    leader_before: str
    may_skip_assignment: bool


class EmptySaved(NamedTuple):
    generation: int


Saved = AssignmentSaved | StaticMemberSaved | EmptySaved


class Save(NamedTuple):
    """Append this record; once it is durable say `on_saved(saved)`, if that failed `on_save_failed(saved,
    ...)`.
    """

    record: LogRecord
    saved: Saved


Effect = Answer | Save


# --- what people ask about groups -------------------------------------------------------------------------


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    group_type: str = "classic"


class DescribedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    group_id: str
    state: str
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[DescribedMember, ...] = ()


class Standing(NamedTuple):
    """Where one member stands. `assignment` is what it may work on; empty while a new generation is being dealt out."""

    is_stable: bool
    is_leader: bool
    generation: int
    session_timeout_ms: int
    protocol_name: str
    metadata: bytes
    assignment: bytes


class LeaveOutcome(NamedTuple):
    identity: Identity
    error: AnabranchError | None
