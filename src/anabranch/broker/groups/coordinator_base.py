"""What all of the coordinator's work shares: carrying out effects, writing in order, and keeping the time.

Runs on the loop's thread only. Every change of a group ends in `_carry_out`; every offset changes in the
`apply` of a write that the log has confirmed.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Any

from anabranch.broker.groups.append_lane import Append, AppendLane
from anabranch.broker.groups.classic_group import ClassicGroup
from anabranch.broker.groups.deadlines import Deadlines
from anabranch.broker.groups.group_table import GroupTable
from anabranch.broker.groups.messages import Answer, Effect, LogRecord, Now, Save
from anabranch.broker.groups.settings import GroupSettings
from anabranch.clock import Clock
from anabranch.errors import CoordinatorLoadingError, CoordinatorNotAvailableError
from anabranch.values import TopicPartition

_log = logging.getLogger(__name__)


class CoordinatorBase(ABC):
    def __init__(
        self, append: Append, clock: Clock, settings: GroupSettings, new_id: Callable[[], str]
    ) -> None:
        self.on_deadline_moved: Callable[[], None] | None = None
        """Called when `next_deadline_ms` may have become sooner; set by whoever drives `tick`."""
        self._append = append
        self._clock = clock
        self._settings = settings
        self._table = GroupTable(settings, new_id)
        self._lanes: dict[str, AppendLane] = {}
        self._deadlines: Deadlines[str] = Deadlines()
        self._next_check_ms = clock.monotonic_ms() + settings.offsets_retention_check_interval_ms
        self._is_loading = True
        self._is_closed = False

    # --- life -------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """One record of the log, in its order, before `loaded`."""
        assert self._is_loading
        self._table.replay(key, value, self._now())

    def loaded(self) -> None:
        """The whole log has been replayed: sessions start, requests are welcome."""
        assert self._is_loading
        self._is_loading = False
        for group in list(self._table.groups.values()):
            self._carry_out(group, group.resume(self._now()))

    def close(self) -> None:
        """Answer everybody who waits; writes under way still end and answer whoever asked for them."""
        self._is_closed = True
        for group in list(self._table.groups.values()):
            error = CoordinatorNotAvailableError("The node stops: find the coordinator again.")
            self._carry_out(group, group.release_all(error))

    def _check_open(self) -> None:
        if self._is_closed:
            raise CoordinatorNotAvailableError("The node stops: find the coordinator again.")
        if self._is_loading:
            raise CoordinatorLoadingError("The groups are still being read: try again.")

    # --- time -------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do, on the monotonic clock."""
        if self._is_loading or self._is_closed:
            return None
        next_ms = self._deadlines.next_ms()
        return self._next_check_ms if next_ms is None else min(self._next_check_ms, next_ms)

    def tick(self, now_ms: int) -> None:
        """Do what is due by now."""
        now = Now(now_ms, self._clock.wall_ms())
        while (group_id := self._deadlines.pop_due(now_ms)) is not None:
            group = self._table.groups.get(group_id)
            if group is not None:
                self._carry_out(group, group.tick(now))
        if now_ms >= self._next_check_ms:
            self._next_check_ms = now_ms + self._settings.offsets_retention_check_interval_ms
            self._expire_offsets(now)

    def _now(self) -> Now:
        return Now(self._clock.monotonic_ms(), self._clock.wall_ms())

    @abstractmethod
    def _expire_offsets(self, now: Now) -> None:
        """Delete the offsets that nobody wants any more; `OffsetCoordinator` knows which."""

    # --- effects ----------------------------------------------------------------------------------------

    def _carry_out(self, group: ClassicGroup, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                assert isinstance(effect.waiter, asyncio.Future)
                _wake(effect.waiter, effect.outcome)
            else:
                self._save(group, effect)
        self._settle(group)

    def _save(self, group: ClassicGroup, save: Save) -> None:
        def finish(error: Exception | None) -> None:
            if error is None:
                effects = group.on_saved(save.saved, self._now())
            else:
                _log.warning("Group %s could not be written: %s", group.group_id, error)
                effects = group.on_save_failed(save.saved, error, self._now())
            self._carry_out(group, effects)

        self._lane(group.group_id).submit([save.record], finish)

    def _settle(self, group: ClassicGroup) -> None:
        """After any change: remember the group's next deadline, and forget the group if nothing is left of
        it.
        """
        if self._table.groups.get(group.group_id) is not group:
            return  # Deleted meanwhile; a new group may have its name.
        self._drop_idle_lane(group.group_id)
        if group.group_id not in self._lanes and self._table.forget_if_unused(group.group_id):
            self._deadlines.cancel(group.group_id)
            return
        self._set_deadline(group)

    def _set_deadline(self, group: ClassicGroup) -> None:
        next_ms = group.next_deadline_ms()
        if next_ms is None:
            self._deadlines.cancel(group.group_id)
        elif next_ms != self._deadlines.get(group.group_id):
            self._deadlines.set(group.group_id, next_ms)
            if self.on_deadline_moved is not None:
                self.on_deadline_moved()

    # --- writes -----------------------------------------------------------------------------------------

    def _lane(self, group_id: str) -> AppendLane:
        lane = self._lanes.get(group_id)
        if lane is None:
            lane = self._lanes[group_id] = AppendLane(group_id, self._append)
        return lane

    def _drop_idle_lane(self, group_id: str) -> None:
        lane = self._lanes.get(group_id)
        if lane is not None and lane.is_idle:
            del self._lanes[group_id]

    def _in_flight(self, group_id: str) -> set[TopicPartition]:
        lane = self._lanes.get(group_id)
        return lane.in_flight() if lane is not None else set()

    def _submit(
        self,
        group_id: str,
        records: list[LogRecord],
        offsets: Collection[TopicPartition],
        apply: Callable[[], None],
        undo: Callable[[], None] = lambda: None,
    ) -> "asyncio.Future[Exception | None]":
        """Write, then apply or undo. What comes back may be dropped: the write goes on without its asker."""
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def finish(error: Exception | None) -> None:
            (apply if error is None else undo)()
            self._drop_idle_lane(group_id)
            group = self._table.groups.get(group_id)
            if group is not None:
                self._settle(group)
            _wake(done, error)

        if records:
            self._lane(group_id).submit(records, finish, offsets)
        else:
            finish(None)  # The log has never heard of it, so it need not hear of its end.
        return done


def _wake(waiter: "asyncio.Future[Any]", outcome: object) -> None:
    """Errors travel as results: one that nobody came to fetch, because its client hung up, is no defect."""
    if not waiter.done():
        waiter.set_result(outcome)
