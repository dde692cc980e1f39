"""KeptPartitions: opens, makes and closes the partitions that this broker keeps, whatever their form.

Which partitions those are, `Topics` reads from the metadata table; here are the folders, the logs and who is told. What
is in the object store has no folder. All that touches many files is done in a worker.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from anabranch.broker.metadata.metadata_log import MetadataLog
from anabranch.broker.topics.partition import Partition
from anabranch.broker.topics.partition_opener import PartitionOpener
from anabranch.broker.topics.topic_folders import TopicFolders
from anabranch.broker.workers import in_heavy_worker
from anabranch.broker.write.core import BrokerCore
from anabranch.cluster.metadata.rows import Placement, Topic
from anabranch.config import TopicSettings
from anabranch.errors import AnabranchError, StorageError, UnknownTopicOrPartitionError
from anabranch.values import BrokerId, TopicPartition

logger = logging.getLogger(__name__)

OPENED_SIDE_BY_SIDE_MAX = 64
"""Few logs may have much to read each, which pays in threads. Of many most have little, and threads that wait for
each other's turn take twice as long."""


CLOSED_PER_TURN = 200
"""How many are closed before other work on the event loop runs."""


class KeptPartitions:
    def __init__(
        self,
        core: BrokerCore,
        me: BrokerId,
        metadata: MetadataLog,
        opener: PartitionOpener,
        folders: TopicFolders,
        directory_id: str | None,
    ) -> None:
        """`directory_id`: of a broker with peers, who may keep the same partitions."""
        self._core = core
        self._me = me
        self._metadata = metadata
        self._opener = opener
        self._folders = folders
        self._directory_id = directory_id
        self.on_closed: Callable[[Partition], None] = _nothing

    # --- which ---------------------------------------------------------------------------------------------------

    def indexes(self, topic: Topic) -> list[int]:
        placements = self._metadata.table.placements(topic)
        return [index for index, placement in enumerate(placements) if self.is_here(placement)]

    def is_here(self, placement: Placement) -> bool:
        """Kept here, or to be; where nobody has registered, this node is the only one."""
        return not placement.replicas or placement.is_kept_by(self._me)

    def found(self, topics: Iterable[Topic]) -> dict[uuid.UUID, list[int]]:
        """Which partitions of each topic are kept here. Where there is no folder, or it is another topic's, the table
        may be behind: that is seen to once it is not (`Topics.follow`)."""
        kept = {topic.topic_id: self.indexes(topic) for topic in topics}
        if self._directory_id is None:
            return kept
        try:
            found = self._folders.claim(
                (TopicPartition(topic.name, index), topic.topic_id)
                for topic in topics
                for index in kept[topic.topic_id]
                if not topic.is_stored(index)
            )
        except OSError as error:
            raise StorageError(f"The folders of the topics cannot be opened: {error}.") from error
        for topic in topics:
            kept[topic.topic_id] = [
                index
                for index in kept[topic.topic_id]
                if topic.is_stored(index)
                or (TopicPartition(topic.name, index) in found and not self._is_of_later(topic, index))
            ]
        return kept

    def _is_of_later(self, topic: Topic, index: int) -> bool:
        placement = self._metadata.table.placement(topic, index)
        partition_id = TopicPartition(topic.name, index)
        return self._opener.is_of_later(partition_id, placement, is_branched=topic.is_branched(index))

    # --- opening -------------------------------------------------------------------------------------------------

    def open(
        self, partition_id: TopicPartition, topic: Topic, settings: TopicSettings, *, is_new: bool = False
    ) -> Partition:
        if topic.is_stored(partition_id.partition):
            stored = self._opener.open_object(partition_id, topic.topic_id, settings)
            stored.generation = self._metadata.table.placement(topic, partition_id.partition).generation
            return stored
        placement = self._metadata.table.placement(topic, partition_id.partition)
        if topic.is_branched(partition_id.partition):
            return self._opener.open_branch(partition_id, topic.topic_id, settings, is_new, placement)
        if self._directory_id is None:
            return self._opener.open(partition_id, topic.topic_id, settings, is_new=is_new)
        return self._opener.open(
            partition_id,
            topic.topic_id,
            settings,
            is_new=is_new,
            placement=placement,
            is_stranger=placement.is_strange_to(self._me, self._directory_id),
        )

    def open_known(self, openings: Sequence[Callable[[], Partition]]) -> list[Partition]:
        if self._opener.is_recovering and 1 < len(openings) <= OPENED_SIDE_BY_SIDE_MAX:
            return self._core.workers.side_by_side(openings)
        return [opening() for opening in openings]

    def sync_recovered(self) -> None:
        """What recovery found may still be in the page cache only; it is not shown before it is safe."""
        unsynced, self._opener.unsynced = self._opener.unsynced, []
        self._core.workers.side_by_side([partition.log.sync for partition in unsynced])

    async def open_new(self, topic: Topic, settings: TopicSettings, indexes: list[int]) -> list[Partition]:
        """Make the logs of new partitions, all or none."""
        (opened,) = await self.open_new_of_many([NewPartitions(topic, settings, indexes)])
        if isinstance(opened, Exception):
            raise opened
        return opened

    async def open_new_of_many(self, wanted: Sequence["NewPartitions"]) -> list[list[Partition] | Exception]:
        """The same of several topics side by side, so that their syncs share what the disk does: each waits for
        several, and one after the other they would take minutes on a busy disk. Of each topic all or none."""
        for each in wanted:
            if any(each.topic.is_branched(index) for index in each.indexes):
                self._opener.need_branches()
                await self._opener.learn_branches(each.topic)
        attempts = [_Attempt(self, each) for each in wanted]
        on_disk = [attempt for attempt in attempts if not attempt.is_in_store]
        for attempt in attempts:
            if attempt.is_in_store:
                attempt.run()
        if len(on_disk) == 1:
            await in_heavy_worker(self._core.workers, on_disk[0].run)
        elif on_disk:
            runs = [attempt.run for attempt in on_disk]
            await in_heavy_worker(self._core.workers, lambda: self._core.workers.side_by_side(runs))
        for attempt in attempts:
            if attempt.error is not None:
                await self.discard(attempt.opened)
                with contextlib.suppress(OSError):  # The next start moves aside what stays.
                    self._folders.unmake(attempt.partition_ids)
        return [attempt.opened if attempt.error is None else attempt.error for attempt in attempts]

    def make_folders(self, topic: Topic, partition_ids: list[TopicPartition]) -> set[TopicPartition]:
        """Those that were there already. Raises StorageError."""
        try:
            return self._folders.make(partition_ids, topic.topic_id)
        except OSError as error:
            raise StorageError(f"There is no room for the folders of {topic.name}: {error}.") from error

    def know_archived(self, partition: Partition, placement: Placement) -> None:
        """A start may have opened it before the table knew that it came from the object store; and a table that is
        taken over as a whole may leave out that it was elsewhere meanwhile."""
        partition.place(placement)
        if not partition.has_files or not placement.floor or partition.archived.floor == placement.floor:
            return
        archived = self._opener.prefix_of(partition.id, partition.topic_id, placement.floor)
        partition.archived = archived
        known_producers = partition.producers.producers
        known_producers.update({**archived.producers(), **known_producers})

    # --- closing -------------------------------------------------------------------------------------------------

    async def close_for_lanes(self, partition: Partition) -> None:
        """Whoever opens it next goes on with its files."""
        async with partition.upkeep, partition.switching:
            await self._core.syncer.idle(partition)
            self._opener.forget(partition)
            try:
                await in_heavy_worker(self._core.workers, lambda: self._opener.close_for_lanes(partition))
            except StorageError as error:
                logger.warning("%s was not closed cleanly, and is recovered: %s", partition.id, error)

    def abandon(self, partitions: Iterable[Partition], error: AnabranchError) -> None:
        for partition in partitions:
            partition.abandon(error)
            self.on_closed(partition)
            self._core.forget(partition)

    async def discard(self, partitions: list[Partition], what: str = "was deleted") -> None:
        """Close partitions for good; their folders are out of the way when this returns."""
        if not partitions:
            return
        topic = partitions[0].id.topic
        self.abandon((each for each in partitions if not each.is_gone), gone(topic, what))
        partitions = [each for each in partitions if each.has_files]
        if not partitions:
            return
        for start in range(0, len(partitions), CLOSED_PER_TURN):
            if start:
                await asyncio.sleep(0)
            await self._close_for_good(partitions[start : start + CLOSED_PER_TURN])

    async def _close_for_good(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            async with partition.upkeep:
                await self._core.syncer.idle(partition)
                partition.log.close(clean=False)
            self._opener.forget(partition)
        try:
            moved = self._folders.move_away([(partition.id, partition.topic_id) for partition in partitions])
        except OSError as error:
            # The topic is gone all the same: who makes it again, or the next start, moves its folders aside.
            logger.error("folders of %s stay where they are: %s", partitions[0].id.topic, error)
            return
        self._core.workers.heavy(lambda: self._folders.remove(moved), _report)

    def remove_outdated(self, topics: Iterable[Topic]) -> None:
        """Folders of partitions that went over to the object store while this broker was away."""
        gone = [
            (TopicPartition(topic.name, index), topic.topic_id)
            for topic in topics
            for index in range(topic.partition_count)
            if topic.is_stored(index)
        ]
        try:
            moved = self._folders.move_away(gone) if gone else []
        except OSError as error:
            logger.warning(
                "folders of partitions that are in the object store now are still there: %s", error
            )
            return
        if moved:
            self._core.workers.heavy(lambda: self._folders.remove(moved), _report)


class NewPartitions(NamedTuple):
    """Partitions of one topic that are to be opened here."""

    topic: Topic
    settings: TopicSettings
    indexes: list[int]


class _Attempt:
    """One try to open the new partitions of a topic, in a worker."""

    def __init__(self, kept: KeptPartitions, wanted: NewPartitions) -> None:
        self._kept = kept
        self._wanted = wanted
        topic, indexes = wanted.topic, wanted.indexes
        self.partition_ids = [TopicPartition(topic.name, index) for index in indexes]
        self.is_in_store = topic.is_object and not topic.forms
        assert self.is_in_store or not any(topic.is_stored(index) for index in indexes), (
            "they need no folders"
        )
        self.opened: list[Partition] = []
        self.error: Exception | None = None

    def run(self) -> None:
        topic, settings, _ = self._wanted
        try:
            found = set(self.partition_ids)
            if not self.is_in_store:
                found = self._kept.make_folders(topic, self.partition_ids)
            for each in self.partition_ids:
                self.opened.append(self._kept.open(each, topic, settings, is_new=each not in found))
        except Exception as error:  # noqa: BLE001 - whoever wants this topic is told; others are opened all the same.
            self.error = error


def gone(topic: str, what: str) -> AnabranchError:
    return UnknownTopicOrPartitionError(f"Topic {topic} {what}.")


def _nothing(*_: object) -> None:
    """Nobody wants to know."""


def _report(result: None, error: BaseException | None) -> None:
    if error is not None:
        logger.warning("files of a deleted topic are still there: %s", error)
