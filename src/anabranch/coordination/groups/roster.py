"""Who is in a group: members in the order they came, which instance is which member, the leader, and the
protocols.

Keeps the counts that every join asks for (how many wait in a join, how many support each protocol), so that
none of those questions walks over all members. Knows no states and no time: `classic_group` and its bases
decide, this keeps.
"""

from collections import Counter
from dataclasses import dataclass, field

from anabranch.coordination.groups.group_memory import MEMBER_BYTES, PROTOCOL_BYTES, GroupMemory
from anabranch.coordination.groups.messages import JoinedMember, Waiter

Protocols = tuple[tuple[str, bytes], ...]


def size_of(protocols: Protocols) -> int:
    return sum(PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in protocols)


@dataclass(slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    """Has never been answered: it cannot heartbeat yet, so it may expire even while it waits in its join."""
    join_waiter: Waiter | None = field(default=None, compare=False)
    sync_waiter: Waiter | None = field(default=None, compare=False)

    def metadata(self, protocol_name: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    @property
    def size_bytes(self) -> int:
        names = (
            len(self.member_id) + len(self.instance_id or "") + len(self.client_id) + len(self.client_host)
        )
        return MEMBER_BYTES + names + size_of(self.protocols) + len(self.assignment)

    @property
    def is_waiting(self) -> bool:
        """A member whose request we hold needs no heartbeat."""
        return not self.is_new and (self.join_waiter is not None or self.sync_waiter is not None)


class Roster:
    def __init__(self, memory: GroupMemory) -> None:
        self.members: dict[str, Member] = {}
        self.pending: dict[str, str] = {}
        """Ids we handed out whose owners have not joined with them yet, and from which host they come."""
        self._memory = memory
        self.leader: str | None = None
        self.joined_count = 0
        self._instances: dict[str, str] = {}
        self._support: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.members)

    # --- coming and going -------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        assert member.member_id not in self.members
        self.members[member.member_id] = member
        if member.instance_id is not None:
            assert member.instance_id not in self._instances
            self._instances[member.instance_id] = member.member_id
        self._count(member, 1)
        self.joined_count += member.join_waiter is not None
        self.leader = self.leader or member.member_id
        self.forget_pending(member.member_id)

    def expect(self, member_id: str, host: str) -> None:
        """An id is handed out; its owner joins with it, or not."""
        self.pending[member_id] = host
        self._memory.add(host, MEMBER_BYTES + len(member_id))

    def forget_pending(self, member_id: str) -> None:
        host = self.pending.pop(member_id, None)
        if host is not None:
            self._memory.add(host, -MEMBER_BYTES - len(member_id))

    def forget_all(self) -> None:
        """The group is coordinated elsewhere from now on, or gone."""
        for member_id in list(self.pending):
            self.forget_pending(member_id)
        for member_id in list(self.members):
            self.remove(member_id)

    def remove(self, member_id: str) -> Member:
        member = self.members.pop(member_id)
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        self._count(member, -1)
        self.joined_count -= member.join_waiter is not None
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def rename(self, old_id: str, new_id: str) -> Member:
        """The same static member under a new id: it keeps its place, its assignment and the leadership."""
        was_leader = self.leader == old_id
        member = self.remove(old_id)
        member.member_id = new_id
        self.add(member)
        if was_leader:
            self.leader = new_id
        return member

    def update(self, member: Member, protocols: Protocols, session_ms: int, rebalance_ms: int) -> None:
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)
        member.session_timeout_ms = session_ms
        member.rebalance_timeout_ms = rebalance_ms

    def assign(self, member: Member, assignment: bytes) -> None:
        self._memory.add(member.client_host, len(assignment) - len(member.assignment))
        member.assignment = assignment

    def hold_join(self, member: Member, waiter: Waiter) -> Waiter | None:
        """The waiter this one replaces, if any."""
        replaced, member.join_waiter = member.join_waiter, waiter
        self.joined_count += replaced is None
        return replaced

    def release_join(self, member: Member) -> Waiter | None:
        waiter, member.join_waiter = member.join_waiter, None
        self.joined_count -= waiter is not None
        return waiter

    # --- questions --------------------------------------------------------------------------------------

    def instance(self, instance_id: str) -> str | None:
        return self._instances.get(instance_id)

    def all_joined(self) -> bool:
        return self.joined_count == len(self.members) and not self.pending

    def not_joined(self) -> list[Member]:
        return [member for member in self.members.values() if member.join_waiter is None]

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def supports_any(self, protocols: Protocols) -> bool:
        return any(self._support[name] == len(self.members) for name, _ in protocols)

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is somebody who joined; False if nobody did."""
        if self.leader is None:
            return False
        if self.members[self.leader].join_waiter is None:
            joined = (m.member_id for m in self.members.values() if m.join_waiter is not None)
            chosen = next(joined, None)
            if chosen is None:
                return False
            self.leader = chosen
        return True

    def select_protocol(self) -> str:
        """Every member votes for its first protocol that all support; the most votes win, early votes
        break ties.
        """
        votes = Counter(self._vote(member) for member in self.members.values())
        return max(votes, key=votes.__getitem__)

    def as_joined(self, protocol_name: str | None) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(m.member_id, m.instance_id, m.metadata(protocol_name)) for m in self.members.values()
        )

    def _vote(self, member: Member) -> str:
        return next(name for name, _ in member.protocols if self._support[name] == len(self.members))

    def _count(self, member: Member, step: int) -> None:
        """Count a member in (1) or out (-1): the bytes it takes, and the protocols it supports."""
        self._memory.add(member.client_host, step * member.size_bytes)
        for name in {name for name, _ in member.protocols}:
            self._support[name] += step
            if not self._support[name]:
                del self._support[name]
