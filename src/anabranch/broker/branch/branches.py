"""BranchTopics: all of mode branch in one broker; loaded with the first topic of that mode.

It has the branch log (`tube`), opens the partitions, and begins and ends their reigns. On a node without others that is
all there is to it: each start is a reign, in a lane of its own, behind the line of before.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, cast
from uuid import UUID

from anabranch.broker.branch.branch_log import TUBE_FOLDER, BranchTube, Key
from anabranch.broker.branch.lanes.gaps import LaneGaps
from anabranch.broker.branch.lanes.lanes_to_log import clear_earlier, say_view
from anabranch.broker.branch.lanes.log_to_lanes import FirstLane, first_lane, first_rows
from anabranch.broker.branch.lanes.logs import LaneLogs
from anabranch.broker.branch.partition import BranchPartition, lane_key
from anabranch.broker.branch.removal import drop_removed, expired_start, forgotten
from anabranch.broker.branch.report import BranchCounts
from anabranch.broker.branch.views import BranchViews
from anabranch.broker.topics.partition import Partition
from anabranch.broker.topics.partition_opener import log_config
from anabranch.broker.topics.stored_state import partition_key
from anabranch.broker.workers import in_heavy_worker, to_its_end
from anabranch.cluster.metadata.entries import Entry
from anabranch.cluster.metadata.rows import Placement, Topic
from anabranch.config import TopicSettings
from anabranch.errors import NotOwnerError, StorageError
from anabranch.log.disk.checkpoint import RecoveryMark
from anabranch.modes.branch.lane_producers import LaneProducers
from anabranch.modes.branch.lines import Span
from anabranch.modes.branch.rows import (
    FIRST_LANE,
    NO_LANE,
    BranchRow,
    Lane,
    lane_limit,
    next_lane,
    opened,
    started,
)
from anabranch.values import BrokerId, Offset, TopicPartition

if TYPE_CHECKING:
    from anabranch.broker.branch.peers import BranchPeers
    from anabranch.broker.broker import Broker
    from anabranch.broker.peers.peers import Peers

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0
"""After so long it is tried again to begin a lane that the disk refused."""
Outcome = LaneProducers | StorageError
"""The producers of a line that may be gone on with, or why it may not."""


class BranchTopics:
    def __init__(self, broker: "Broker") -> None:
        """Raises StorageError, CorruptDataError."""
        self._broker = broker
        metadata = broker.metadata
        self.slot = metadata.table.slots.get(metadata.me.directory_id, 0)
        """Whose lanes are ours on a node without others: lane % 1024. One that never had any has the first."""
        self.tube = BranchTube(broker.files, broker.data_dir, broker.clock, broker.workers)
        topics = broker.metadata.table.topics_by_id
        self.tube.open(
            (lambda topic_id: topic_id not in topics) if broker.is_alone else _none_is_gone,
            broker.state.recovery_points.get(TUBE_FOLDER),
        )
        for topic in topics.values():
            self.tube.add_now(self._first_rows(topic))
        self.views = BranchViews(broker)
        self.counts = BranchCounts()
        self.gaps = LaneGaps(broker.workers)
        self.tube.subscribe(self._heard)
        self.tube.subscribe(self.views.heard)
        self.peers = self._meet(broker.peers) if broker.peers is not None else None
        """Who reigns among several; None: this node does."""
        if self.peers is None:
            me = BrokerId(broker.id)
            broker.leaders.of_branch = lambda key: (me, (me,))
        self._topic_ids = {topic.topic_id for topic in metadata.table.topics.values()}
        self._forgetting: asyncio.Task[None] | None = None
        metadata.subscribe(self._follow)
        self._is_stopping = False
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._retry: asyncio.Task[None] | None = None
        self.has_failed = False
        """A sync of the disk has failed: until a restart others had better reign."""

    def _meet(self, peers: "Peers") -> "BranchPeers":
        from anabranch.broker.branch.peers import BranchPeers  # A node without others reads none of it.

        return BranchPeers(self._broker, peers, self)

    # --- partitions ----------------------------------------------------------------------------------------------

    async def learn(self, topic: Topic) -> None:
        """Before partitions are opened: the first lanes of those that were kept in another way before. Raises
        StorageError."""
        await self.tube.add(self._first_rows(topic))

    @staticmethod
    def _first_rows(topic: Topic) -> list[BranchRow]:
        return [
            row
            for index, placement in enumerate(topic.placements)
            if topic.is_branched(index) and placement.has_joined_branches
            for row in first_rows((topic.topic_id, index), placement)
        ]

    def open_partition(
        self,
        partition_id: TopicPartition,
        topic_id: UUID,
        settings: TopicSettings,
        is_new: bool,
        placement: Placement,
    ) -> BranchPartition:
        """Any thread. Raises StorageError."""
        broker, core, key = self._broker, self._broker.core, (topic_id, partition_id.partition)
        state, opener, name = broker.state, broker.opener, partition_key(*key)
        branches = self.tube.branches(key)
        lanes = LaneLogs(
            broker.files,
            opener.folder_of(partition_id),
            log_config(settings, broker.settings),
            opener.index_cache,
        )
        clear_earlier(broker.files, lanes.folder, placement)
        known = {lane: state.recovery_points.get(lane_key(name, lane)) for lane in branches.opened}
        if placement.has_joined_branches:
            lane = first_lane(placement)
            if lane not in branches.opened:
                raise StorageError(f"{partition_id} waits for the branch log to say what its first lane is.")
            taken = FirstLane(broker.files, lanes.folder, placement).take(
                lanes.config, opener.index_cache, state.recovery_points.get(name)
            )
            known[lane] = taken or known[lane]
            say_view(broker.files, lanes.folder, placement)
        lanes.open(
            {lane: row.new_start for lane, row in branches.opened.items()},
            clean=is_new or state.was_clean,
            points={lane: point for lane, point in known.items() if point is not None},
            removed=branches.removed_below(
                tuple(Span(lane, row.new_start, lane_limit(lane)) for lane, row in branches.opened.items())
            ),
        )
        opener.has_lost_records = opener.has_lost_records or lanes.has_lost_records
        partition = BranchPartition(
            partition_id,
            topic_id,
            lanes,
            self.tube,
            self.gaps,
            settings,
            broker_id=BrokerId(broker.id),
            files=broker.files,
            clock=broker.clock,
            workers=broker.workers,
            sync_first=broker.settings.flush == "always",
            is_alone=broker.is_alone,
            branched_view=placement.view,
            generation_before=lambda: self._generation_before(partition),
            request_sync=core.syncer.request_in_turn,
            on_publish=core.wake_readers,
            finish=core.finish,
            finished=core.finished,
        )
        partition.producer_limits = opener.producer_limits
        if placement.floor:
            partition.archived = opener.prefix_of(partition_id, topic_id, placement.floor)
        partition.on_scarce = self._renew_soon
        partition.on_fenced = self._fenced
        if not partition.view.is_synced:
            opener.unsynced.append(partition)
        return partition

    def _generation_before(self, partition: BranchPartition) -> int:
        broker = self._broker
        if partition.topic_id not in broker.metadata.table.topics_by_id:
            return -1
        return broker.leaders.of(partition.topic_id, partition.id.partition).generation

    def recovery_marks(self) -> dict[str, RecoveryMark]:
        """Of what is no partition."""
        return {TUBE_FOLDER: self.tube.recovery_mark}

    def partitions(self) -> list[BranchPartition]:
        return [each for each in self._broker.topics.partitions() if isinstance(each, BranchPartition)]

    def find(self, key: Key) -> BranchPartition | None:
        found = self._broker.topics.find_partition(*key)
        return found if isinstance(found, BranchPartition) else None

    def _heard(self, rows: list[BranchRow]) -> None:
        by_key: dict[Key, list[BranchRow]] = {}
        for row in rows:
            by_key.setdefault(row.key, []).append(row)
        for key, heard in by_key.items():
            partition = self.find(key)
            if partition is not None:
                partition.refresh(heard)

    def _follow(self, offset: Offset, entry: Entry | None) -> None:
        """The table of topics has changed: of those that are gone nobody needs the rows."""
        if entry is not None and entry["type"] not in ("topic", "topic-removed"):
            return
        before, self._topic_ids = self._topic_ids, set(self._broker.metadata.table.topics_by_id)
        gone = before - self._topic_ids
        if gone and not self._is_stopping:
            self._forgetting = asyncio.get_running_loop().create_task(self._forget(gone, self._forgetting))

    async def _forget(self, gone: set[UUID], earlier: "asyncio.Task[None] | None") -> None:
        if earlier is not None:
            await asyncio.gather(earlier, return_exceptions=True)
        try:
            await self.tube.forget(gone)
        except StorageError as error:
            logger.warning("rows of deleted topics stay in the branch log: %s", error)

    # --- reigns --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """At a start: without others every partition is ours, before the first request comes. Where the disk refuses a
        lane, records can be read, and it is tried again."""
        if not self._broker.is_alone:
            return
        partitions = self.partitions()
        rows, outcomes = self._prepare(partitions)
        try:
            self.tube.add_now(row for row, outcome in zip(rows, outcomes, strict=True) if _is_well(outcome))
        except StorageError as error:
            outcomes = [error] * len(rows)
        if self._enter(partitions, rows, outcomes) is not None:
            self._retry = asyncio.get_running_loop().create_task(self._begin_later())

    async def ready(self, topic_id: UUID) -> None:
        """A topic was made, or has more partitions: without others, begin at once. Raises StorageError."""
        state = self._broker.topics.find(topic_id)
        if state is None or not self._broker.is_alone or self._is_stopping:
            return
        error = await to_its_end(self._begin_together(_without_reign(state.partitions)))
        if error is not None:
            raise error

    async def _begin_later(self) -> None:
        while waiting := _without_reign(self.partitions()):
            await asyncio.sleep(AGAIN_SECONDS)
            if self._is_stopping or self.tube.is_fenced:
                return
            await to_its_end(self._begin_together(waiting))

    async def _begin_together(self, partitions: list[BranchPartition]) -> StorageError | None:
        async with AsyncExitStack() as switching:
            for partition in partitions:
                await switching.enter_async_context(partition.switching)
            workers = self._broker.workers
            rows, outcomes = await in_heavy_worker(workers, lambda: self._prepare(partitions))
            try:
                await self.tube.add(
                    row for row, outcome in zip(rows, outcomes, strict=True) if _is_well(outcome)
                )
            except StorageError as error:
                outcomes = [error] * len(rows)
            return self._enter(partitions, rows, outcomes)

    def _prepare(self, partitions: list[BranchPartition]) -> tuple[list[BranchRow], list[Outcome]]:
        """Side by side, so that their syncs share what the disk does."""
        rows = [self.next_row(partition) for partition in partitions]
        pairs = zip(partitions, rows, strict=True)
        tasks = [partial(_prepare_one, partition, row) for partition, row in pairs]
        return rows, self._broker.workers.side_by_side(tasks)

    def _enter(
        self, partitions: list[BranchPartition], rows: list[BranchRow], outcomes: list[Outcome]
    ) -> StorageError | None:
        """Reign where everything is on the disk; the last error where it is not."""
        failed = None
        for partition, row, outcome in zip(partitions, rows, outcomes, strict=True):
            if isinstance(outcome, StorageError):
                failed = outcome
                logger.error("%s takes no records yet, and it is tried again: %s", partition.id, outcome)
            elif not partition.is_gone:
                partition.enter_reign(row, outcome)
        return failed

    def next_row(self, partition: BranchPartition) -> BranchRow:
        """A reign that goes on where this broker's line ends."""
        lane = self.next_lane(partition)
        return opened(partition.key, partition.tip, lane, time_ms=self._broker.clock.wall_ms())

    def next_lane(self, partition: BranchPartition, above: Iterable[Lane] = ()) -> Lane:
        """A lane that never was: above all that are known, and of our slot."""
        highest = max(
            partition.branches.highest, partition.lanes.highest, partition.tip.lane, *above, NO_LANE
        )
        if highest == NO_LANE and self._broker.is_alone:
            return FIRST_LANE
        return next_lane(self.slot, highest)

    def _fenced(self, partition: BranchPartition) -> None:
        """Among peers another takes over; a node alone has nobody, and serves readers until a restart."""
        self.has_failed = True
        if self.peers is not None:
            self._renew_soon(partition)

    def _renew_soon(self, partition: BranchPartition) -> None:
        """The numbers of its lane run out: have another before they do. Among peers the end of a reign is enough."""
        if partition.key not in self._tasks and not self._is_stopping:
            task = asyncio.get_running_loop().create_task(self._renew(partition))
            self._tasks[partition.key] = task
            task.add_done_callback(lambda _: self._tasks.pop(partition.key, None))

    async def _renew(self, partition: BranchPartition) -> None:
        try:
            await partition.end_reign(NotOwnerError(f"{partition.id} goes over to another lane: try again."))
            if self.peers is None and not self._is_stopping and not partition.is_gone:
                await partition.begin_reign(self.next_row(partition))
        except StorageError as error:
            logger.error("%s has no lane to write to until a restart: %s", partition.id, error)
        except Exception:
            logger.exception("another lane for %s failed: this is a defect", partition.id)

    async def stop(self) -> None:
        """The node stops: say where each of its reigns ends."""
        self._is_stopping = True
        if self._retry is not None:
            self._retry.cancel()
            await asyncio.gather(self._retry, return_exceptions=True)
        await self.gaps.stop()
        waited = [*self._tasks.values(), *([self._forgetting] if self._forgetting is not None else [])]
        await asyncio.gather(*waited, return_exceptions=True)
        error = NotOwnerError("The node stops: look for another primary.")
        reigning = [partition for partition in self.partitions() if partition.reign is not None]
        ended = await asyncio.gather(*(each.end_reign(error) for each in reigning), return_exceptions=True)
        for partition, outcome in zip(reigning, ended, strict=True):
            if isinstance(outcome, StorageError):
                logger.error("the end of %s is not in the branch log: %s", partition.id, outcome)
            elif isinstance(outcome, BaseException):
                logger.error("a reign could not end: this is a defect", exc_info=outcome)

    def close(self) -> None:
        try:
            self.tube.close()
        except StorageError as error:
            logger.error("the branch log was not closed cleanly: %s", error)

    # --- removal -------------------------------------------------------------------------------------------------

    async def delete_records(self, partition: Partition, offset: Offset) -> None:
        """Move the start of the line: a row, so that every branch and every broker knows it. Raises StorageError."""
        branch = cast(BranchPartition, partition)
        if offset <= branch.log.start_offset:
            return
        lane = next((span.lane for span in branch.line if offset <= span.end), branch.tip.lane)
        await self.tube.add([started(branch.key, lane, offset, self._broker.clock.wall_ms())])

    async def retain(self, partition: Partition, now_ms: int) -> None:
        """What is too old or too much goes; the primary says so for everybody. Raises StorageError."""
        branch = cast(BranchPartition, partition)
        if branch.reign is not None and not branch.log.fenced:
            start = expired_start(branch, now_ms)
            if start > branch.log.start_offset:
                await self.delete_records(branch, start)
        await drop_removed(branch, forgotten(branch, now_ms), self._broker.workers)


def _is_well(outcome: Outcome) -> bool:
    return not isinstance(outcome, StorageError)


def _prepare_one(partition: BranchPartition, row: BranchRow) -> Outcome:
    try:
        return partition.prepare_reign(row)
    except StorageError as error:
        return error


def _without_reign(partitions: Iterable[Partition | None]) -> list[BranchPartition]:
    return [each for each in partitions if isinstance(each, BranchPartition) and each.reign is None]


def _none_is_gone(topic_id: UUID) -> bool:
    """Among others a node learns only after its start which topics there are."""
    return False
