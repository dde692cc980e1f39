"""What all of the coordinator's work shares: which groups are its own, carrying out effects, writing in order, and
keeping the time.

A group lies in the shard that `shard_of` names. A shard is taken over, filled from the log with `replay`, and
welcomes requests once it is `loaded`; it may be given up at any time, which answers everybody who waits.

Runs on the loop's thread only. Every change of a group ends in `_carry_out`; every offset changes in the
`apply` of a write that the log has confirmed.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Any

from anabranch.broker.coordination.groups.append_lane import Append
from anabranch.broker.coordination.groups.shard import Shard, not_coordinator
from anabranch.clock import Clock
from anabranch.coordination.groups.classic_group import ClassicGroup
from anabranch.coordination.groups.deadlines import Deadlines
from anabranch.coordination.groups.group_base import check_length
from anabranch.coordination.groups.group_memory import GroupMemory, OffsetMemory
from anabranch.coordination.groups.group_table import GroupTable
from anabranch.coordination.groups.messages import Answer, Effect, LogRecord, Now, Save
from anabranch.coordination.groups.settings import GroupSettings
from anabranch.errors import CoordinatorLoadingError, CoordinatorNotAvailableError
from anabranch.values import Generation, TopicPartition

_log = logging.getLogger(__name__)


THE_ONLY_SHARD = 0
"""Where all groups lie if one broker coordinates them all."""


def the_only_shard(group_id: str) -> int:
    return THE_ONLY_SHARD


class CoordinatorBase(ABC):
    def __init__(
        self,
        append: Append,
        clock: Clock,
        settings: GroupSettings,
        new_id: Callable[[], str],
        shard_of: Callable[[str], int] = the_only_shard,
    ) -> None:
        self.on_deadline_moved: Callable[[], None] | None = None
        """Called when `next_deadline_ms` may have become sooner; set by whoever drives `tick`."""
        self._append = append
        self._clock = clock
        self._settings = settings
        self._new_id = new_id
        self.memory = GroupMemory(settings.memory_bytes_max)
        self.offset_memory = OffsetMemory(settings.offsets_memory_bytes_max)
        self._shard_of = shard_of
        self._shards: dict[int, Shard] = {}
        self._deadlines: Deadlines[tuple[int, str]] = Deadlines()
        self._next_check_ms = clock.monotonic_ms() + settings.offsets_retention_check_interval_ms
        self._is_closed = False

    # --- life -------------------------------------------------------------------------------------------

    def take_over(self, index: int, generation: Generation) -> Shard:
        """These groups are ours from now on, with nothing of what was here before; `replay` fills them in."""
        self.give_up(index)
        shard = self._shards[index] = Shard(
            index, generation, GroupTable(self._settings, self._new_id, self.memory, self.offset_memory)
        )
        return shard

    def replay(self, shard: Shard, key: bytes, value: bytes | None) -> None:
        """One record of the log, in its order, before `loaded`."""
        assert shard.is_loading
        shard.table.replay(key, value, self._now())

    def loaded(self, shard: Shard) -> None:
        """The whole log has been replayed: sessions start, requests are welcome."""
        assert shard.is_loading
        assert self._shards.get(shard.index) is shard, "a load that was overtaken has ended"
        self._drop_strangers(shard)
        shard.is_loading = False
        for group in list(shard.table.groups.values()):
            self._carry_out(shard, group, group.resume(self._now()))
        if self.on_deadline_moved is not None:
            self.on_deadline_moved()

    def _drop_strangers(self, shard: Shard) -> None:
        """Groups that were written while the log had another number of partitions: nobody finds them here."""
        strange = [group_id for group_id in shard.table.groups if self._shard_of(group_id) != shard.index]
        for group_id in strange:
            shard.table.remove(group_id)
        if strange:
            _log.warning(
                "%d groups of partition %d belong elsewhere and are passed over, the first is %s",
                len(strange),
                shard.index,
                strange[0],
            )

    def shard(self, index: int) -> Shard | None:
        return self._shards.get(index)

    def give_up(self, index: int) -> None:
        """Somebody else coordinates these groups: whoever waits is sent there, and nothing is kept."""
        shard = self._shards.pop(index, None)
        if shard is None:
            return
        shard.give_up()
        for group in shard.table.groups.values():
            self._deadlines.cancel((index, group.group_id))
            self._carry_out(shard, group, group.release_all(not_coordinator(group.group_id)))
        shard.table.forget_all()

    def close(self) -> None:
        """Answer everybody who waits; writes under way still end and answer whoever asked for them."""
        self._is_closed = True
        for shard in self._shards.values():
            for group in list(shard.table.groups.values()):
                error = CoordinatorNotAvailableError("The node stops: find the coordinator again.")
                self._carry_out(shard, group, group.release_all(error))

    # --- where a group is ---------------------------------------------------------------------------------

    def _check_running(self) -> None:
        if self._is_closed:
            raise CoordinatorNotAvailableError("The node stops: find the coordinator again.")

    def _own(self, group_id: str) -> Shard:
        """The shard of a group that is coordinated here, loading or not."""
        self._check_running()
        check_length(group_id)
        shard = self._shards.get(self._shard_of(group_id))
        if shard is None:
            raise not_coordinator(group_id)
        return shard

    def _ready(self, group_id: str) -> Shard:
        """The shard of a group that may be asked for."""
        shard = self._own(group_id)
        if shard.is_loading:
            raise CoordinatorLoadingError("The groups are still being read: try again.")
        return shard

    def ready_shards(self) -> list[Shard]:
        """Those whose groups are known; on a node that is alone, the one that has them all."""
        return [shard for shard in self._shards.values() if not shard.is_loading]

    def _check_all_ready(self) -> None:
        self._check_running()
        if any(shard.is_loading for shard in self._shards.values()):
            raise CoordinatorLoadingError("Some groups are still being read: try again.")

    # --- time -------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do, on the monotonic clock."""
        if self._is_closed or not any(not shard.is_loading for shard in self._shards.values()):
            return None
        next_ms = self._deadlines.next_ms()
        return self._next_check_ms if next_ms is None else min(self._next_check_ms, next_ms)

    def tick(self, now_ms: int) -> None:
        """Do what is due by now."""
        now = Now(now_ms, self._clock.wall_ms())
        while (due := self._deadlines.pop_due(now_ms)) is not None:
            index, group_id = due
            shard = self._shards[index]
            group = shard.table.groups.get(group_id)
            if group is not None:
                self._carry_out(shard, group, group.tick(now))
        if now_ms >= self._next_check_ms:
            self._next_check_ms = now_ms + self._settings.offsets_retention_check_interval_ms
            self._expire_offsets(now)

    def _now(self) -> Now:
        return Now(self._clock.monotonic_ms(), self._clock.wall_ms())

    @abstractmethod
    def _expire_offsets(self, now: Now) -> None:
        """Delete the offsets that nobody wants any more; `OffsetCoordinator` knows which."""

    # --- effects ----------------------------------------------------------------------------------------

    def _carry_out(self, shard: Shard, group: ClassicGroup, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                assert isinstance(effect.waiter, asyncio.Future)
                _wake(effect.waiter, effect.outcome)
            else:
                self._save(shard, group, effect)
        self._settle(shard, group)

    def _save(self, shard: Shard, group: ClassicGroup, save: Save) -> None:
        def finish(error: Exception | None) -> None:
            if shard.is_given_up:
                return  # Whoever waited for this has been told, and the group is no more.
            if error is None:
                effects = group.on_saved(save.saved, self._now())
            else:
                _log.warning("Group %s could not be written: %s", group.group_id, error)
                effects = group.on_save_failed(save.saved, error, self._now())
            self._carry_out(shard, group, effects)

        shard.lane(group.group_id, self._append).submit([save.record], finish)

    def _settle(self, shard: Shard, group: ClassicGroup) -> None:
        """After any change: remember the group's next deadline, and forget the group if nothing is left of
        it.
        """
        if shard.is_given_up or shard.table.groups.get(group.group_id) is not group:
            return  # Deleted meanwhile; a new group may have its name.
        shard.drop_idle_lane(group.group_id)
        if group.group_id not in shard.lanes and shard.table.forget_if_unused(group.group_id):
            self._deadlines.cancel((shard.index, group.group_id))
            return
        self._set_deadline(shard, group)

    def _set_deadline(self, shard: Shard, group: ClassicGroup) -> None:
        next_ms = group.next_deadline_ms()
        key = shard.index, group.group_id
        if next_ms is None:
            self._deadlines.cancel(key)
        elif next_ms != self._deadlines.get(key):
            self._deadlines.set(key, next_ms)
            if self.on_deadline_moved is not None:
                self.on_deadline_moved()

    # --- writes -----------------------------------------------------------------------------------------

    def _submit(
        self,
        shard: Shard,
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
            shard.drop_idle_lane(group_id)
            group = shard.table.groups.get(group_id)
            if group is not None:
                self._settle(shard, group)
            _wake(done, error)

        if records:
            shard.lane(group_id, self._append).submit(records, finish, offsets)
        else:
            finish(None)  # The log has never heard of it, so it need not hear of its end.
        return done


def _wake(waiter: "asyncio.Future[Any]", outcome: object) -> None:
    """Errors travel as results: one that nobody came to fetch, because its client hung up, is no defect."""
    if not waiter.done():
        waiter.set_result(outcome)
