"""Objects: all that a node with an object store has besides: the store, what writes to it, what reads from it, and on
the leader of the metadata quorum what looks after it.

A node without one never loads this. Partitions are told here when the agreed table has changed for them: first they
move their high watermarks, then writers are answered.
"""

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from anabranch.broker.metadata.proposals import Proposals
from anabranch.broker.object.cache.block_cache import BlockCache
from anabranch.broker.object.cache.disk_cache import DiskCache
from anabranch.broker.object.log import ObjectLog
from anabranch.broker.object.merges import MergedNames
from anabranch.broker.object.partition import ObjectPartition
from anabranch.broker.object.replacements import ObjectReplacements, ProofLimits
from anabranch.broker.object.snapshots import ObjectSnapshots
from anabranch.broker.object.upkeep import keeping_of, upkeep_of
from anabranch.broker.object.writer_driver import ObjectWriting, limits_of
from anabranch.cluster.metadata.entries import Entry
from anabranch.cluster.objects.upkeep import own_prefixes
from anabranch.config import TopicSettings
from anabranch.errors import StoreRefusedError
from anabranch.objects.store import ObjectStore
from anabranch.objects.watched_store import WatchedStore
from anabranch.record.compaction.offset_map import BYTES_PER_KEY
from anabranch.values import BrokerId, Offset, TopicPartition

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

CACHE_FOLDER = "object-cache"


class Objects:
    def __init__(self, broker: "Broker", store: ObjectStore) -> None:
        self._broker = broker
        self.store = store = WatchedStore(store)
        metadata, settings = broker.metadata, broker.settings
        me = BrokerId(broker.id)
        self.proposals = Proposals(metadata, broker.peers)
        self.cache = BlockCache(
            store,
            broker.clock,
            settings.object_cache_bytes,
            disk=self._open_disk(settings.object_cache_disk_bytes),
            caught_up=metadata.caught_up if broker.peers is not None else None,
        )
        self.writing = ObjectWriting(
            me,
            broker.core,
            metadata.table,
            store,
            limits_of(settings),
            propose=self.proposals.propose,
            own_epoch=lambda: broker.orchestrator.epoch,
            is_cut_off=lambda: broker.orchestrator.is_cut_off(broker.clock.monotonic_ms()),
            chance=broker.chance,
        )
        self.writing.on_flushed = self.cache.keep
        store.on_back += [self.writing.store_answers, self.cache.loads.store_answers]
        self.names = names = MergedNames(me, lambda: broker.orchestrator.epoch)
        self.snapshots = ObjectSnapshots(broker, store)
        self.upkeep = upkeep_of(broker, store, names, self.snapshots)
        self.replacements = ObjectReplacements(
            lambda: metadata.table,
            store,
            names,
            broker.clock,
            broker.workers,
            settings.object_collect_ms,
            ProofLimits(
                max(1, settings.log_cleaner_dedupe_buffer_size // BYTES_PER_KEY),
                settings.batch_decompressed_bytes_max,
            ),
            propose=self.proposals.propose,
            caught_up=metadata.caught_up,
            keeping_of=lambda topic: keeping_of(TopicSettings.from_overrides(settings, topic.overrides)),
        )
        metadata.subscribe(self._follow)

    def _open_disk(self, bytes_max: int) -> DiskCache | None:
        if not bytes_max:
            return None
        broker = self._broker
        folder = f"{broker.data_dir}/{CACHE_FOLDER}"
        disk = DiskCache(broker.files, folder, broker.clock, broker.workers, bytes_max)
        disk.open()
        return disk

    async def check_store(self) -> None:
        """Whether this is the store in which the agreed objects are. One that has lost some of them is; one in which
        there is none would only take what nobody else finds. Raises StoreRefusedError, StoreUnavailableError."""
        table = self._broker.metadata.table.objects
        some = next(iter(table.referenced()), None)
        if some is None or await self._has_any(own_prefixes(some.incarnation)) or not table.references(some):
            return
        raise StoreRefusedError(
            f"{self.store.url} holds none of the objects in which this cluster keeps its records: is it another store? "
            "Check --object-store; without it the node serves its other topics."
        )

    async def _has_any(self, prefixes: Iterable[str]) -> bool:
        for prefix in prefixes:
            async for page in self.store.list(prefix):
                if page:
                    return True
        return False

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.writing.start()
        self.upkeep.start()
        self.snapshots.start()

    async def leave(self) -> None:
        """Before the cluster stops counting on this broker: take no more, and bring what was taken to its end."""
        await self.upkeep.stop()
        await self.writing.stop()
        await self.snapshots.stop()

    async def stop(self) -> None:
        if not self.writing.is_over:
            await self.leave()
        await self.cache.close()
        self.store.end_watch()

    # --- partitions ------------------------------------------------------------------------------------------------

    def log_of(self, partition_id: TopicPartition, topic_id: uuid.UUID) -> ObjectLog:
        broker, key = self._broker, (topic_id, partition_id.partition)
        return ObjectLog(str(partition_id), key, broker.metadata.table.objects, self.cache, broker.workers)

    def _follow(self, offset: Offset, entry: Entry | None) -> None:
        """An entry has changed the table; None: all of it was replaced. Partitions first: who is answered may read."""
        if entry is None:
            self._tell_all()
        elif entry["type"] == "objects-commit":
            self._tell_written(entry)
        self.writing.follow(offset, entry)

    def _tell_all(self) -> None:
        now_ms = self._broker.clock.wall_ms()
        for partition in self._broker.topics.object_partitions():
            assert isinstance(partition, ObjectPartition)
            partition.applied(now_ms)

    def _tell_written(self, entry: Entry) -> None:
        now_ms = self._broker.clock.wall_ms()
        keys = {(topic_id, number) for commit in entry["commits"] for topic_id, number in commit["keys"]}
        for topic_id, number in keys:
            found = self._broker.topics.find_partition(uuid.UUID(hex=topic_id), number)
            if isinstance(found, ObjectPartition):
                found.applied(now_ms)
