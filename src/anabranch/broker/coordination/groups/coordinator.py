"""The group coordinator as request handlers see it: plain values in, plain values out, errors raised.

`join`, `sync` and whatever writes offsets wait; the rest answers at once. A handler that is cancelled while
it waits (its client hung up) leaves the group as it is: the member's session decides. An assignment is in the
log before `sync` hands it out, an offset before `commit` returns and before `fetch` shows it.
"""

import asyncio
from collections.abc import Collection, Iterable

from anabranch.broker.coordination.groups.offset_coordinator import OffsetCoordinator
from anabranch.broker.coordination.groups.shard import Shard
from anabranch.coordination.groups.group_base import GroupState
from anabranch.coordination.groups.messages import (
    DescribedGroup,
    Identity,
    JoinAnswer,
    JoinRequest,
    LeaveOutcome,
    ListedGroup,
    Standing,
    SyncAnswer,
    SyncRequest,
)
from anabranch.errors import (
    GroupIdNotFoundError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    UnknownMemberIdError,
)

_DESCRIBE_SAYS_NOT_FOUND_FROM = 6


class GroupCoordinator(OffsetCoordinator):
    # --- members ----------------------------------------------------------------------------------------

    async def join(self, request: JoinRequest) -> JoinAnswer:
        shard = self._named(request.group_id)
        self._check_session_timeout(request.session_timeout_ms)
        if request.member_id and request.group_id not in shard.table.groups:
            raise UnknownMemberIdError(f"There is no group {request.group_id}: join without a member id.")
        group = shard.table.find_or_add(request.group_id, self._now())
        waiter: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._carry_out(shard, group, group.join(request, waiter, self._now()))
        answer = _raised_if_error(await waiter)
        assert isinstance(answer, JoinAnswer)
        return answer

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        shard = self._named(request.group_id)
        group = shard.table.groups.get(request.group_id)
        if group is None or group.is_in(GroupState.EMPTY):
            raise UnknownMemberIdError(f"Group {request.group_id} has no members: join again.")
        waiter: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._carry_out(shard, group, group.sync(request, waiter, self._now()))
        answer = _raised_if_error(await waiter)
        assert isinstance(answer, SyncAnswer)
        return answer

    def heartbeat(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None = None
    ) -> None:
        """Returns if all is well. While groups are being read back it always is: no session has started."""
        _check_name(group_id)
        shard = self._own(group_id)
        if shard.is_loading:
            return
        group = shard.table.groups.get(group_id)
        if group is None:
            raise UnknownMemberIdError(f"There is no group {group_id}: join again.")
        try:
            group.heartbeat(member_id, instance_id, generation, self._now())
        finally:
            self._set_deadline(shard, group)

    def standing(self, group_id: str, member_id: str) -> Standing:
        """What a member would know if it had remembered; asking is its heartbeat."""
        shard = self._named(group_id)
        group = shard.table.groups.get(group_id)
        if group is None:
            raise UnknownMemberIdError(f"There is no group {group_id}: join again.")
        try:
            return group.standing(member_id, self._now())
        finally:
            self._set_deadline(shard, group)

    def leave(self, group_id: str, identities: Iterable[Identity]) -> list[LeaveOutcome]:
        """One outcome per identity, in their order."""
        shard = self._named(group_id)
        group = shard.table.groups.get(group_id)
        if group is None:
            error = UnknownMemberIdError(f"There is no group {group_id}.")
            return [LeaveOutcome(identity, error) for identity in identities]
        outcomes, effects = group.leave(list(identities), self._now())
        self._carry_out(shard, group, effects)
        return outcomes

    # --- questions and deletion -------------------------------------------------------------------------

    def list_groups(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[ListedGroup]:
        """The groups coordinated here. Filters are sets of names, in any case; an empty one lets everything pass."""
        self._check_all_ready()
        wanted_states = {state.lower() for state in states}
        wanted_types = {one.lower() for one in types}
        return [
            listed
            for shard in self._shards.values()
            for listed in (group.listed() for group in shard.table.groups.values())
            if (not wanted_states or listed.state.lower() in wanted_states)
            and (not wanted_types or listed.group_type in wanted_types)
        ]

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        """A group that does not exist is an error from version 6 on, and a dead group before."""
        group = self._ready(group_id).table.groups.get(group_id)
        if group is not None:
            return group.described()
        if version >= _DESCRIBE_SAYS_NOT_FOUND_FROM:
            raise GroupIdNotFoundError(f"Group {group_id} not found.")
        return DescribedGroup(group_id, GroupState.DEAD.value)

    async def delete_group(self, group_id: str) -> None:
        shard = self._ready(group_id)
        group = shard.table.groups.get(group_id)
        if group is None:
            raise GroupIdNotFoundError(f"Group {group_id} not found.")
        group.begin_deletion(self._now())
        error = await self._submit_deletion(shard, group)
        if error is not None:
            raise error

    # --- checks -----------------------------------------------------------------------------------------

    def _named(self, group_id: str) -> Shard:
        """The shard of a group that may have members."""
        _check_name(group_id)
        return self._ready(group_id)

    def _check_session_timeout(self, session_timeout_ms: int) -> None:
        shortest, longest = self._settings.session_timeout_ms_min, self._settings.session_timeout_ms_max
        if not shortest <= session_timeout_ms <= longest:
            raise InvalidSessionTimeoutError(
                f"A session of {session_timeout_ms} ms is refused; it may be {shortest} to {longest} ms."
            )


def _check_name(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupIdError("A group needs a name.")


def _raised_if_error(outcome: object) -> object:
    if isinstance(outcome, Exception):
        # Several members may be given one error: each raises it without the traces of the others.
        raise outcome.with_traceback(None)
    return outcome
