"""One classic consumer group: every event that can happen to it, each answered with effects or an error.

Who calls: `coordinator`, on the loop's thread, with the time of the event. `join` and `sync` take a waiter
and return effects, among them sooner or later the answer for that waiter; the others answer at once or raise.
A `Save` effect is followed by exactly one `on_saved` or `on_save_failed`, in the order of the saves. Nothing
here waits, and nothing is handed to members before the log has it: after a crash a generation that anybody
worked in is found again.
"""

from anabranch.coordination.groups.group_base import CONSUMER_PROTOCOL_TYPE, GroupState, GroupTimer
from anabranch.coordination.groups.joining import JoiningGroup
from anabranch.coordination.groups.messages import (
    AssignmentSaved,
    Effect,
    Identity,
    LeaveOutcome,
    Now,
    Saved,
    Standing,
    StaticMemberSaved,
    SyncRequest,
    Waiter,
)
from anabranch.coordination.groups.roster import Member
from anabranch.errors import (
    CoordinatorNotAvailableError,
    GroupError,
    GroupIdNotFoundError,
    GroupNotEmptyError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)


class ClassicGroup(JoiningGroup):
    # --- sync -------------------------------------------------------------------------------------------

    def sync(self, request: SyncRequest, waiter: Waiter, now: Now) -> list[Effect]:
        try:
            self._sync(request, waiter, now)
        except GroupError as error:
            self._answer(waiter, error)
        return self._drain()

    def _sync(self, request: SyncRequest, waiter: Waiter, now: Now) -> None:
        member = self._check_generation(request.member_id, request.instance_id, request.generation)
        if _differ(request.protocol_type, self.protocol_type) or _differ(
            request.protocol_name, self.protocol_name
        ):
            raise InconsistentGroupProtocolError(
                f"Group {self.group_id} has settled on {self.protocol_name}."
            )
        if self.is_in(GroupState.PREPARING_REBALANCE):
            raise RebalanceInProgressError(f"Group {self.group_id} rebalances: join again.")
        self._check_assignments(member, request)
        self._pending_sync.discard(member.member_id)
        if not self._pending_sync:
            self._deadlines.cancel(GroupTimer.SYNC)
        if self.is_in(GroupState.STABLE):
            self._touch(member, now)
            self._answer(waiter, self._sync_answer(member))
        else:
            self._hold_sync(member, request, waiter)

    def _check_assignments(self, member: Member, request: SyncRequest) -> None:
        """What the leader hands out takes the place of what members had. Raises GroupFullError."""
        had = sum(len(each.assignment) for each in self.roster.members.values())
        more = sum(len(each) for _, each in request.assignments) - had
        if more > 0:
            self._memory.check(member.client_host, more)

    def _hold_sync(self, member: Member, request: SyncRequest, waiter: Waiter) -> None:
        replaced, member.sync_waiter = member.sync_waiter, waiter
        self._answer(
            replaced, RebalanceInProgressError("A later sync of the same member took this one's place.")
        )
        if self.is_leader(member.member_id) and self._saving_generation != self.generation:
            # Of a leader's assignments for one generation the first counts: a second one, computed anew after
            # a lost answer, could give a partition to somebody else than the first did.
            self._saving_generation = self.generation
            given = dict(request.assignments)
            assignments = {member_id: given.get(member_id, b"") for member_id in self.roster.members}
            self._save(assignments, AssignmentSaved(self.generation, assignments))

    # --- the log has answered ---------------------------------------------------------------------------

    def on_saved(self, saved: Saved, now: Now) -> list[Effect]:
        if isinstance(saved, AssignmentSaved):
            if self._is_completing(saved.generation):
                self._hand_out(saved.assignments, now)
                self._transition(GroupState.STABLE, now)
        elif isinstance(saved, StaticMemberSaved):
            self._static_saved(saved)
        return self._drain()

    def on_save_failed(self, saved: Saved, error: Exception, now: Now) -> list[Effect]:
        """An empty generation that could not be written is let be: the one before has no members who are
        alive.
        """
        if isinstance(saved, AssignmentSaved):
            if self._is_completing(saved.generation):
                self._refuse_syncs(error, now)
                self._prepare_rebalance(now)
        elif isinstance(saved, StaticMemberSaved):
            self._static_not_saved(saved, error, now)
        return self._drain()

    def _is_completing(self, generation: int) -> bool:
        """Somebody may have come or gone while the log was busy; then this assignment is nobody's any
        more.
        """
        return self.is_in(GroupState.COMPLETING_REBALANCE) and self.generation == generation

    # --- heartbeat and leave ----------------------------------------------------------------------------

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: Now) -> None:
        member = self._check_generation(member_id, instance_id, generation)
        self._touch(member, now)
        if self.is_in(GroupState.PREPARING_REBALANCE):
            raise RebalanceInProgressError(f"Group {self.group_id} rebalances: join again.")

    def standing(self, member_id: str, now: Now) -> Standing:
        """The member is alive, and has forgotten what it was told."""
        self._check_alive()
        member = self.check_member(member_id, None)
        self._touch(member, now)
        name, metadata = member.protocols[0]
        # While the members gather, what they had is still theirs: they may commit before they give it up.
        is_assigned = self.is_in(GroupState.STABLE, GroupState.PREPARING_REBALANCE)
        return Standing(
            self.is_in(GroupState.STABLE),
            self.is_leader(member_id),
            self.generation,
            member.session_timeout_ms,
            self.protocol_name or name,
            member.metadata(self.protocol_name) or metadata,
            member.assignment if is_assigned else b"",
        )

    def leave(self, identities: list[Identity], now: Now) -> tuple[list[LeaveOutcome], list[Effect]]:
        self._check_alive()
        outcomes = [LeaveOutcome(identity, self._leave_one(identity)) for identity in identities]
        if any(outcome.error is None for outcome in outcomes):
            if self.is_in(GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                self._prepare_rebalance(now)
            else:
                self._complete_if_all_joined(now)
        return outcomes, self._drain()

    def _leave_one(self, identity: Identity) -> GroupError | None:
        member_id, instance_id = identity
        if not member_id:
            # An administrator removes a static member by its instance id alone.
            member_id = (self.roster.instance(instance_id) if instance_id is not None else None) or ""
        if member_id in self.roster.pending:
            self._drop_pending(member_id)
            return None
        try:
            self._drop(self.check_member(member_id, instance_id).member_id)
        except GroupError as error:
            return error
        return None

    # --- offsets and deletion ---------------------------------------------------------------------------

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now: Now) -> None:
        """May this sender commit offsets now? If so it is alive."""
        self._check_alive()
        if generation < 0 and self.is_in(GroupState.EMPTY):
            return  # An administrator, or a consumer that chooses its partitions itself.
        if generation < 0 and not member_id and instance_id is None:
            raise UnknownMemberIdError(f"Group {self.group_id} has members: only they may commit.")
        member = self._check_generation(member_id, instance_id, generation)
        if self.is_in(GroupState.COMPLETING_REBALANCE):
            raise RebalanceInProgressError(f"Group {self.group_id} rebalances: commit after the next sync.")
        self._touch(member, now)

    def check_offset_deletion(self) -> None:
        if self.is_in(GroupState.DEAD):
            raise GroupIdNotFoundError(f"There is no group {self.group_id}.")
        if not self.is_in(GroupState.EMPTY) and self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise GroupNotEmptyError(f"Group {self.group_id} has members whose topics are not known.")

    def begin_deletion(self, now: Now) -> None:
        if self.is_in(GroupState.DEAD):
            raise GroupIdNotFoundError(f"There is no group {self.group_id}.")
        if not self.is_in(GroupState.EMPTY):
            raise GroupNotEmptyError(f"Group {self.group_id} still has members: stop them first.")
        # The time it became empty is kept, in case the log refuses and the group lives on.
        self.state = GroupState.DEAD

    def cancel_deletion(self) -> None:
        assert self.is_in(GroupState.DEAD)
        self.state = GroupState.EMPTY

    # --- time -------------------------------------------------------------------------------------------

    def resume(self, now: Now) -> list[Effect]:
        """After the log was read: everybody gets a whole session, and nobody has to rejoin unless we are
        too many.
        """
        for member in self.roster.members.values():
            self._touch(member, now)
        if len(self.roster) > self._settings.members_max:
            self._prepare_rebalance(now)
        return self._drain()

    def tick(self, now: Now) -> list[Effect]:
        while (due := self._deadlines.pop_due(now.ms)) is not None:
            if due is GroupTimer.JOIN:
                self._on_join_deadline(now)
            elif due is GroupTimer.SYNC:
                self._on_sync_deadline(now)
            else:
                assert isinstance(due, str)
                self._expire(due, now)
        return self._drain()

    def release_all(self, error: GroupError) -> list[Effect]:
        """The node stops: nobody is kept waiting."""
        for member in self.roster.members.values():
            self._release(member, error)
        return self._drain()

    # --- checks -----------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self.is_in(GroupState.DEAD):
            raise CoordinatorNotAvailableError(f"Group {self.group_id} is being deleted: try again.")

    def _check_generation(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        self._check_alive()
        member = self.check_member(member_id, instance_id)
        if generation != self.generation:
            raise IllegalGenerationError(
                f"Group {self.group_id} is at generation {self.generation}, not {generation}: join again."
            )
        return member


def _differ(asked: str | None, settled: str | None) -> bool:
    return asked is not None and settled is not None and asked != settled
