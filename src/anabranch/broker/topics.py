"""Topics: every topic of this node with its open partitions, and the only way to make, change or remove one.

A change is checked and committed under the metadata log's lock. Logs are made before the entry that names them:
a crash in between leaves a folder that nobody names, which the next start moves aside. Removing goes the other way
round: the entry first, then the folders are renamed out of the way and deleted in a worker.
"""

import contextlib
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from anabranch.broker.core import BrokerCore
from anabranch.broker.metadata_log import MetadataLog
from anabranch.broker.partition import Partition
from anabranch.broker.partition_opener import PartitionOpener, log_config
from anabranch.broker.topic_folders import METADATA_TOPIC, TopicFolders
from anabranch.broker.workers import in_heavy_worker
from anabranch.cluster.metadata import (
    Topic,
    partitions_entry,
    topic_config_entry,
    topic_entry,
    topic_removed_entry,
)
from anabranch.config import PARTITIONS_MAX, NodeSettings, TopicSettings, validate_topic_overrides
from anabranch.errors import (
    AnabranchError,
    InvalidPartitionsError,
    InvalidTopicError,
    StorageError,
    TopicExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from anabranch.values import TopicPartition

logger = logging.getLogger(__name__)

TopicKey = str | uuid.UUID
NAME_LENGTH_MAX = 249
OFFSETS_TOPIC = "__consumer_offsets"
OPENED_SIDE_BY_SIDE_MAX = 64
"""Few logs may have much to read each, which pays in threads. Of many most have little, and threads that wait for
each other's turn take twice as long."""
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class TopicState:
    """One topic as it is now."""

    __slots__ = ("partitions", "settings", "topic")

    def __init__(self, topic: Topic, settings: TopicSettings, partitions: list[Partition]) -> None:
        self.topic = topic
        self.settings = settings
        self.partitions = partitions


class Topics:
    def __init__(
        self,
        core: BrokerCore,
        settings: NodeSettings,
        metadata: MetadataLog,
        opener: PartitionOpener,
        folders: TopicFolders,
    ) -> None:
        self._core = core
        self._settings = settings
        self._metadata = metadata
        self._opener = opener
        self._folders = folders
        self._states: dict[TopicKey, TopicState] = {}
        self.named: dict[bytes, list[Partition]] = {}
        self.numbered: dict[bytes, list[Partition]] = {}
        """The partitions that clients may write to, by the bytes of their topic's name, and of its id."""

    def open_all(self) -> None:
        """Open every topic the metadata log names. Raises StorageError."""
        topics = list(self._metadata.table.topics.values())
        self._folders.sweep(topics)
        all_settings = [TopicSettings.from_overrides(self._settings, topic.overrides) for topic in topics]
        openings = [
            partial(self._opener.open, TopicPartition(topic.name, index), topic.topic_id, settings)
            for topic, settings in zip(topics, all_settings, strict=True)
            for index in range(topic.partition_count)
        ]
        opened = iter(self._open_known(openings))
        for topic, settings in zip(topics, all_settings, strict=True):
            partitions = list(islice(opened, topic.partition_count))
            self._register(TopicState(topic, settings, partitions))
        if self._settings.flush == "always":
            self._sync_recovered()

    def _open_known(self, openings: Sequence[Callable[[], Partition]]) -> list[Partition]:
        if self._opener.is_recovering and 1 < len(openings) <= OPENED_SIDE_BY_SIDE_MAX:
            return self._core.workers.side_by_side(openings)
        return [opening() for opening in openings]

    def _sync_recovered(self) -> None:
        """What recovery found may still be in the page cache only; it is not shown before it is safe."""
        unsynced, self._opener.unsynced = self._opener.unsynced, []
        self._core.workers.side_by_side([partition.log.sync for partition in unsynced])

    def _register(self, state: TopicState) -> None:
        topic = state.topic
        self._states[topic.name] = self._states[topic.topic_id] = state
        if not topic.is_internal:
            self.named[topic.name.encode()] = self.numbered[topic.topic_id.bytes] = state.partitions

    # --- looking up ------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[TopicState]:
        return (state for key, state in self._states.items() if isinstance(key, str))

    def __len__(self) -> int:
        return len(self._states) // 2

    def partitions(self) -> Iterator[Partition]:
        for state in self:
            yield from state.partitions

    def find(self, key: TopicKey) -> TopicState | None:
        return self._states.get(key)

    def known(self, key: TopicKey) -> TopicState:
        """`find` for those who cannot go on without."""
        state = self._states.get(key)
        if state is not None:
            return state
        if isinstance(key, str):
            raise UnknownTopicOrPartitionError(f"There is no topic {key}.")
        raise UnknownTopicIdError(f"There is no topic with id {key}.")

    def find_partition(self, key: TopicKey, index: int) -> Partition | None:
        state = self._states.get(key)
        if state is None or not 0 <= index < len(state.partitions):
            return None
        return state.partitions[index]

    def partition(self, key: TopicKey, index: int) -> Partition:
        partition = self.find_partition(key, index)
        if partition is None:
            name = self.known(key).topic.name
            raise UnknownTopicOrPartitionError(f"There is no partition {index} of topic {name}.")
        return partition

    # --- checking --------------------------------------------------------------------------------------------

    @staticmethod
    def check_name(name: str) -> None:
        """Kafka's rules; they also keep a name from leaving the data folder."""
        if not name or len(name) > NAME_LENGTH_MAX:
            raise InvalidTopicError(f"A topic name has 1 to {NAME_LENGTH_MAX} characters, not {len(name)}.")
        if name in (".", "..") or not _LEGAL_NAME.fullmatch(name):
            raise InvalidTopicError(f"{name!r} is not a topic name: use letters, digits, '.', '_' and '-'.")
        if name == METADATA_TOPIC:
            raise InvalidTopicError(f"{name} is the node's own log and no topic.")

    def check_overrides(self, overrides: Mapping[str, str | None]) -> dict[str, str]:
        return validate_topic_overrides(self._settings, overrides)

    def plan(self, name: str, partition_count: int, overrides: Mapping[str, str | None]) -> Topic:
        """The topic that would be made, if it may be."""
        self.check_name(name)
        self._check_free(name)
        if not 1 <= partition_count <= PARTITIONS_MAX:
            raise InvalidPartitionsError(
                f"A topic has 1 to {PARTITIONS_MAX} partitions, not {partition_count}."
            )
        return Topic(name, uuid.uuid4(), partition_count, self.check_overrides(overrides))

    def _check_free(self, name: str) -> None:
        if name in self._states:
            raise TopicExistsError(f"Topic {name} exists already.")
        # Metrics replace dots by underscores, so Kafka refuses names that would become the same there.
        twin = name.replace(".", "_")
        for state in self:
            if state.topic.name.replace(".", "_") == twin:
                raise InvalidTopicError(
                    f"Topic {name} collides with {state.topic.name}: '.' and '_' count as the same."
                )

    def check_partition_count(self, name: str, count: int) -> int:
        """The present number of partitions, if `count` may follow it."""
        state = self.known(name)
        current = len(state.partitions)
        if count <= current:
            raise InvalidPartitionsError(f"Topic {name} has {current} partitions; {count} is not more.")
        if count > PARTITIONS_MAX:
            raise InvalidPartitionsError(f"A topic has at most {PARTITIONS_MAX} partitions, not {count}.")
        return current

    # --- changing --------------------------------------------------------------------------------------------

    async def create_on_use(self, name: str) -> TopicState:
        """A topic that somebody just asked for, with the node's defaults."""
        overrides: dict[str, str | None] = {}
        count = self._settings.num_partitions
        if name == OFFSETS_TOPIC:
            count = self._settings.offsets_topic_num_partitions
            overrides = {"cleanup.policy": "compact", "segment.bytes": str(100 * 2**20)}
        with contextlib.suppress(TopicExistsError):  # Somebody asked a moment earlier; theirs is as good.
            await self.create(self.plan(name, count, overrides))
        return self.known(name)

    async def create(self, topic: Topic) -> None:
        async with self._metadata.lock:
            self._check_free(topic.name)
            settings = TopicSettings.from_overrides(self._settings, topic.overrides)
            partitions = await self._open_new(topic, settings, 0, topic.partition_count)
            try:
                await self._metadata.commit(topic_entry(topic))
            except AnabranchError:
                await self._discard(partitions)
                raise
            self._register(TopicState(topic, settings, partitions))

    async def add_partitions(self, name: str, count: int) -> None:
        async with self._metadata.lock:
            current = self.check_partition_count(name, count)
            state = self.known(name)
            added = await self._open_new(state.topic, state.settings, current, count)
            try:
                await self._metadata.commit(partitions_entry(name, count))
            except AnabranchError:
                await self._discard(added)
                raise
            state.topic = self._metadata.table.topics[name]
            state.partitions.extend(added)

    async def _open_new(self, topic: Topic, settings: TopicSettings, first: int, end: int) -> list[Partition]:
        """Make the logs of new partitions, all or none."""
        opened: list[Partition] = []
        partition_ids = [TopicPartition(topic.name, index) for index in range(first, end)]

        def task() -> None:
            try:
                self._folders.make(partition_ids)
            except OSError as error:
                raise StorageError(f"There is no room for the folders of {topic.name}: {error}.") from error
            for partition_id in partition_ids:
                opened.append(self._opener.open(partition_id, topic.topic_id, settings, is_new=True))

        try:
            await in_heavy_worker(self._core.workers, task)
        except AnabranchError:
            await self._discard(opened)
            with contextlib.suppress(OSError):  # The next start moves aside what stays.
                self._folders.unmake(partition_ids)
            raise
        return opened

    async def alter(
        self, name: str, overrides_of: "Callable[[TopicState], Mapping[str, str | None]]"
    ) -> None:
        """Change a topic's overrides. They are made of the present ones under the lock, so that none is lost."""
        async with self._metadata.lock:
            state = self.known(name)
            overrides = self.check_overrides(overrides_of(state))
            await self._metadata.commit(topic_config_entry(name, overrides))
            state.topic = self._metadata.table.topics[name]
            state.settings = TopicSettings.from_overrides(self._settings, overrides)
            for partition in state.partitions:
                partition.settings = state.settings
                partition.log.config = log_config(state.settings, self._settings)

    async def delete(self, name: str) -> None:
        async with self._metadata.lock:
            state = self.known(name)
            if state.topic.is_internal:
                raise InvalidTopicError(f"{name} is internal and cannot be deleted.")
            await self._metadata.commit(topic_removed_entry(name))
            del self._states[state.topic.name], self._states[state.topic.topic_id]
            del self.named[state.topic.name.encode()], self.numbered[state.topic.topic_id.bytes]
            await self._discard(state.partitions)

    async def _discard(self, partitions: list[Partition]) -> None:
        """Close partitions for good; their folders are out of the way when this returns."""
        if not partitions:
            return
        for partition in partitions:
            partition.abandon(UnknownTopicOrPartitionError(f"Topic {partition.id.topic} was deleted."))
            self._core.forget(partition)
            async with partition.upkeep:
                await self._core.syncer.idle(partition)
                partition.log.close(clean=False)
        try:
            moved = self._folders.move_away([(partition.id, partition.topic_id) for partition in partitions])
        except OSError as error:
            # The topic is gone all the same: who makes it again, or the next start, moves its folders aside.
            logger.error("folders of %s stay where they are: %s", partitions[0].id.topic, error)
            return
        self._core.workers.heavy(lambda: self._folders.remove(moved), _report)


def _report(result: None, error: BaseException | None) -> None:
    if error is not None:
        logger.warning("files of a deleted topic are still there: %s", error)
