"""What a classic group is: its state, its members, its generation, and how that is written down and read
back.

    EMPTY -> PREPARING_REBALANCE -> COMPLETING_REBALANCE -> STABLE
               (members join)         (the leader assigns)    (members work)

Any of the last three falls back to PREPARING when somebody comes, goes or changes; PREPARING without members
ends in EMPTY; DEAD is a group being deleted. A generation is one round of this. Only STABLE and EMPTY are
ever written.
"""

from collections.abc import Callable
from enum import Enum

from anabranch.coordination.groups.deadlines import Deadlines
from anabranch.coordination.groups.group_memory import GroupMemory
from anabranch.coordination.groups.messages import (
    Answer,
    DescribedGroup,
    DescribedMember,
    Effect,
    JoinAnswer,
    ListedGroup,
    LogRecord,
    Now,
    SyncAnswer,
    Waiter,
)
from anabranch.coordination.groups.records import GroupRecord, MemberRecord, group_record
from anabranch.coordination.groups.roster import Member, Roster
from anabranch.coordination.groups.settings import GroupSettings
from anabranch.coordination.groups.subscription import subscribed_topics
from anabranch.errors import (
    FencedInstanceError,
    GroupError,
    InvalidGroupIdError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

CONSUMER_PROTOCOL_TYPE = "consumer"
GROUP_ID_CHARACTERS_MAX = 1024
"""Kafka has no limit but that of a string. To find the partition of a longer name would take a noticeable time, and a
request may have hundreds of them."""


def check_length(group_id: str) -> None:
    if len(group_id) > GROUP_ID_CHARACTERS_MAX:
        raise InvalidGroupIdError(
            f"The name of a group may have {GROUP_ID_CHARACTERS_MAX} characters; this one has {len(group_id)}."
        )


class GroupState(Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupTimer(Enum):
    """The two deadlines of the group itself; those of sessions are kept under the member's id."""

    JOIN = "join"
    SYNC = "sync"


class GroupBase:
    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        new_id: Callable[[], str],
        now: Now,
        memory: GroupMemory,
    ) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.roster = Roster(memory)
        self._memory = memory
        self.state_timestamp_ms = now.wall_ms
        self.is_stored = False
        """Whether the log may hold a record of this group, which a deletion then has to cancel."""
        self._previous_state = GroupState.DEAD
        self._topics: frozenset[str] | None = None
        self._settings = settings
        self._new_id = new_id
        self._deadlines: Deadlines[str | GroupTimer] = Deadlines()
        self._pending_sync: set[str] = set()
        self._effects: list[Effect] = []

    # --- written down and read back ---------------------------------------------------------------------

    def restore(self, record: GroupRecord) -> None:
        """Become what the log says; sessions start with `ClassicGroup.resume`."""
        for member in record.members:
            self.roster.add(_restored_member(member, record.protocol_name or ""))
        self.state = GroupState.STABLE if record.members else GroupState.EMPTY
        self.generation = record.generation
        self.protocol_type = record.protocol_type or None
        self.protocol_name = record.protocol_name
        self.roster.leader = record.leader if record.leader in self.roster.members else self.roster.leader
        self.state_timestamp_ms = record.state_timestamp_ms
        self.is_stored = True
        self._topics = self._read_topics()

    def to_record(self, assignments: dict[str, bytes]) -> LogRecord:
        members = tuple(self._member_record(m, assignments) for m in self.roster.members.values())
        record = GroupRecord(
            self.protocol_type or "",
            self.generation,
            self.protocol_name,
            self.roster.leader,
            self.state_timestamp_ms,
            members,
        )
        return group_record(self.group_id, record)

    def _member_record(self, member: Member, assignments: dict[str, bytes]) -> MemberRecord:
        return MemberRecord(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.metadata(self.protocol_name),
            assignments.get(member.member_id, b""),
        )

    # --- questions --------------------------------------------------------------------------------------

    def is_in(self, *states: GroupState) -> bool:
        return self.state in states

    def is_leader(self, member_id: str) -> bool:
        return self.roster.leader == member_id

    def is_subscribed_to(self, topic: str) -> bool:
        """A consumer group whose subscriptions we cannot read counts as subscribed to everything."""
        if self._topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self._topics

    @property
    def knows_its_topics(self) -> bool:
        return self._topics is not None

    def is_forgettable(self) -> bool:
        """Nobody is here or about to come, and the log has never heard of it."""
        return self.is_in(GroupState.EMPTY) and not self.is_stored and not self.roster.pending

    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms()

    def listed(self) -> ListedGroup:
        return ListedGroup(self.group_id, self.protocol_type or "", self.state.value)

    def described(self) -> DescribedGroup:
        """Like Kafka, metadata and the protocol's name are shown only while both are settled."""
        settled = self.protocol_name if self.is_in(GroupState.STABLE) else None
        return DescribedGroup(
            self.group_id,
            self.state.value,
            self.protocol_type or "",
            settled or "",
            tuple(_described_member(member, settled) for member in self.roster.members.values()),
        )

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        if instance_id is not None:
            current_id = self.roster.instance(instance_id)
            if current_id is None:
                raise UnknownMemberIdError(
                    f"Group {self.group_id} has no instance {instance_id}: join again."
                )
            if current_id != member_id:
                raise FencedInstanceError(
                    f"Another process has joined as instance {instance_id}: stop this one."
                )
        member = self.roster.members.get(member_id)
        if member is None:
            raise UnknownMemberIdError(f"Group {self.group_id} has no member {member_id}: join again.")
        return member

    # --- shared by all phases ---------------------------------------------------------------------------

    def _transition(self, state: GroupState, now: Now) -> None:
        self._previous_state, self.state = self.state, state
        self.state_timestamp_ms = now.wall_ms

    def _drain(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def _answer(self, waiter: Waiter | None, outcome: JoinAnswer | SyncAnswer | Exception) -> None:
        if waiter is not None:
            self._effects.append(Answer(waiter, outcome))

    def _hold_join(self, member: Member, waiter: Waiter) -> None:
        replaced = self.roster.hold_join(member, waiter)
        self._answer(
            replaced, RebalanceInProgressError("A later join of the same member took this one's place.")
        )

    def _release(self, member: Member, error: GroupError) -> None:
        """Give up whatever this member waits for."""
        self._answer(self.roster.release_join(member), error)
        waiter, member.sync_waiter = member.sync_waiter, None
        self._answer(waiter, error)

    def _touch(self, member: Member, now: Now) -> None:
        """The member is alive: its session starts anew. One dictionary write."""
        self._deadlines.set(member.member_id, now.ms + member.session_timeout_ms)

    def _join_answer(self, member_id: str, *, members: bool, skip_assignment: bool = False) -> JoinAnswer:
        return JoinAnswer(
            member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.roster.leader or "",
            self.roster.as_joined(self.protocol_name) if members else (),
            skip_assignment,
        )

    def _read_topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        if self.roster.members and self.protocol_name is None:
            return None
        found: set[str] = set()
        for member in self.roster.members.values():
            topics = subscribed_topics(member.metadata(self.protocol_name))
            if topics is None:
                return None
            found |= topics
        return frozenset(found)


def _restored_member(record: MemberRecord, protocol_name: str) -> Member:
    return Member(
        record.member_id,
        record.instance_id,
        record.client_id,
        record.client_host,
        record.rebalance_timeout_ms,
        record.session_timeout_ms,
        ((protocol_name, record.subscription),),
        record.assignment,
    )


def _described_member(member: Member, protocol_name: str | None) -> DescribedMember:
    return DescribedMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        b"" if protocol_name is None else member.metadata(protocol_name),
        member.assignment,
    )
