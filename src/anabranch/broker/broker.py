"""Broker: one node's broker as the handlers see it. Joins core, topics, groups and the state files.

`open` reads (and if need be recovers) everything below the data folder, `start` begins what runs in the background.
`drain` lets nobody wait any longer; `close` then closes every log and leaves the mark of a clean shutdown. In between
it mostly hands out its parts.
"""

import logging
import uuid
from functools import partial
from typing import TYPE_CHECKING

from anabranch.broker.coordination.groups.coordinator import GroupCoordinator
from anabranch.broker.coordination.groups.driver import LoopDriver
from anabranch.broker.coordination.offsets_topic import OffsetsTopic
from anabranch.broker.metadata.membership import Membership
from anabranch.broker.metadata.metadata_opener import open_metadata
from anabranch.broker.read.fetch_sessions import FetchSessions
from anabranch.broker.requests.call import Client, HeldBytes
from anabranch.broker.requests.memory_budget import MemoryBudget
from anabranch.broker.requests.turns import Turns
from anabranch.broker.topics.archive_start import ArchiveStart
from anabranch.broker.topics.kinds import Kinds
from anabranch.broker.topics.leaders import Leaders
from anabranch.broker.topics.log_kind import LogKind
from anabranch.broker.topics.partition import Partition
from anabranch.broker.topics.partition_opener import PartitionOpener
from anabranch.broker.topics.placing import make_topic
from anabranch.broker.topics.stored_state import StoredState, partition_key
from anabranch.broker.topics.topic_folders import TopicFolders
from anabranch.broker.topics.topics import Topics, TopicState
from anabranch.broker.upkeep.housekeeping import Housekeeping
from anabranch.broker.upkeep.start_offsets import StartOffsets
from anabranch.broker.workers import Workers
from anabranch.broker.write.core import BrokerCore
from anabranch.broker.write.producer_ids import ProducerIds
from anabranch.clock import Clock
from anabranch.cluster.metadata.residence import BRANCHED, KEPT, STORED
from anabranch.cluster.metadata.rows import BrokerRow, Placement
from anabranch.cluster.raft.messages import Member
from anabranch.config import NodeSettings, TopicSettings, host_and_port
from anabranch.coordination.groups.settings import GroupSettings
from anabranch.errors import (
    AnabranchError,
    CoordinatorNotAvailableError,
    CorruptDataError,
    StorageError,
)
from anabranch.log.disk.files import Files
from anabranch.values import BrokerId, Generation, Offset, TopicPartition

if TYPE_CHECKING:
    from anabranch.broker.branch.branches import BranchTopics
    from anabranch.broker.object.objects import Objects
    from anabranch.broker.peers.peering import Peering
    from anabranch.broker.peers.peers import Peers
    from anabranch.broker.requests.forwarding import Forwarding
    from anabranch.broker.requests.routing import Routing
    from anabranch.broker.ring.replicas import Replicas
    from anabranch.broker.topics.archived_prefix import ArchivedPrefix
    from anabranch.objects.store import ObjectStore

logger = logging.getLogger(__name__)


class Broker:
    def __init__(
        self,
        settings: NodeSettings,
        clock: Clock,
        files: Files,
        workers: Workers,
        data_dir: str,
        boot: str,
        peers: "Peers | None" = None,
        store: "ObjectStore | None" = None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.files = files
        self.workers = workers
        self.data_dir = data_dir
        self.id = settings.broker_id
        self.cluster_id = ""
        self.core = BrokerCore(settings, clock, workers)
        self.turns = Turns()
        self.request_memory = MemoryBudget(settings.request_memory_bytes_max)
        self.unpack_memory = MemoryBudget(settings.unpack_memory_bytes_max)
        self.fetch_sessions = FetchSessions(
            settings.max_incremental_fetch_session_cache_slots,
            settings.fetch_session_partitions_max,
            settings.request_elements_max,
            next_id=uuid.uuid4().int,
        )
        self.bytes_out_total = 0
        self.corrupt_reads_total = 0
        self.answers_held = HeldBytes()
        self.state = StoredState(files, data_dir, boot)
        self.opener = PartitionOpener(self.core, settings, files, data_dir, self.state)
        self._advertised = host_and_port(settings.advertise) if settings.advertise else None
        self.peers = peers
        """How the other brokers of the cluster are reached; None: there are none."""
        self.peering: Peering | None = None
        self.store = store
        """Where the records of topics in mode object are; None: this node serves no such topic."""
        self.objects: Objects | None = None
        self.kinds = Kinds()
        self.branches: BranchTopics | None = None
        """All of mode branch; None: there is no such topic."""
        self.bound: tuple[str, int] | None = None
        self.peers_bound: tuple[str, int] | None = None
        """Where the listeners really are, if they were told to find a port."""
        self.is_alone = peers is None
        """It has no peers: it leads every partition and coordinates every group."""

    # --- life ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read and recover everything; when this returns, requests may come. Raises StorageError."""
        self.files.make_folder(self.data_dir)
        self.state.load()
        identity = self.state.identity(self.id, uuid.uuid4())
        self.cluster_id = identity.cluster_id
        self.metadata = open_metadata(
            self.core,
            self.opener,
            self.state,
            Member(self.id, identity.directory_id),
            is_founder=not self.settings.peer_join,
            peers=self.peers,
            chance=self.chance,
        )
        self.orchestrator = Membership(self) if self.peers is None else self._meet(self.peers)
        if self.store is not None:
            self.objects = self._keep_objects(self.store)
        self.opener.open_object = self._open_object
        self.opener.prefix_of = self._prefix_of
        self.opener.need_branches = self._need_branches
        self.leaders = Leaders(self.metadata, self._own_leader, self.orchestrator.is_available)
        self.topics = Topics(
            self.core,
            self.settings,
            self.metadata,
            self.opener,
            TopicFolders(self.files, self.data_dir, says_owners=not self.is_alone),
            directory_id=None if self.is_alone else identity.directory_id,
        )
        self.opener.producer_limits.partitions = self.topics.partitions
        self.topics.make = self.forwarding.make_topic if self.forwarding else partial(make_topic, self)
        self.producer_ids = ProducerIds(self.metadata, self.peers)
        self.offsets_topic = OffsetsTopic(self.core, self.topics, is_alone=self.is_alone)
        self.groups = GroupCoordinator(
            self.offsets_topic.append,
            self.clock,
            _group_settings(self.settings),
            lambda: str(uuid.uuid4()),
            self.offsets_topic.shard_of,
        )
        self.topics.on_removed = self._forget_topic
        self.offsets_topic.attach(self.groups)
        self._driver = LoopDriver(self.groups, self.clock)
        self.start_offsets = StartOffsets(self.state, self.workers, self.partitions)
        self._archive = ArchiveStart(self.metadata, self.peers)
        self.kinds.add(KEPT, LogKind(self.opener, self.workers, self.start_offsets, self._archive))
        self.housekeeping = Housekeeping(self)
        if self.peering is not None:
            self.topics.on_opened, self.topics.kept.on_closed = self.peering.placed, self.peering.closed
        else:
            self.topics.sweep()
        self.topics.open_all()
        self.opener.producer_limits.keep(self.clock.wall_ms(), is_start=True)
        if self.branches is not None:
            self.branches.begin()

    def _meet(self, peers: "Peers") -> Membership:
        """Put together what only a broker with peers needs; the others do not even read the code."""
        from anabranch.broker.peers.peering import Peering

        self.peering = Peering(self, peers)
        self.core.flush_peers = peers.flush
        return self.peering.orchestrator

    def _keep_objects(self, store: "ObjectStore") -> "Objects":
        from anabranch.broker.object.objects import (
            Objects,  # As above: a node without a store reads none of it.
        )

        return Objects(self, store)

    def _open_object(
        self, partition_id: TopicPartition, topic_id: uuid.UUID, settings: TopicSettings
    ) -> Partition:
        from anabranch.broker.object.kind import ObjectKind
        from anabranch.broker.object.partition import open_partition

        self.kinds.add(STORED, ObjectKind(self.metadata))
        if self.objects is None and partition_id.partition == 0:
            logger.error(
                "topic %s is in the object store, and cannot be served: start this node with --object-store and the "
                "URL that its cluster uses",
                partition_id.topic,
            )
        return open_partition(self, partition_id, topic_id, settings)

    def _prefix_of(
        self, partition_id: TopicPartition, topic_id: uuid.UUID, floor: Offset
    ) -> "ArchivedPrefix":
        from anabranch.broker.object.archived_prefix import prefix_of

        return prefix_of(self, partition_id, (topic_id, partition_id.partition), floor)

    def _need_branches(self) -> None:
        if self.branches is None:
            from anabranch.broker.branch.branches import (
                BranchTopics,  # As above: for those who have such topics.
            )
            from anabranch.broker.branch.kind import BranchKind

            self.branches = BranchTopics(self)
            silence_ms = self.settings.producer_id_expiration_ms
            kind = BranchKind(self.branches, self.opener, self._archive, self.clock, silence_ms)
            self.kinds.add(BRANCHED, kind)
            self.opener.open_branch = self.branches.open_partition
            self.opener.learn_branches = self.branches.learn
            self.topics.branches_ready = self.branches.ready
            self.topics.find_view = self.branches.views.find

    def start(self) -> None:
        """Begin what runs in the background."""
        self.offsets_topic.start()
        if self.peering is not None:
            self.peering.start()
        else:
            self.orchestrator.begin_founding()
        self._driver.start()
        self.housekeeping.start()
        if self.objects is not None:
            self.objects.start()

    async def drain(self) -> None:
        """The node stops: let nobody wait for what will not come."""
        if self.objects is not None:
            await self.objects.stop()
        if self.branches is not None:
            await self.branches.stop()
        if self.peering is not None:
            await self.peering.stop()
        await self.orchestrator.stop()
        await self.topics.stop()
        await self.offsets_topic.stop()
        self._driver.stop()
        self.groups.close()
        self.core.fetch_waits.end_all()
        await self.housekeeping.stop()

    async def close(self) -> None:
        """Close every log; the mark of a clean shutdown is left only if all of them closed cleanly.

        Waits for a change under way: a topic made while its logs are not among those closed here would be taken
        for cleanly closed at the next start, although nothing of it was ever synced.
        """
        self.metadata.leave()
        async with self.metadata.lock, self.start_offsets.lock:
            await self.metadata.idle()
            await self.topics.settled()
            await self._close_all()

    async def _close_all(self) -> None:
        await self.core.syncer.idle()
        error = CoordinatorNotAvailableError("The node stops.")
        partitions = self.partitions()
        for partition in (*partitions, *self.topics.object_partitions()):
            partition.abandon(error)
        closed = self.workers.side_by_side(partial(self._close, partition) for partition in partitions)
        if self.branches is not None:
            self.branches.close()
        if all(closed) and self._knows_all_logs:
            self._mark_clean(partitions)

    @property
    def _knows_all_logs(self) -> bool:
        """A broker that stops before it knew the table has not looked at every log: what a power cut did to the others
        is for the next start to find."""
        peering = self.peering
        return peering is None or self.state.was_clean or (peering.has_joined and self.topics.are_all_open)

    def _mark_clean(self, partitions: list[Partition]) -> None:
        try:
            self.housekeeping.write_checkpoints(partitions)
            self.state.mark_clean()
        except OSError as error:
            # Every log is closed and synced: without the mark the next start merely reads more.
            logger.error("the mark of a clean shutdown could not be left: %s", error)

    def _close(self, partition: Partition) -> bool:
        try:
            self.opener.save_producers(partition)
            partition.log.close(clean=True)
        except (StorageError, OSError) as error:
            logger.error("%s was not closed cleanly: %s", partition.id, error)
            return False
        return True

    @property
    def are_answers_too_many(self) -> bool:
        """Readers leave more answers lying in memory than all requests may take there."""
        return self.answers_held.count > self.settings.request_memory_bytes_max

    @property
    def routing(self) -> "Routing | None":
        """How records reach the brokers that lead; None: there are no others."""
        return self.peering.routing if self.peering is not None else None

    @property
    def forwarding(self) -> "Forwarding | None":
        """To the leader of the metadata quorum; None: that is this node."""
        return self.peering.forwarding if self.peering is not None else None

    @property
    def replicas(self) -> "Replicas | None":
        """The ring partitions that are kept here; None: everything is kept by one broker."""
        return self.peering.replicas if self.peering is not None else None

    # --- what handlers ask ---------------------------------------------------------------------------------------

    def partitions(self) -> list[Partition]:
        """Those of every topic that are kept here, and the metadata log."""
        return [*self.topics.partitions(), self.metadata.partition]

    @property
    def groups_failed(self) -> bool:
        """Some log of groups could not be read: its groups are not served."""
        return bool(self.offsets_topic.failed)

    def leader_of(self, topic: TopicState, index: int) -> BrokerId | None:
        """Who leads a partition, as far as this broker knows."""
        return self.leaders.of(topic.topic.topic_id, index).broker_id

    def _own_leader(
        self, topic_id: uuid.UUID, index: int, placement: Placement
    ) -> tuple[BrokerId | None, Generation, tuple[BrokerId, ...]] | None:
        """Who leads a partition that is kept here."""
        if self.replicas is not None and (found := self.replicas.leader_of(topic_id, index)) is not None:
            return found
        me = BrokerId(self.id)
        if placement.replicas not in ((), (me,)):
            return None
        partition = self.topics.find_partition(topic_id, index)
        return (me, partition.generation, (me,)) if partition is not None else None

    def address_of(self, broker_id: BrokerId, client: Client) -> tuple[str, int] | None:
        """Where this client reaches a broker of the cluster; None: nobody knows that broker."""
        row = self.orchestrator.rows().get(broker_id)
        return self.address_in(row, client) if row is not None else None

    def address_in(self, row: BrokerRow, client: Client) -> tuple[str, int]:
        """Where this client reaches the broker of that row."""
        return self.address_for(client) if row.broker_id == self.id else (row.host, row.port)

    def address_for(self, client: Client) -> tuple[str, int]:
        """The address this client should use: the advertised one, or the one it has found us at."""
        return self._advertised or client.local_address

    @property
    def own_address(self) -> tuple[str, int]:
        """What the table says of this broker to the clients of others. A node without others says what it was told:
        which port it has found is nobody's business."""
        listens = self.bound if self.peers is not None and self.bound else host_and_port(self.settings.listen)
        return self._advertised or listens

    def note_read_error(self, partition: Partition, error: AnabranchError) -> None:
        if isinstance(error, CorruptDataError):
            self.corrupt_reads_total += 1
            logger.error("corrupt data in %s: %s", partition.id, error)

    async def _forget_topic(self, name: str) -> None:
        try:
            views = {
                place.topic for _, place, _ in self.groups.committed() if place.topic.startswith(f"{name}@")
            }
            await self.groups.forget_topics([name, *sorted(views)])
        except AnabranchError as error:
            # The topic is gone all the same; its offsets expire with their groups.
            logger.warning("groups still remember offsets of the deleted topic %s: %s", name, error)

    @staticmethod
    def chance(limit: int) -> int:
        """A number below it; not from `random`, which costs a start more than it is worth."""
        return uuid.uuid4().int % limit

    def disk_room(self) -> tuple[int, int]:
        """Bytes of the data folder's disk: in all, and free."""
        return self.files.total_bytes(self.data_dir), self.files.free_bytes(self.data_dir)

    def key_of(self, partition: Partition) -> str:
        return partition_key(partition.topic_id, partition.id.partition)


def _group_settings(settings: NodeSettings) -> GroupSettings:
    return GroupSettings(
        session_timeout_ms_min=settings.group_min_session_timeout_ms,
        session_timeout_ms_max=settings.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
        members_max=settings.group_max_size,
        memory_bytes_max=settings.group_memory_bytes_max,
        offset_metadata_bytes_max=settings.offset_metadata_max_bytes,
        offsets_memory_bytes_max=settings.offsets_memory_bytes_max,
        offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
    )
