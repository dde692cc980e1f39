"""JoinGroup: who may come in, under which id, and whether that starts a rebalance.

Order of the questions, as Kafka asks them: is there room, does the member share a protocol with the others,
is it new, awaited under an id we gave it, a static member that came back, or one of the members.
"""

from anabranch.coordination.groups.group_base import GroupState
from anabranch.coordination.groups.group_memory import MEMBER_BYTES
from anabranch.coordination.groups.messages import Effect, JoinRequest, Now, StaticMemberSaved, Waiter
from anabranch.coordination.groups.rebalancing import RebalancingGroup
from anabranch.coordination.groups.roster import Member, size_of
from anabranch.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceError,
    GroupError,
    GroupFullError,
    InconsistentGroupProtocolError,
    MemberIdRequiredError,
    UnknownMemberIdError,
)

# A member id is the client's id, a dash and a unique part; the whole has to fit into a Kafka string.
_CLIENT_ID_CHARACTERS_MAX = 255


class JoiningGroup(RebalancingGroup):
    def join(self, request: JoinRequest, waiter: Waiter, now: Now) -> list[Effect]:
        try:
            self._admit(request, waiter, now)
        except GroupError as error:
            self._answer(waiter, error)
        return self._drain()

    def _admit(self, request: JoinRequest, waiter: Waiter, now: Now) -> None:
        if self.is_in(GroupState.DEAD):
            raise CoordinatorNotAvailableError(f"Group {self.group_id} is being deleted: try again.")
        if not self._has_room(request):
            self._turn_away(request.member_id, now)
            raise GroupFullError(
                f"Group {self.group_id} has all the {self._settings.members_max} members it may have."
            )
        if not self._shares_protocol(request):
            raise InconsistentGroupProtocolError(
                f"The members of group {self.group_id} have no protocol in common."
            )
        self._check_memory(request)
        if request.member_id:
            self._admit_known(request, waiter, now)
        elif request.instance_id is not None:
            self._admit_static(request, waiter, now)
        else:
            self._admit_dynamic(request, waiter, now)

    # --- checks -----------------------------------------------------------------------------------------

    def _has_room(self, request: JoinRequest) -> bool:
        """Kafka's count, but for one case: an instance that comes back takes its own place in a full
        group.
        """
        members_max = self._settings.members_max
        member_id = request.member_id or self._instance_member(request) or ""
        member = self.roster.members.get(member_id)
        if self.is_in(GroupState.EMPTY):
            return True
        if self.is_in(GroupState.PREPARING_REBALANCE):
            # Those who wait are counted: if the limit was lowered, the last to rejoin are the ones to go.
            return (
                member is not None and member.join_waiter is not None
            ) or self.roster.joined_count < members_max
        return member is not None or len(self.roster) < members_max

    def _check_memory(self, request: JoinRequest) -> None:
        """A member that is known takes the place of what it was."""
        member = self.roster.members.get(request.member_id or self._instance_member(request) or "")
        known = member.size_bytes if member is not None else 0
        names = 2 * len(request.client_id) + 2 * len(request.instance_id or "") + len(request.client_host)
        more = MEMBER_BYTES + names + size_of(request.protocols) - known
        if more > 0:
            self._memory.check(request.client_host, more)

    def _turn_away(self, member_id: str, now: Now) -> None:
        if member_id in self.roster.members:
            self._drop(member_id)
            self._complete_if_all_joined(now)
        elif member_id in self.roster.pending:
            self._drop_pending(member_id)
            self._complete_if_all_joined(now)

    def _shares_protocol(self, request: JoinRequest) -> bool:
        if self.is_in(GroupState.EMPTY):
            return bool(request.protocol_type and request.protocols)
        return self.protocol_type == request.protocol_type and self.roster.supports_any(request.protocols)

    def _instance_member(self, request: JoinRequest) -> str | None:
        return None if request.instance_id is None else self.roster.instance(request.instance_id)

    # --- newcomers --------------------------------------------------------------------------------------

    def _admit_dynamic(self, request: JoinRequest, waiter: Waiter, now: Now) -> None:
        member_id = self._make_member_id(request)
        if not request.must_know_its_id:
            self._add(request, member_id, waiter, now)
            return
        # Without this, every retry of a client whose first join timed out would leave a member behind.
        self.roster.expect(member_id, request.client_host)
        self._deadlines.set(member_id, now.ms + request.session_timeout_ms)
        raise MemberIdRequiredError(member_id)

    def _make_member_id(self, request: JoinRequest) -> str:
        prefix = request.client_id if request.instance_id is None else request.instance_id
        return f"{prefix[:_CLIENT_ID_CHARACTERS_MAX]}-{self._new_id()}"

    def _add(self, request: JoinRequest, member_id: str, waiter: Waiter, now: Now) -> None:
        if not self.roster.members:
            self.protocol_type = request.protocol_type
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_ms,
            request.session_timeout_ms,
            request.protocols,
            is_new=True,
        )
        member.join_waiter = waiter
        self.roster.add(member)
        if self._initial_delay is not None:
            self._initial_delay.newcomer = True
        # A member that does not know its id cannot heartbeat; it must not stay for ever if its client has
        # given up.
        self._deadlines.set(member_id, now.ms + self._settings.new_member_join_timeout_ms)
        self._rebalance_or_complete(now)

    # --- static members ---------------------------------------------------------------------------------

    def _admit_static(self, request: JoinRequest, waiter: Waiter, now: Now) -> None:
        old_id = self._instance_member(request)
        new_id = self._make_member_id(request)
        if old_id is None:
            self._add(request, new_id, waiter, now)
        else:
            self._return_static(request, old_id, new_id, waiter, now)

    def _return_static(
        self, request: JoinRequest, old_id: str, new_id: str, waiter: Waiter, now: Now
    ) -> None:
        leader_before = self.roster.leader or ""
        member = self._rename_static(old_id, new_id, now)
        saved = StaticMemberSaved(
            self.generation,
            new_id,
            old_id,
            member.protocols,
            member.session_timeout_ms,
            member.rebalance_timeout_ms,
            leader_before,
            request.may_skip_assignment,
        )
        self.roster.update(member, request.protocols, request.session_timeout_ms, request.rebalance_ms)
        self._touch(member, now)
        self._hold_join(member, waiter)
        if self.is_in(GroupState.STABLE) and self.roster.select_protocol() == self.protocol_name:
            self._save({m.member_id: m.assignment for m in self.roster.members.values()}, saved)
        else:
            # While the leader assigns, the old id may be in what it was told, so that round cannot be used
            # either.
            self._rebalance_or_complete(now)

    def _rename_static(self, old_id: str, new_id: str, now: Now) -> Member:
        member = self.roster.members[old_id]
        self._release(
            member, FencedInstanceError(f"Another process has joined as instance {member.instance_id}.")
        )
        self.roster.rename(old_id, new_id)
        self._deadlines.cancel(old_id)
        if old_id in self._pending_sync:
            self._pending_sync.remove(old_id)
            self._pending_sync.add(new_id)
        self._touch(member, now)
        return member

    def _static_saved(self, saved: StaticMemberSaved) -> None:
        member = self._still_returning(saved)
        if member is None:
            return
        is_leader = self.is_leader(saved.member_id)
        if saved.may_skip_assignment:
            answer = self._join_answer(saved.member_id, members=is_leader, skip_assignment=is_leader)
        else:
            # An old client that finds itself leader would assign, which nobody waits for: name the old id
            # instead.
            answer = self._join_answer(saved.member_id, members=False)
            answer = answer._replace(leader=saved.leader_before)
        self._answer(self.roster.release_join(member), answer)

    def _static_not_saved(self, saved: StaticMemberSaved, error: Exception, now: Now) -> None:
        """What the log does not know must not be: the member is again who it was."""
        member = self._still_returning(saved)
        if member is None:
            return
        self._answer(self.roster.release_join(member), error)
        self._rename_static(saved.member_id, saved.old_member_id, now)
        self.roster.update(
            member, saved.old_protocols, saved.old_session_timeout_ms, saved.old_rebalance_timeout_ms
        )

    def _still_returning(self, saved: StaticMemberSaved) -> Member | None:
        """None once a rebalance has taken the member along: the new generation then answers and saves it."""
        if not self.is_in(GroupState.STABLE) or self.generation != saved.generation:
            return None
        return self.roster.members.get(saved.member_id)

    # --- members ----------------------------------------------------------------------------------------

    def _admit_known(self, request: JoinRequest, waiter: Waiter, now: Now) -> None:
        if request.member_id in self.roster.pending and request.instance_id is None:
            self._add(request, request.member_id, waiter, now)
            return
        member = self.check_member(request.member_id, request.instance_id)
        if self.is_in(GroupState.EMPTY):
            raise UnknownMemberIdError(f"Group {self.group_id} has no members: join without a member id.")
        if self._needs_no_rebalance(member, request):
            self._touch(member, now)
            tell_members = self.is_in(GroupState.COMPLETING_REBALANCE) and self.is_leader(member.member_id)
            self._answer(waiter, self._join_answer(member.member_id, members=tell_members))
            return
        self.roster.update(member, request.protocols, request.session_timeout_ms, request.rebalance_ms)
        self._hold_join(member, waiter)
        self._rebalance_or_complete(now)

    def _needs_no_rebalance(self, member: Member, request: JoinRequest) -> bool:
        """The answer to its join was lost: say it again. But a settled group's leader asks because it
        wants a change.
        """
        if self.is_in(GroupState.PREPARING_REBALANCE) or member.protocols != request.protocols:
            return False
        return self.is_in(GroupState.COMPLETING_REBALANCE) or not self.is_leader(member.member_id)
