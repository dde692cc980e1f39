"""Topics: every topic with the partitions that are kept here, and the only way to make, change or remove one.

A change is checked and committed under the metadata log's lock, by the broker that leads the quorum. Every broker
follows the table: what it is to keep it opens, what it is not any more it closes. Whoever makes a topic makes the logs
that it keeps itself before the entry that names them: a crash in between leaves a folder that nobody names, which the
next start moves aside. Removing goes the other way round: the entry first, then the folders are renamed out of the way
and deleted in a worker. What is in the object store has no folder, and every broker opens it as soon as it hears of it.

A partition may go over from the brokers that keep it to the object store, and back (`cluster/metadata/residence.py`):
then the one that was open is closed, and one of the other form takes its place; those who wait or write are told to
ask again.
"""

import asyncio
import contextlib
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from anabranch.broker.metadata.metadata_log import MetadataLog
from anabranch.broker.topics.kept_partitions import KeptPartitions, NewPartitions, gone
from anabranch.broker.topics.partition import Partition
from anabranch.broker.topics.partition_opener import PartitionOpener, log_config
from anabranch.broker.topics.topic_folders import METADATA_TOPIC, TUBE_TOPIC, TopicFolders
from anabranch.broker.write.core import BrokerCore
from anabranch.cluster.metadata.entries import (
    Entry,
    partitions_entry,
    topic_config_entry,
    topic_entry,
    topic_removed_entry,
)
from anabranch.cluster.metadata.residence import BRANCHED, KEPT, files_go_along
from anabranch.cluster.metadata.rows import INTERNAL_NAMES, Placement, Topic
from anabranch.cluster.placement import Replicas, check_room
from anabranch.config import PARTITIONS_MAX, NodeSettings, TopicSettings, validate_topic_overrides
from anabranch.errors import (
    AnabranchError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    NotOwnerError,
    StorageError,
    TopicExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from anabranch.values import BrokerId, Offset, TopicPartition

logger = logging.getLogger(__name__)

TopicKey = str | uuid.UUID
NAME_LENGTH_MAX = 249
OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_OVERRIDES = {"cleanup.policy": "compact", "segment.bytes": str(100 * 2**20)}
OFFSETS_BRANCH_OVERRIDES = {
    "anabranch.mode": "branch",
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
"""With offsets.mode=branch: each side of a split has a coordinator for every group."""
OPEN_AGAIN_SECONDS = 1.0
OPENED_AT_ONCE_MAX = 64
"""Topics whose partitions are opened side by side."""
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class TopicState:
    """One topic as it is now. A partition that this broker does not keep, or has not opened yet, is None."""

    __slots__ = ("partitions", "settings", "topic")

    def __init__(self, topic: Topic, settings: TopicSettings, partitions: list[Partition | None]) -> None:
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
        *,
        directory_id: str | None = None,
    ) -> None:
        """`directory_id`: of a broker with peers, who may keep the same partitions."""
        self._directory_id = directory_id
        self._settings = settings
        self._metadata = metadata
        self._opener = opener
        self._folders = folders
        me = BrokerId(settings.broker_id)
        self.kept = KeptPartitions(core, me, metadata, opener, folders, directory_id)
        self._states: dict[TopicKey, TopicState] = {}
        self.named: dict[bytes, list[Partition | None]] = {}
        self.numbered: dict[bytes, list[Partition | None]] = {}
        """The partitions that clients may write to, by the bytes of their topic's name, and of its id."""
        self._prepared: dict[uuid.UUID, dict[int, Partition]] = {}
        """Logs made before the entry that names them."""
        self._work = asyncio.Lock()
        self._unopened: dict[uuid.UUID, TopicState] = {}
        """Topics whose tasks wait for `_work` to open partitions: whoever has it opens those of others too."""
        self._not_opened: dict[uuid.UUID, Exception] = {}
        """Why not, until the topic's own task sees it."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        """Logs whose files go over to lanes."""
        self._is_stopping = False
        self._is_current = asyncio.Event()
        if directory_id is None:
            self._is_current.set()
        self.on_opened: Callable[[Partition, Placement], None] = _nothing
        """A partition is there, or is kept with others than before."""
        self.branches_ready: Callable[[uuid.UUID], Awaitable[None]] = _nothing_later
        """Waits until the partitions of a topic in mode branch can be written to, if that may be soon."""
        self.find_view: Callable[[TopicKey], TopicState | None] = _no_view
        """A branch as a topic of its own, by its name or id (`branch/views.py`)."""
        self.on_removed: Callable[[str], Awaitable[None]] = _nothing_later
        """A topic is gone: forget what was remembered of it."""
        self.make: Callable[[str, int, Mapping[str, str | None]], Awaitable[None]] = self._make
        """How a topic is made on its first use: by whoever leads the quorum."""
        metadata.subscribe(self._follow)

    def open_all(self) -> None:
        """Open what the metadata log says is kept here. Raises StorageError."""
        topics = list(self._metadata.table.topics.values())
        all_settings = [TopicSettings.from_overrides(self._settings, topic.overrides) for topic in topics]
        kept = self.kept.found(topics)
        if any(BRANCHED in topic.all_forms for topic in topics):
            self._opener.need_branches()
        openings = [
            partial(self.kept.open, TopicPartition(topic.name, index), topic, settings)
            for topic, settings in zip(topics, all_settings, strict=True)
            for index in kept[topic.topic_id]
        ]
        opened = iter(self.kept.open_known(openings))
        for topic, settings in zip(topics, all_settings, strict=True):
            state = TopicState(topic, settings, [None] * topic.partition_count)
            self._register(state)
            for index in kept[topic.topic_id]:
                self._put(state, index, next(opened))
        if self._settings.flush == "always":
            self.kept.sync_recovered()

    def follow(self) -> None:
        """All that was agreed on before this start is in the table. Only now is it certain what is not kept here any
        more, and whose a folder is: what is on the disk may be of later than the table was at first."""
        self._is_current.set()
        for state in self:
            if any(self._is_amiss(state, index) for index in range(state.topic.partition_count)):
                self._begin(self._bring_in_line(state))

    @property
    def are_all_open(self) -> bool:
        """Whether everything is open that is to be kept here, as far as is known."""
        return all(
            state.partitions[index] is not None for state in self for index in self.kept.indexes(state.topic)
        )

    def sweep(self) -> None:
        """Move aside what no topic names: only once everything that was agreed is known here."""
        topics = self._metadata.table.topics.values()
        self._folders.sweep(topics)
        if self._directory_id is not None:
            self.kept.remove_outdated(topics)

    def _register(self, state: TopicState) -> None:
        topic = state.topic
        self._states[topic.name] = self._states[topic.topic_id] = state
        if not topic.is_internal:
            self.named[topic.name.encode()] = self.numbered[topic.topic_id.bytes] = state.partitions

    def _put(self, state: TopicState, index: int, partition: Partition) -> None:
        state.partitions[index] = partition
        self.on_opened(partition, self._metadata.table.placement(state.topic, index))

    # --- looking up ------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[TopicState]:
        return (state for key, state in self._states.items() if isinstance(key, str))

    def __len__(self) -> int:
        return len(self._states) // 2

    def partitions(self) -> Iterator[Partition]:
        """Those that are kept here, each with a log of its own."""
        for state in self:
            yield from (each for each in state.partitions if each is not None and each.has_files)

    def object_partitions(self) -> Iterator[Partition]:
        """Those without files here."""
        for state in self:
            yield from (each for each in state.partitions if each is not None and not each.has_files)

    def find(self, key: TopicKey) -> TopicState | None:
        return self._states.get(key)

    def known(self, key: TopicKey) -> TopicState:
        """`find` for those who cannot go on without."""
        state = self._states.get(key)
        if state is not None:
            return state
        view = self.find_view(key)
        if view is not None:
            from anabranch.broker.branch.views import read_only  # There is none where nobody has branches.

            raise read_only(view.topic.name)
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
            topic = self.check_index(key, index)
            raise NotOwnerError(f"This broker does not keep partition {index} of topic {topic.name}.")
        return partition

    def find_readable(self, key: TopicKey) -> TopicState | None:
        """`find` for readers: a branch of a topic is one for them, too."""
        return self._states.get(key) or self.find_view(key)

    def readable(self, key: TopicKey) -> TopicState:
        """`known` for readers."""
        return self.find_readable(key) or self.known(key)

    def readable_partition(self, key: TopicKey, index: int) -> Partition:
        """`partition` for readers."""
        found = self.find_partition(key, index)
        if found is not None:
            return found
        view = self.find_view(key)
        found = view.partitions[index] if view is not None and 0 <= index < len(view.partitions) else None
        if found is not None:
            return found
        if view is not None:
            raise UnknownTopicOrPartitionError(f"There is no partition {index} of {view.topic.name}.")
        return self.partition(key, index)

    def check_index(self, key: TopicKey, index: int) -> Topic:
        """The topic, if it has such a partition, wherever that is kept."""
        topic = self.known(key).topic
        if not 0 <= index < topic.partition_count:
            raise UnknownTopicOrPartitionError(f"There is no partition {index} of topic {topic.name}.")
        return topic

    # --- checking --------------------------------------------------------------------------------------------

    @staticmethod
    def check_name(name: str) -> None:
        """Kafka's rules; they also keep a name from leaving the data folder."""
        if not name or len(name) > NAME_LENGTH_MAX:
            raise InvalidTopicError(f"A topic name has 1 to {NAME_LENGTH_MAX} characters, not {len(name)}.")
        if "@" in name:
            raise InvalidTopicError(
                f"{name!r} is not a topic name: '@' stands before a branch of a topic, which is only for reading."
            )
        if name in (".", "..") or not _LEGAL_NAME.fullmatch(name):
            raise InvalidTopicError(f"{name!r} is not a topic name: use letters, digits, '.', '_' and '-'.")
        if name in (METADATA_TOPIC, TUBE_TOPIC):
            raise InvalidTopicError(f"{name} is the node's own log and no topic.")

    def check_overrides(self, overrides: Mapping[str, str | None]) -> dict[str, str]:
        return validate_topic_overrides(self._settings, overrides)

    def plan(
        self,
        name: str,
        partition_count: int,
        overrides: Mapping[str, str | None],
        placements: Sequence[Placement] = (),
        *,
        is_pinned: bool = False,
        copies: int = 1,
    ) -> Topic:
        """The topic that would be made, if it may be."""
        self.check_name(name)
        self._check_free(name)
        if not 1 <= partition_count <= PARTITIONS_MAX:
            raise InvalidPartitionsError(
                f"A topic has 1 to {PARTITIONS_MAX} partitions, not {partition_count}."
            )
        topic = Topic(
            name,
            uuid.uuid4(),
            partition_count,
            self.check_overrides(overrides),
            tuple(placements),
            is_pinned,
            copies=copies,
        )
        may_be = topic.is_placed or (topic.is_branch and name == OFFSETS_TOPIC)
        if topic.is_internal and not may_be:
            raise InvalidConfigError(f"{name} is internal, and kept by brokers: leave its mode out.")
        self._check_topic_room(topic)
        return topic

    def _check_topic_room(self, topic: Topic) -> None:
        if topic.is_internal and topic.partition_count <= self._settings.offsets_topic_num_partitions:
            return  # Groups must work on full brokers, too.
        self.check_room([each.replicas for each in topic.placements] or [()] * topic.partition_count)

    def check_room(self, added: Sequence[Replicas]) -> None:
        """Raises InvalidPartitionsError if brokers would keep too many partitions with these."""
        table = self._metadata.table
        brokers = {*table.brokers, BrokerId(self._settings.broker_id)}
        check_room(table.partitions_by_replicas, added, brokers, self._settings.partitions_max)

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
        current = state.topic.partition_count
        if name == OFFSETS_TOPIC:
            # A group's partition follows from its name and their number: with another, none of its offsets is found.
            raise InvalidPartitionsError(
                f"{name} keeps its {current} partitions: groups are found by their number."
            )
        if state.topic.forms:
            raise InvalidPartitionsError(
                f"Topic {name} is changing its mode: add partitions when all of those it has are done."
            )
        if count <= current:
            raise InvalidPartitionsError(f"Topic {name} has {current} partitions; {count} is not more.")
        if count > PARTITIONS_MAX:
            raise InvalidPartitionsError(f"A topic has at most {PARTITIONS_MAX} partitions, not {count}.")
        return current

    # --- changing --------------------------------------------------------------------------------------------

    async def create_on_use(self, name: str) -> TopicState:
        """A topic that somebody just asked for, with the node's defaults."""
        if name in INTERNAL_NAMES and name != OFFSETS_TOPIC:
            raise InvalidTopicError(f"{name} is a name for brokers alone: choose another.")
        overrides: dict[str, str | None] = {}
        count = self._settings.num_partitions
        if name == OFFSETS_TOPIC:
            count = self._settings.offsets_topic_num_partitions
            is_branch = self._settings.offsets_mode == "branch" and self._directory_id is not None
            overrides = dict(OFFSETS_BRANCH_OVERRIDES if is_branch else OFFSETS_OVERRIDES)
        with contextlib.suppress(TopicExistsError):  # Somebody asked a moment earlier; theirs is as good.
            await self.make(name, count, overrides)
        return self.known(name)

    async def _make(self, name: str, count: int, overrides: Mapping[str, str | None]) -> None:
        await self.create(self.plan(name, count, overrides))

    async def create(self, topic: Topic) -> None:
        async with self._metadata.lock:
            self._check_free(topic.name)
            self._check_topic_room(topic)  # Again: others may have been made since it was planned.
            await self._prepare(topic, self.kept.indexes(topic))
            await self._commit(topic_entry(topic), topic)
            if topic.topic_id not in self._metadata.table.topics_by_id:
                # While the logs were made another leader came and went, which made one of the same name.
                raise TopicExistsError(f"Topic {topic.name} exists already.")
        if topic.is_branch:
            await self.branches_ready(topic.topic_id)

    async def add_partitions(
        self,
        name: str,
        count: int,
        replicas: Sequence[Replicas] = (),
        first: Sequence[BrokerId] = (),
    ) -> None:
        """`replicas`: of each of the new ones; `first`: in mode branch, who is to be primary of each."""
        async with self._metadata.lock:
            current = self.check_partition_count(name, count)
            topic = self.known(name).topic
            self.check_room(replicas or [()] * (count - current))
            added = [Placement(tuple(each)) for each in replicas] or [
                self._metadata.table.placement(replace(topic, placements=()), 0)
            ] * (count - current)
            here = [index for index, place in enumerate(added, current) if self.kept.is_here(place)]
            placements = (*self._metadata.table.placements(topic), *added)
            await self._prepare(replace(topic, placements=placements), here)
            await self._commit(partitions_entry(name, count, replicas, first), topic)
        if topic.is_branch:
            await self.branches_ready(topic.topic_id)

    async def _prepare(self, topic: Topic, indexes: list[int]) -> None:
        """Make the logs of new partitions that are kept here, all or none, before anybody hears of them."""
        settings = TopicSettings.from_overrides(self._settings, topic.overrides)
        opened = await self.kept.open_new(topic, settings, indexes)
        self._prepared[topic.topic_id] = dict(zip(indexes, opened, strict=True))

    async def _commit(self, entry: Entry, topic: Topic) -> None:
        try:
            await self._metadata.commit(entry)
        finally:
            unused = self._prepared.pop(topic.topic_id)
            if unused:  # The entry was refused, or nobody knows: should it come, others are made.
                await self.kept.discard(list(unused.values()))

    async def alter(
        self, name: str, overrides_of: "Callable[[TopicState], Mapping[str, str | None]]"
    ) -> None:
        """Change a topic's overrides. They are made of the present ones under the lock, so that none is lost."""
        async with self._metadata.lock:
            overrides = self.check_overrides(overrides_of(self.known(name)))
            await self._metadata.commit(topic_config_entry(name, overrides))

    async def delete(self, key: TopicKey) -> None:
        """When this returns, the name is free and nobody here remembers the topic. By its id no other one of the same
        name is deleted, made meanwhile."""
        async with self._metadata.lock:
            topic = self.known(key).topic
            if topic.is_internal:
                raise InvalidTopicError(f"{topic.name} is internal and cannot be deleted.")
            await self._metadata.commit(topic_removed_entry(topic.name))
            await self.settled()

    # --- following the table ---------------------------------------------------------------------------------

    def _follow(self, offset: Offset, entry: Entry | None) -> None:
        """An entry has changed the table; None: all of it was replaced."""
        table = self._metadata.table
        if entry is None:
            names = {*table.topics, *(state.topic.name for state in self)}
        elif "name" in entry:
            names = {entry["name"]}
        elif "id" in entry:
            topic = table.topics_by_id.get(uuid.UUID(hex=entry["id"]))
            names = {topic.name} if topic is not None else set()
        else:
            return
        for name in sorted(names):
            self._follow_topic(name)

    def _follow_topic(self, name: str) -> None:
        topic, state = self._metadata.table.topics.get(name), self._states.get(name)
        if state is not None and (topic is None or topic.topic_id != state.topic.topic_id):
            self._remove(state)
            state = None
        if topic is None:
            return
        if state is None:
            settings = TopicSettings.from_overrides(self._settings, topic.overrides)
            state = TopicState(topic, settings, [])
            self._register(state)
        self._change(state, topic)
        self._line_up(state)

    def _change(self, state: TopicState, topic: Topic) -> None:
        """Take over what the table says, but for which partitions are open."""
        state.partitions.extend([None] * (topic.partition_count - len(state.partitions)))
        is_configured = state.topic.overrides != topic.overrides
        state.topic = topic
        if is_configured:
            state.settings = TopicSettings.from_overrides(self._settings, topic.overrides)
            for partition in state.partitions:
                if partition is not None:
                    partition.settings = state.settings
                    if partition.has_files:
                        partition.log.config = log_config(state.settings, self._settings)

    def _line_up(self, state: TopicState) -> None:
        """Open what is to be kept here, and close what is not any more."""
        prepared = self._prepared.get(state.topic.topic_id, {})
        is_done = True
        for index, placement in enumerate(self._metadata.table.placements(state.topic)):
            partition = state.partitions[index]
            if partition is not None and not self._has_form(partition, state.topic, placement):
                if not self._is_current.is_set():
                    continue  # What the disk has may be of later than the table: see `follow`.
                self._leave_form(state, index, partition)
                partition = None
            if partition is None and index in prepared:
                self._put(state, index, prepared.pop(index))
            elif partition is None and state.topic.is_stored(index):
                partition_id = TopicPartition(state.topic.name, index)
                self._put(state, index, self.kept.open(partition_id, state.topic, state.settings))
            elif partition is not None and self.kept.is_here(placement):
                self.kept.know_archived(partition, placement)
                self.on_opened(partition, placement)
            elif (partition is None) == self.kept.is_here(placement):
                is_done = False
        if not is_done:
            self._begin(self._bring_in_line(state))

    # --- forms -----------------------------------------------------------------------------------------------

    def _is_amiss(self, state: TopicState, index: int) -> bool:
        """It is not open as it should be; whether it should be at all is seen to by others."""
        partition, placement = state.partitions[index], self._metadata.table.placement(state.topic, index)
        if partition is None:
            return self.kept.is_here(placement)
        return not self._has_form(partition, state.topic, placement)

    @staticmethod
    def _has_form(partition: Partition, topic: Topic, placement: Placement) -> bool:
        """Whether its records are where the table says, and it is of this time."""
        is_there = partition.residence == topic.form(partition.id.partition)
        return is_there and partition.is_placed_by(placement)

    def _leave_form(self, state: TopicState, index: int, partition: Partition) -> None:
        state.partitions[index] = None
        if not partition.is_gone:
            self.kept.abandon(
                [partition], NotOwnerError(f"{partition.id} is kept in another way now: ask again.")
            )
        if self._goes_on(state.topic, index, partition):
            closing = self._begin(self._close_for_lanes(partition))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        else:
            self._begin(self._discard_later(partition))

    def _goes_on(self, topic: Topic, index: int, partition: Partition) -> bool:
        """Whether whoever opens it next may go on with its files."""
        if not files_go_along(partition.residence, topic.form(index)):
            return False
        return topic.form(index) != KEPT or self.kept.is_here(self._metadata.table.placement(topic, index))

    async def _discard_later(self, partition: Partition) -> None:
        async with self._work:
            await self.kept.discard([partition])

    async def _close_for_lanes(self, partition: Partition) -> None:
        async with self._work:
            await self.kept.close_for_lanes(partition)

    async def _bring_in_line(self, state: TopicState) -> None:
        """Retries until the disk allows it, or nobody wants it any more."""
        await self._is_current.wait()
        while self._states.get(state.topic.topic_id) is state and not self._is_stopping:
            try:
                self._line_up_forms(state)
                await asyncio.gather(*self._closing)  # Files of an open log are not moved.
                self._unopened[state.topic.topic_id] = state
                async with self._work:
                    if self._closing:
                        continue  # Another has left its form since, and is still open.
                    while state.topic.topic_id in self._unopened and not self._closing:
                        await self._open_some()
                    if self._unopened.pop(state.topic.topic_id, None) is not None:
                        continue  # Another is leaving its form since.
                    error = self._not_opened.pop(state.topic.topic_id, None)
                    if error is not None:
                        raise error
                    return
            except (StorageError, OSError) as error:
                logger.error("%s cannot be opened yet, and is tried again: %s", state.topic.name, error)
            await asyncio.sleep(OPEN_AGAIN_SECONDS)

    def _line_up_forms(self, state: TopicState) -> None:
        for index, placement in enumerate(self._metadata.table.placements(state.topic)):
            partition = state.partitions[index]
            if partition is not None and not self._has_form(partition, state.topic, placement):
                self._leave_form(state, index, partition)
                partition = None
            if partition is None and state.topic.is_stored(index):
                partition_id = TopicPartition(state.topic.name, index)
                self._put(state, index, self.kept.open(partition_id, state.topic, state.settings))

    async def _open_some(self) -> None:
        """Bring the topics in line that wait for it, many at a time: a broker that comes with an empty disk has to
        open hundreds. Those that could not be opened are in `_not_opened` then."""
        some = list(islice(self._unopened.items(), OPENED_AT_ONCE_MAX))
        for topic_id, _ in some:
            del self._unopened[topic_id]
        try:
            await self._open_all(some)
        except Exception as error:
            # Whoever waits for one of the others must hear of it too, and not take it for opened.
            for topic_id, state in some:
                if any(state.partitions[index] is None for index in self.kept.indexes(state.topic)):
                    self._not_opened.setdefault(topic_id, error)
            if not isinstance(error, AnabranchError | OSError):
                raise

    async def _open_all(self, some: list[tuple[uuid.UUID, TopicState]]) -> None:
        # Of two topics of one name only the later is there, so no two of these have the same folders.
        current = [state for topic_id, state in some if self._states.get(topic_id) is state]
        states, wanted = [], []
        for state in current:
            try:
                await self._close_others(state)
            except AnabranchError as error:
                self._not_opened[state.topic.topic_id] = error
            else:
                states.append(state)
        if self._closing:  # Since: what one of them was opened as before is still open.
            self._unopened.update((state.topic.topic_id, state) for state in states)
            return
        for state in states:
            missing = [
                index
                for index in self.kept.indexes(state.topic)
                if state.partitions[index] is None and not state.topic.is_stored(index)
            ]
            wanted.append(NewPartitions(state.topic, state.settings, missing))
        results = await self.kept.open_new_of_many(wanted)
        for state, asked, opened in zip(states, wanted, results, strict=True):
            if isinstance(opened, Exception):
                self._not_opened[asked.topic.topic_id] = opened
            else:
                await self._take(state, asked.topic, asked.indexes, opened)

    async def _take(
        self, state: TopicState, topic: Topic, missing: list[int], opened: list[Partition]
    ) -> None:
        """What was opened, if it is still wanted."""
        is_current = self._states.get(topic.topic_id) is state
        kept = set(self.kept.indexes(state.topic)) if is_current else set()
        late = []
        for index, partition in zip(missing, opened, strict=True):
            placement = self._metadata.table.placement(state.topic, index) if index in kept else None
            is_wanted = placement is not None and self._has_form(partition, state.topic, placement)
            if is_wanted and state.partitions[index] is None:
                self._put(state, index, partition)
            else:
                late.append(partition)
        await self.kept.discard(late)

    async def _close_others(self, state: TopicState) -> None:
        kept = set(self.kept.indexes(state.topic))
        leaving = []
        for index, partition in enumerate(state.partitions):
            if partition is not None and index not in kept:
                state.partitions[index] = None
                leaving.append(partition)
        await self.kept.discard(leaving, "is kept by other brokers now")

    def _remove(self, state: TopicState) -> None:
        topic = state.topic
        del self._states[topic.name], self._states[topic.topic_id]
        if not topic.is_internal:
            del self.named[topic.name.encode()], self.numbered[topic.topic_id.bytes]
        partitions = [each for each in state.partitions if each is not None]
        self.kept.abandon(partitions, gone(topic.name, "was deleted"))
        self._begin(self._forget(topic.name, partitions))

    async def _forget(self, name: str, partitions: list[Partition]) -> None:
        async with self._work:
            await self.kept.discard(partitions)
        await self.on_removed(name)

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a topic could not follow the table: this is a defect", exc_info=task.exception())

    @property
    def is_settled(self) -> bool:
        """Nothing is being opened or closed."""
        return not self._tasks

    async def settled(self) -> None:
        """Wait until everything that was begun so far is open or closed."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Open nothing more: the node stops. What is being opened or closed is waited for."""
        self._is_stopping = True
        self._is_current.set()  # Nobody waits for it any longer.
        await self.settled()


def _nothing(*_: object) -> None:
    """Nobody wants to know."""


def _no_view(_: TopicKey) -> None:
    """No topic has branches."""


async def _nothing_later(_: object) -> None:
    """Nobody remembers anything."""
