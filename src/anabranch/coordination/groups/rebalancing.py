"""The phases of a rebalance: gather the members, begin a generation, hand out what the leader assigned.

A step between `group_base` (what a group is) and the events of `joining` and `classic_group`, which call down
into here. Every path that takes a member away or adds one ends in `_rebalance_or_complete` or
`_complete_if_all_joined`.
"""

from dataclasses import dataclass

from anabranch.coordination.groups.group_base import GroupBase, GroupState, GroupTimer
from anabranch.coordination.groups.messages import EmptySaved, Now, Save, Saved, SyncAnswer
from anabranch.coordination.groups.roster import Member
from anabranch.errors import RebalanceInProgressError, UnknownMemberIdError


@dataclass(slots=True)
class _InitialDelay:
    """An empty group waits a little for more members, again for each newcomer, up to the rebalance
    timeout.
    """

    delay_ms: int
    left_ms: int
    newcomer: bool = False


class RebalancingGroup(GroupBase):
    _initial_delay: _InitialDelay | None = None
    _saving_generation: int | None = None
    """The generation whose assignment is on its way to the log; a leader that asks again must not save
    another.
    """

    # --- gathering --------------------------------------------------------------------------------------

    def _rebalance_or_complete(self, now: Now) -> None:
        if self.is_in(GroupState.PREPARING_REBALANCE):
            self._complete_if_all_joined(now)
        else:
            self._prepare_rebalance(now)

    def _prepare_rebalance(self, now: Now) -> None:
        assert not self.is_in(GroupState.PREPARING_REBALANCE, GroupState.DEAD)
        if self.is_in(GroupState.COMPLETING_REBALANCE):
            self._refuse_syncs(RebalanceInProgressError("The group rebalances: join again."), now)
        self._pending_sync.clear()
        self._deadlines.cancel(GroupTimer.SYNC)
        is_first = self.is_in(GroupState.EMPTY)
        self._transition(GroupState.PREPARING_REBALANCE, now)
        if is_first:
            self._begin_initial_delay(now)
        elif self.roster.all_joined():
            self._complete_join(now)
        else:
            self._await_joins(now)

    def _complete_if_all_joined(self, now: Now) -> None:
        """The initial delay runs to its end even if everybody known is here: it waits for the unknown."""
        is_first = self._previous_state is GroupState.EMPTY
        if self.is_in(GroupState.PREPARING_REBALANCE) and not is_first and self.roster.all_joined():
            self._complete_join(now)

    def _await_joins(self, now: Now) -> None:
        self._deadlines.set(GroupTimer.JOIN, now.ms + self.roster.rebalance_timeout_ms())

    def _begin_initial_delay(self, now: Now) -> None:
        delay_ms = self._settings.initial_rebalance_delay_ms
        left_ms = max(self.roster.rebalance_timeout_ms() - delay_ms, 0)
        self._initial_delay = _InitialDelay(delay_ms, left_ms)
        self._deadlines.set(GroupTimer.JOIN, now.ms + delay_ms)

    def _on_join_deadline(self, now: Now) -> None:
        delay = self._initial_delay
        if delay is None or not delay.newcomer or delay.left_ms == 0:
            self._complete_join(now)
            return
        next_ms = min(self._settings.initial_rebalance_delay_ms, delay.left_ms)
        self._initial_delay = _InitialDelay(next_ms, max(delay.left_ms - delay.delay_ms, 0))
        self._deadlines.set(GroupTimer.JOIN, now.ms + next_ms)

    # --- a new generation -------------------------------------------------------------------------------

    def _complete_join(self, now: Now) -> None:
        self._deadlines.cancel(GroupTimer.JOIN)
        self._initial_delay = None
        for member in self.roster.not_joined():
            if member.instance_id is None:
                self._drop(member.member_id)
        if self.roster.members and not self.roster.elect_joined_leader():
            # Only static members are left and none has come back yet: their sessions decide, so ask again
            # later.
            self._await_joins(now)
            return
        self.generation += 1
        if self.roster.members:
            self._begin_generation(now)
        else:
            self._become_empty(now)

    def _begin_generation(self, now: Now) -> None:
        self.protocol_name = self.roster.select_protocol()
        self._topics = self._read_topics()
        self._transition(GroupState.COMPLETING_REBALANCE, now)
        for member in self.roster.members.values():
            answer = self._join_answer(member.member_id, members=self.is_leader(member.member_id))
            self._answer(self.roster.release_join(member), answer)
            self._touch(member, now)
            member.is_new = False
        self._pending_sync = set(self.roster.members)
        self._deadlines.set(GroupTimer.SYNC, now.ms + self.roster.rebalance_timeout_ms())

    def _become_empty(self, now: Now) -> None:
        self.protocol_name = None
        self._topics = self._read_topics()
        self._transition(GroupState.EMPTY, now)
        self._save({}, EmptySaved(self.generation))

    def _save(self, assignments: dict[str, bytes], saved: Saved) -> None:
        self.is_stored = True
        self._effects.append(Save(self.to_record(assignments), saved))

    # --- handing out ------------------------------------------------------------------------------------

    def _hand_out(self, assignments: dict[str, bytes], now: Now) -> None:
        for member in self.roster.members.values():
            self.roster.assign(member, assignments.get(member.member_id, b""))
            waiter, member.sync_waiter = member.sync_waiter, None
            if waiter is not None:
                self._answer(waiter, self._sync_answer(member))
                self._touch(member, now)  # A session that ran out while we held the request was let pass.

    def _refuse_syncs(self, error: Exception, now: Now) -> None:
        for member in self.roster.members.values():
            self.roster.assign(member, b"")
            waiter, member.sync_waiter = member.sync_waiter, None
            if waiter is not None:
                self._answer(waiter, error)
                self._touch(member, now)

    def _sync_answer(self, member: Member) -> SyncAnswer:
        return SyncAnswer(self.protocol_type, self.protocol_name, member.assignment)

    # --- going ------------------------------------------------------------------------------------------

    def _drop(self, member_id: str) -> None:
        """Take a member out, telling whatever request of its we hold; what that means for the rest is the
        caller's.
        """
        member = self.roster.members[member_id]
        self._release(
            member, UnknownMemberIdError(f"Member {member_id} is no longer in the group: join again.")
        )
        self.roster.remove(member_id)
        self._pending_sync.discard(member_id)
        self._deadlines.cancel(member_id)

    def _drop_pending(self, member_id: str) -> None:
        self.roster.forget_pending(member_id)
        self._deadlines.cancel(member_id)

    def _expire(self, member_id: str, now: Now) -> None:
        member = self.roster.members.get(member_id)
        if member is not None:
            if member.is_waiting:
                return  # Its session starts again with the answer to the request we hold.
            self._drop(member_id)
        self.roster.forget_pending(member_id)
        if member is not None and self.is_in(GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance(now)
        elif self.is_in(GroupState.PREPARING_REBALANCE) and self.roster.all_joined():
            self._complete_join(now)

    def _on_sync_deadline(self, now: Now) -> None:
        """Who has not asked for its assignment by now will not work on it."""
        late = self._pending_sync & self.roster.members.keys()
        self._pending_sync = set()
        for member_id in sorted(late):
            self._drop(member_id)
        if late:
            self._prepare_rebalance(now)
