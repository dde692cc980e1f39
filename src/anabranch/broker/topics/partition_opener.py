"""PartitionOpener: from a topic's entry to a partition that can be written to and read.

Opens (and if need be recovers) the log, gives it the node's mode, and rebuilds the table of producers from its
snapshot plus the batch headers behind it. A snapshot is written only when a producer with an id has written since
the last one; the recovery points say how far it holds, so that the headers of other records need not be read. Whatever
recovery had to cut or move aside is said in the log file. May run in a worker: a partition belongs to nobody before it
is handed over. A partition that several brokers keep is made one of a ring by ring/opener.py.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from anabranch.broker.topics.archived_prefix import ArchivedPrefix
from anabranch.broker.topics.partition import Partition
from anabranch.broker.topics.stored_state import StoredState, partition_key
from anabranch.broker.topics.topic_folders import BRANCH_FILE, LEAVING_FILE, RING_FILE, clear_folder
from anabranch.broker.workers import in_heavy_worker
from anabranch.broker.write.core import BrokerCore
from anabranch.broker.write.producer_limits import SNAPSHOT_OUTDATED, ProducerLimits
from anabranch.cluster.metadata.rows import NO_MOVE, Placement, Topic
from anabranch.config import NodeSettings, TopicSettings
from anabranch.errors import AnabranchError, StorageError
from anabranch.log.disk.checkpoint import (
    NO_PRODUCERS_MARK,
    ProducersMark,
    RecoveryPoint,
    read_checkpoint,
    write_checkpoint,
)
from anabranch.log.disk.files import Files
from anabranch.log.log import Log
from anabranch.log.names import LOG
from anabranch.log.segment.index import IndexCache
from anabranch.log.settings import LogConfig
from anabranch.modes.solo import SoloMode
from anabranch.values import LANE_BITS, BrokerId, Offset, TopicPartition

if TYPE_CHECKING:
    from anabranch.broker.ring.opener import RingOpener

logger = logging.getLogger(__name__)

PRODUCERS_FILE = "producers"
NO_SNAPSHOT = Offset(0)
"""No snapshot says the same as one made before the first record."""
OpenBranch = Callable[[TopicPartition, UUID, TopicSettings, bool, Placement], Partition]


def is_ring(placement: Placement) -> bool:
    """Whether others keep the partition too, shall, or have."""
    replicas, target = placement.replicas, placement.target
    return len(replicas) > 1 or target is not None or placement.view > 0


def log_config(settings: TopicSettings, node: NodeSettings) -> LogConfig:
    """A topic's configs as its logs understand them."""
    return LogConfig(
        segment_bytes=settings.segment_bytes,
        segment_ms=settings.segment_ms,
        index_interval_bytes=settings.index_interval_bytes,
        index_bytes_max=settings.segment_index_bytes,
        retention_ms=settings.retention_ms,
        retention_bytes=settings.retention_bytes,
        compacted=settings.is_compacted,
        deleted=settings.is_deleted_by_age,
        delete_retention_ms=settings.delete_retention_ms,
        compaction_lag_ms_min=settings.min_compaction_lag_ms,
        compaction_lag_ms_max=settings.max_compaction_lag_ms,
        dirty_ratio_min=settings.min_cleanable_dirty_ratio,
        batch_bytes_max=node.batch_decompressed_bytes_max,
    )


class Found(NamedTuple):
    """What is known of a folder before its log is opened."""

    point: RecoveryPoint | None
    start: Offset
    is_new: bool
    is_stranger: bool

    @property
    def emptied(self) -> "Found":
        return self._replace(point=None, is_new=True)


class PartitionOpener:
    def __init__(
        self, core: BrokerCore, settings: NodeSettings, files: Files, data_dir: str, state: StoredState
    ) -> None:
        self._core = core
        self._settings = settings
        self.files = files
        self._data_dir = data_dir
        self._state = state
        self.index_cache = IndexCache()
        self.producer_limits = ProducerLimits(settings)
        self.unsynced: list[Partition] = []
        """What recovery found and may be in the page cache only."""
        self.open_object: Callable[[TopicPartition, UUID, TopicSettings], Partition] = _no_objects
        """Set by the broker: opens a partition whose records are in the object store."""
        self.prefix_of: Callable[[TopicPartition, UUID, Offset], ArchivedPrefix] = _no_prefix
        """Set by the broker: what lies in the object store below a floor."""
        self.need_branches: Callable[[], None] = _nothing_needed
        self.learn_branches: Callable[[Topic], Awaitable[None]] = _nothing_to_learn
        """Set by the broker: to be awaited before a partition of a topic is opened in mode branch."""
        self.open_branch: OpenBranch = _no_branches
        """Set by the broker: opens a partition in mode branch, perhaps in a worker, once `need_branches` was called."""
        self.doubted: list[TopicPartition] = []
        """What may lack records that were safe, and was not said yet."""
        self.has_lost_records = False
        """A log ends before its recovery point, which speaks of other records once the log has grown again."""
        self.losses_total = 0
        """Losses of records that were safe, as the start has found them."""

    @property
    def is_recovering(self) -> bool:
        """The last process did not stop cleanly: every log is looked at and synced before it opens."""
        return not self._state.was_clean

    def folder_of(self, partition_id: TopicPartition) -> str:
        return f"{self._data_dir}/{partition_id.folder}"

    def _has_log(self, partition_id: TopicPartition) -> bool:
        folder = self.folder_of(partition_id)
        return self.files.exists(folder) and any(name.endswith(LOG) for name in self.files.list(folder))

    def default_settings(self, overrides: Mapping[str, str]) -> TopicSettings:
        """The node's defaults, but for these."""
        return TopicSettings.from_overrides(self._settings, overrides)

    def open(
        self,
        partition_id: TopicPartition,
        topic_id: UUID,
        settings: TopicSettings,
        *,
        is_new: bool = False,
        always_sync: bool = False,
        precious: bool = False,
        shares_syncs: bool = False,
        start_offset: Offset = Offset(0),  # noqa: B008 - a number with a name, not a call that matters
        placement: Placement | None = None,
        is_stranger: bool = False,
    ) -> Partition:
        """Raises StorageError if the folder cannot be opened, CorruptDataError if it is `precious` and has lost
        something that was safe. With a `placement` on several brokers it becomes one of a ring; `is_stranger`: this
        disk is not the one that the placement names."""
        key = partition_key(topic_id, partition_id.partition)
        clean = is_new or self._state.was_clean
        start_offset = max(start_offset, self._state.start_offsets.get(key, Offset(0)))
        found = Found(self._state.recovery_points.get(key), start_offset, is_new, is_stranger)
        if placement is not None:
            found = self._looked_into(partition_id, key, settings, placement, found)
        point = found.point
        in_ring = placement is not None and (
            is_ring(placement) or self._has_been_in_a_ring(self.folder_of(partition_id))
        )
        if placement is not None and not clean:
            shares_syncs = self._rings.may_be_torn(self.folder_of(partition_id))
        log = Log.open(
            self.files,
            self.folder_of(partition_id),
            log_config(settings, self._settings),
            clean=clean,
            recovery_point=point,
            start_offset=found.start,
            index_cache=self.index_cache,
            precious=precious,
            shares_syncs=shares_syncs,
            was_in_lanes=placement is not None and placement.left != NO_MOVE,
            is_only_copy=not in_ring,
            is_start_sure=not in_ring and not precious and _has_been_here_only(placement),
        )
        if always_sync and not clean:
            log.sync()
        if placement is None and self._has_been_in_a_ring(log.folder):
            raise StorageError(
                f"{log.folder} was kept together with other brokers: start this one with --peer-listen, so that it "
                "finds them."
            )
        sync_first = always_sync or self._settings.flush == "always"
        _tell_recovery(partition_id, log)
        self.losses_total += len(log.damaged)
        if point is not None and log.end_offset < point.offset:
            self.has_lost_records = True
        partition = Partition(
            partition_id,
            topic_id,
            log,
            SoloMode(BrokerId(self._settings.broker_id), log.end_offset, sync_first=sync_first),
            settings,
            request_sync=self._core.syncer.request_in_turn,
            on_publish=self._core.wake_readers,
            finish=self._core.finish,
            finished=self._core.finished,
        )
        partition.producer_limits = self.producer_limits
        partition.has_gaps = _may_have_gaps(log, placement)
        self._know_archived(partition, placement)
        self._restore_producers(partition, point)
        if placement is not None and in_ring:
            partition.high_watermark = Offset(0)  # How far others have it is not known yet.
            log.firm_offset = min(point.synced, log.end_offset) if point is not None else Offset(0)
            self.join_ring(partition, placement, is_stranger=found.is_stranger, clean=clean)
        if not clean and not log.is_synced:
            self.unsynced.append(partition)
        return partition

    def _looked_into(
        self,
        partition_id: TopicPartition,
        key: str,
        settings: TopicSettings,
        placement: Placement,
        found: Found,
    ) -> Found:
        """What the folder has to do with the placement. Raises StorageError."""
        if placement.left != NO_MOVE:
            found = self._out_of_branches(partition_id, key, settings, placement, found)
        if self._is_of_before(partition_id, placement):
            clear_folder(self.files, self.folder_of(partition_id), "what it held is in the object store")
            found = found.emptied
        if is_ring(placement) and (found.is_new or not self._has_log(partition_id)):
            # Others fill it from the beginning. That it was known at the start and is not there means a loss: unless
            # it was known from a time before it was last in the object store.
            point, floor = found.point, placement.floor
            is_lost = point is not None and (not floor or point.offset > floor)
            return found._replace(point=None, start=floor, is_stranger=found.is_stranger or is_lost)
        if found.is_stranger and not self._has_log(partition_id):
            logger.error(
                "%s begins empty: its only copy was on another disk, with which this broker ran before",
                partition_id,
            )
        return found

    def _know_archived(self, partition: Partition, placement: Placement | None) -> None:
        """It has come from the object store: what is below its floor is there, and producers go on from there."""
        if placement is not None and placement.floor:
            partition.archived = self.prefix_of(partition.id, partition.topic_id, placement.floor)
            partition.producers.producers.update(partition.archived.producers())

    def _is_of_before(self, partition_id: TopicPartition, placement: Placement) -> bool:
        """Whether what the folder holds has gone over to the object store, and came back from there, while this broker
        was away: the folder says in which view it was written."""
        if not placement.since_view:
            return False
        state, _ = read_checkpoint(self.files, f"{self.folder_of(partition_id)}/{RING_FILE}")
        return state is not None and bool(state["view"] < placement.since_view)

    def is_of_later(self, partition_id: TopicPartition, placement: Placement, *, is_branched: bool) -> bool:
        """At a start: whether the folder has gone into branches, or come out of them, in a view that the table does not
        know of yet."""
        folder = self.folder_of(partition_id)
        for name in (BRANCH_FILE, LEAVING_FILE, *((RING_FILE,) if is_branched else ())):
            state, _ = read_checkpoint(self.files, f"{folder}/{name}")
            if state is not None and state.get("view", -1) > placement.view:
                return True
        return False

    def _out_of_branches(
        self,
        partition_id: TopicPartition,
        key: str,
        settings: TopicSettings,
        placement: Placement,
        found: Found,
    ) -> Found:
        """It has come back from branches: what this broker was to keep of its last line becomes a log; anything else
        that is left of them goes."""
        from anabranch.broker.branch.lanes.lanes_to_log import EARLIER, LeavingFolder, has_lanes
        from anabranch.broker.branch.partition import lane_key

        folder, points = self.folder_of(partition_id), self._state.recovery_points
        taken = LeavingFolder(
            self.files, folder, log_config(settings, self._settings), self.index_cache
        ).take(
            placement.left,
            placement.view,
            lambda lane: points.get(lane_key(key, lane)),
            is_only_copy=placement.replicas == (BrokerId(self._settings.broker_id),),
        )
        if taken is None and has_lanes(self.files, folder):
            clear_folder(self.files, folder, EARLIER)
            return found.emptied
        if taken is None:
            return found
        if taken.point is not None:
            points[key] = taken.point
        return found._replace(
            point=taken.point or found.point,
            start=max(found.start, taken.start, placement.floor),
            is_stranger=found.is_stranger or not taken.is_whole,
        )

    def forget(self, partition: Partition) -> None:
        """It is kept here no more: should it come back, nothing of what was known of it holds."""
        key = partition_key(partition.topic_id, partition.id.partition)
        self._state.recovery_points.pop(key, None)
        self._state.start_offsets.pop(key, None)

    def close_for_lanes(self, partition: Partition) -> None:
        """In a worker: it goes over to branches, or comes out of them, with the files it has. Raises StorageError."""
        partition.log.close(clean=True)
        key, points = partition_key(partition.topic_id, partition.id.partition), self._state.recovery_points
        marks = partition.recovery_marks(key)
        points |= {name: RecoveryPoint(mark.synced, mark.synced) for name, mark in marks.items()}

    # --- rings ---------------------------------------------------------------------------------------------------

    def join_ring(
        self, partition: Partition, placement: Placement, *, is_stranger: bool = False, clean: bool = True
    ) -> None:
        """Make it one of several replicas, with what its folder says of its past. Raises StorageError."""
        self._rings.join(partition, placement, is_stranger=is_stranger, clean=clean)

    @cached_property
    def _rings(self) -> "RingOpener":
        from anabranch.broker.ring.opener import RingOpener  # A node without others needs none of it.

        boot = self._state.boot
        return RingOpener(self._core, self._settings, self.files, boot, self._drop_snapshot, self.doubted)

    def _has_been_in_a_ring(self, folder: str) -> bool:
        return self.files.exists(f"{folder}/{RING_FILE}")

    def _drop_snapshot(self, partition: Partition) -> None:
        self._forget_producers(partition.log.folder)
        partition.snapshot_offset = SNAPSHOT_OUTDATED

    def _restore_producers(self, partition: Partition, point: RecoveryPoint | None) -> None:
        log, now_ms = partition.log, self._core.clock.wall_ms()
        path = f"{log.folder}/{PRODUCERS_FILE}"
        snapshot, _ = read_checkpoint(self.files, path)
        made = NO_SNAPSHOT if snapshot is None else Offset(snapshot["offset"])
        mark = point.producers if point is not None else NO_PRODUCERS_MARK
        # The mark speaks of one snapshot: of another, lost or newer, it knows nothing.
        upto = max(made, min(mark.upto, log.end_offset)) if mark.snapshot == made else made
        is_outdated = snapshot is None and self.files.exists(path)
        if snapshot is not None and made <= log.end_offset and log.start_offset <= upto:
            partition.producers.restore(snapshot, now_ms)
        elif snapshot is not None:
            self._forget_producers(log.folder)
            made = upto = NO_SNAPSHOT
        start = max(log.start_offset, upto)
        if start < log.end_offset:
            for header in log.sound_headers(start, partial(_tell_unknown_producers, partition.id)):
                if header.base_offset >= start:
                    partition.producers.replay(header, now_ms)
        partition.snapshot_offset = SNAPSHOT_OUTDATED if is_outdated else made
        self.producer_limits.shorten(partition)

    def _forget_producers(self, folder: str) -> None:
        """Remove a snapshot of records that were lost: once the log has grown past its offset again, it would be
        taken for the history of other records."""
        try:
            self.files.unlink(f"{folder}/{PRODUCERS_FILE}")
            self.files.sync_folder(folder)
        except OSError as error:
            raise StorageError(f"{folder} cannot be opened: {error.strerror or error}.") from error

    def save_producers(self, partition: Partition) -> None:
        """Write the snapshot from which the next start rebuilds the table; nothing to do if it is up to date."""
        snapshot = self.producers_to_save(partition)
        if snapshot is not None:
            self.write_producers(partition.snapshot_folder, snapshot)
            partition.snapshot_offset = Offset(snapshot["offset"])

    async def save_producers_later(self, partition: Partition) -> None:
        """The same, with the snapshot written by a worker: it is synced, which is no work for the loop's thread."""
        snapshot, folder = self.producers_to_save(partition), partition.snapshot_folder
        if snapshot is not None:
            await in_heavy_worker(self._core.workers, lambda: self.write_producers(folder, snapshot))
            partition.snapshot_offset = Offset(snapshot["offset"])

    def producers_to_save(self, partition: Partition) -> dict[str, Any] | None:
        """The snapshot as it should be; None: the one on the disk holds."""
        if not partition.keeps_producers or _snapshot_holds(partition):
            return None
        # What may be withdrawn is not in it: the log could be cut while a worker writes the file. It is replayed.
        log = partition.log
        end = log.end_offset if log.firm_offset is None else min(log.firm_offset, log.end_offset)
        return {"offset": end, "producers": partition.producers.snapshot(end)}

    def producers_mark(self, partition: Partition) -> ProducersMark:
        """For the recovery points: how far the snapshot on the disk holds."""
        made = partition.snapshot_offset
        return ProducersMark(made, partition.log.end_offset if _snapshot_holds(partition) else made)

    def expire_producers(self, partition: Partition, before_ms: int) -> None:
        """Forget producers silent since `before_ms`; the snapshot must not bring them back."""
        if partition.producers.expire(before_ms):
            partition.snapshot_offset = SNAPSHOT_OUTDATED

    def write_producers(self, folder: str, snapshot: dict[str, Any]) -> None:
        """Any thread. Raises StorageError."""
        write_producers(self.files, folder, snapshot)


def write_producers(files: Files, folder: str, snapshot: dict[str, Any]) -> None:
    """Any thread. Raises StorageError."""
    try:
        write_checkpoint(files, f"{folder}/{PRODUCERS_FILE}", snapshot)
    except OSError as error:
        raise StorageError(f"{folder} cannot keep its producers: {error.strerror or error}.") from error


def _no_objects(partition_id: TopicPartition, topic_id: UUID, settings: TopicSettings) -> Partition:
    raise AssertionError(f"nobody has said how {partition_id} is opened")


def _no_prefix(partition_id: TopicPartition, topic_id: UUID, floor: Offset) -> ArchivedPrefix:
    raise AssertionError(f"nobody has said where {partition_id} is below {floor}")


def _nothing_needed() -> None:
    """Nobody has branches."""


async def _nothing_to_learn(topic: Topic) -> None:
    """Nobody has branches."""


def _no_branches(
    partition_id: TopicPartition, topic_id: UUID, settings: TopicSettings, is_new: bool, placement: Placement
) -> Partition:
    raise AssertionError(f"nobody has said how {partition_id} is opened")


def _may_have_gaps(log: Log, placement: Placement | None) -> bool:
    """Whether it was in branches before; one whose offsets are as large may have been."""
    return log.end_offset >= 1 << LANE_BITS or (placement is not None and placement.left != NO_MOVE)


def _has_been_here_only(placement: Placement | None) -> bool:
    """Whether it never came out of the object store or branches, which leave a log that begins late."""
    return placement is None or (not placement.floor and placement.left == NO_MOVE)


def _snapshot_holds(partition: Partition) -> bool:
    return 0 <= partition.producers.end_offset <= partition.snapshot_offset


def _tell_unknown_producers(partition_id: TopicPartition, error: AnabranchError) -> None:
    logger.error("%s does not know which producers wrote some of its records: %s", partition_id, error)


def _tell_recovery(partition_id: TopicPartition, log: Log) -> None:
    for problem in log.damaged:
        logger.error("%s has lost records that were safe: %s", partition_id, problem)
    if log.cut_bytes and not log.damaged:
        logger.warning(
            "recovery cut %d bytes off the end of %s: a write that was never acknowledged as safe",
            log.cut_bytes,
            partition_id,
        )
    for entry in log.quarantined:
        logger.error("recovery moved %s of %s aside: %s", entry.name, partition_id, entry.reason)
