"""Upkeep of the object store: what nobody waits for, done by the broker that leads the metadata quorum, one thing at a
time and with rests between, so that the foreground does not feel it.

retention    what is too old or too much goes, on the boundary of a row; producers silent for long are forgotten
merging      small objects become large ones (`object_merges`)
compaction   the last record of every key stays
collection   objects that no row names are tombstoned, and deleted `object.collect.ms` later, once no snapshot in the
             store needs them any more; what a crash has left without a row is found by a listing, once when this
             broker begins to lead and every half of that time

Every decision is made anew from the table (`cluster.objects.upkeep`), and every change is an entry that is checked when
it is applied: two that believe to lead do no harm. The work ends at once when the leadership is lost or the node stops;
whoever leads next finds what is left of it. A store that is away is asked again, at growing intervals.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

from anabranch.broker.object.merges import Agreement, MergedNames, MergeSettings, ObjectMerges
from anabranch.broker.workers import Workers
from anabranch.clock import Clock
from anabranch.cluster.metadata.rows import Topic
from anabranch.cluster.objects.entries import (
    Key,
    forget_entry,
    removed_entry,
    start_entry,
    tombstone_entry,
)
from anabranch.cluster.objects.table import Head, ObjectTable
from anabranch.cluster.objects.upkeep import (
    Crowd,
    deletable,
    orphan_of,
    own_prefixes,
    retained_start,
    silent_producers,
)
from anabranch.config.topic_settings import TopicSettings
from anabranch.errors import (
    NotControllerError,
    ObjectGoneError,
    QuorumBusyError,
    StorageError,
    StoreError,
    WorkStoppedError,
)
from anabranch.objects.layout.compaction_plan import Compaction, compaction_of, most_urgent
from anabranch.objects.layout.merge_plan import MergeWatch
from anabranch.objects.layout.names import ObjectId
from anabranch.objects.layout.plans import Keeping
from anabranch.objects.store import ObjectStore, StoredObject
from anabranch.record.compaction.offset_map import BYTES_PER_KEY

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

logger = logging.getLogger(__name__)

TURN_SECONDS = 1.0
WATCH_SECONDS = 0.2
TOMBSTONE_MS = 10_000
"""How often what is not referenced any more is tombstoned: many share an entry then."""
OBJECTS_PER_ENTRY = 1000
STARTS_PER_ENTRY = 1000
PARTITIONS_PER_TURN = 50
"""So many are looked at before the loop has its turn."""
BACKOFF_MS_MIN = 1000
BACKOFF_MS_MAX = 60_000
REST_MS_MAX = 30_000
REFUSED_MS = 60_000
BACKLOG_MERGES = 4
"""With more than so much to merge there are no rests in between."""

Each = TypeVar("Each")


class DeletionGuard(Protocol):
    """Who knows what coming back from the bucket would need (`object_snapshots`)."""

    def covers(self, object_id: ObjectId) -> bool:
        """Whether the two newest verified snapshots in the store know that it is tombstoned."""
        ...

    def hurry(self) -> None:
        """Take the next snapshot soon: something waits for it."""
        ...

    async def may_delete(self) -> bool:
        """Whether nobody has brought this cluster back as another, to which its objects belong. Raises StoreError."""
        ...


class UpkeepSettings(NamedTuple):
    merge: MergeSettings
    collect_ms: int
    retention_check_ms: int
    compaction_check_ms: int
    is_compacting: bool
    producer_expiration_ms: int
    producer_idle_ms: int
    producers_max: int


def upkeep_of(
    broker: "Broker", store: ObjectStore, names: MergedNames, guard: "DeletionGuard"
) -> "ObjectUpkeep":
    """The upkeep of a broker's object store, by its settings."""
    node = broker.settings
    merge = MergeSettings(
        node.object_merge_bytes,
        max(1, node.log_cleaner_dedupe_buffer_size // BYTES_PER_KEY),
        node.batch_decompressed_bytes_max,
    )
    settings = UpkeepSettings(
        merge,
        node.object_collect_ms,
        node.log_retention_check_interval_ms,
        node.log_cleaner_backoff_ms,
        node.log_cleaner_enable,
        node.producer_id_expiration_ms,
        node.producer_id_idle_ms,
        node.producer_ids_per_partition_max,
    )
    return ObjectUpkeep(
        broker.metadata,
        store,
        broker.workers,
        broker.clock,
        names,
        settings,
        lambda topic: keeping_of(TopicSettings.from_overrides(node, topic.overrides)),
        guard,
    )


def keeping_of(topic: TopicSettings) -> Keeping:
    return Keeping(
        topic.is_deleted_by_age,
        topic.retention_ms,
        topic.retention_bytes,
        topic.is_compacted,
        topic.delete_retention_ms,
        topic.min_cleanable_dirty_ratio,
        topic.min_compaction_lag_ms,
        topic.max_compaction_lag_ms,
    )


class ObjectUpkeep:
    def __init__(
        self,
        agreement: Agreement,
        store: ObjectStore,
        workers: Workers,
        clock: Clock,
        names: MergedNames,
        settings: UpkeepSettings,
        keeping_of: Callable[[Topic], Keeping],
        guard: DeletionGuard,
    ) -> None:
        self._agreement = agreement
        self._store = store
        self._clock = clock
        self._names = names
        self._settings = settings
        self._keeping_of = keeping_of
        self.guard = guard
        self._task: asyncio.Task[None] | None = None
        self._term: int | None = None
        """Of the leadership the present work belongs to."""
        self._due_ms: dict[str, int] = {}
        self._backoff_ms = BACKOFF_MS_MIN
        self._is_away = False
        self._keepings: dict[UUID, tuple[Topic, Keeping]] = {}
        self._not_due: dict[Key, Head] = {}
        """Partitions that were not worth compacting, as they were then."""
        self.merges = ObjectMerges(agreement, store, workers, clock, names, settings.merge, self._check)
        self._watch: MergeWatch
        """Of the present leadership."""
        self.objects_deleted_total = 0
        self.orphans_total = 0
        self.listings_total = 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._turns())

    async def stop(self) -> None:
        """Nothing here needs an end: what a crash would leave is all that is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @property
    def _objects(self) -> ObjectTable:
        return self._agreement.table.objects

    # --- turns ---------------------------------------------------------------------------------------------------

    async def _turns(self) -> None:
        while True:
            await asyncio.sleep(TURN_SECONDS)
            if not self._agreement.is_leader:
                self._term = None
                continue
            if self._term != self._agreement.term:
                self._begin_reign()
            await self._watched(self._turn())

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it as long as this broker leads; whatever it waits for then is given up."""
        task = asyncio.get_running_loop().create_task(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=WATCH_SECONDS)
                if not self._is_leading:
                    break
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def _is_leading(self) -> bool:
        """In the same reign in which the present work was begun."""
        return self._agreement.is_leader and self._agreement.term == self._term

    def _begin_reign(self) -> None:
        self._term = self._agreement.term
        self._due_ms.clear()
        self._not_due.clear()
        self._begin_watch()

    def _begin_watch(self) -> None:
        self._watch = MergeWatch(self._objects, self._settings.merge.merge_bytes)

    async def _turn(self) -> None:
        try:
            await self.work()
        except WorkStoppedError:
            return
        except (NotControllerError, QuorumBusyError, StorageError) as error:
            logger.info("upkeep of the object store waits for the metadata quorum: %s", error)
        except ObjectGoneError as error:
            logger.info("upkeep of the object store looks again, for rows have changed: %s", error)
            self._begin_watch()
        except StoreError as error:
            if not self._is_away:
                logger.warning("upkeep of the object store will try again: %s", error)
            self._is_away = True
            await asyncio.sleep(self._backoff_ms / 1000)
            self._backoff_ms = min(BACKOFF_MS_MAX, 2 * self._backoff_ms)
        except Exception:
            logger.exception("upkeep of the object store failed: this is a defect")
            await asyncio.sleep(BACKOFF_MS_MAX / 1000)
        else:
            self._is_away, self._backoff_ms = False, BACKOFF_MS_MIN

    def _check(self) -> None:
        if not self._is_leading:
            raise WorkStoppedError("Another broker looks after the object store now.")

    async def work(self) -> None:
        """All that is due now, the cheap things first."""
        settings = self._settings
        tombstone_ms = max(1, min(TOMBSTONE_MS, settings.collect_ms // 2))
        await self._if_due("retention", settings.retention_check_ms, self.retain)
        await self._if_due("tombstones", tombstone_ms, self.collect)
        await self._if_due("listing", max(1, settings.collect_ms // 2), self.collect_orphans)
        self._names.check(self._agreement.table)  # Before anything is read in vain.
        if settings.is_compacting:
            await self._if_due("compaction", settings.compaction_check_ms, self.compact)
        await self._if_due("merge", 0, self.merge)

    async def _if_due(self, name: str, every_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._due_ms.get(name, now_ms):
            self._due_ms.pop(name, None)
            await work()
            self._due_ms.setdefault(name, self._clock.monotonic_ms() + every_ms)

    def _is_other_work_due(self) -> bool:
        """Of what is under way itself it is not yet known when it is due again; merges always are."""
        now_ms = self._clock.monotonic_ms()
        return any(now_ms >= due_ms for name, due_ms in self._due_ms.items() if name != "merge")

    async def _keys(self, *, with_past: bool = False) -> AsyncIterator[tuple[Key, Keeping]]:
        """Every partition of every topic in the store; the loop has its turn now and then. `with_past`: those too that
        have left it, and of which something is still there."""
        number = 0
        for topic in list(self._agreement.table.topics.values()):
            if not topic.is_object and not topic.forms and not (with_past and topic.placements):
                continue
            keeping = self._keeping(topic)
            for partition in range(topic.partition_count):
                key = topic.topic_id, partition
                if not topic.is_stored(partition) and not (with_past and self._objects.row_count(key)):
                    continue
                number += 1
                if number % PARTITIONS_PER_TURN == 0:
                    await asyncio.sleep(0)
                    self._check()
                yield key, keeping

    def _keeping(self, topic: Topic) -> Keeping:
        known = self._keepings.get(topic.topic_id)
        if known is None or known[0] is not topic:
            known = self._keepings[topic.topic_id] = topic, self._keeping_of(topic)
        return known[1]

    # --- retention -----------------------------------------------------------------------------------------------

    async def retain(self) -> None:
        now_ms = self._clock.wall_ms()
        starts, keys = {}, []
        async for key, keeping in self._keys(with_past=True):
            keys.append(key)
            start = retained_start(self._objects, key, keeping, now_ms)
            if start is not None:
                starts[key] = start
        for some in _some(list(starts.items()), STARTS_PER_ENTRY):
            logger.info("retention moves the start of %d partitions in the object store", len(some))
            await self._agreement.propose(start_entry(dict(some)))
            self._check()
        await self._forget_silent(keys, now_ms)
        self._forget_gone(keys)

    def _forget_gone(self, keys: Iterable[Key]) -> None:
        """What is remembered of partitions that are gone."""
        kept = set(keys)
        topics = {key[0] for key in kept}
        self._keepings = {each: known for each, known in self._keepings.items() if each in topics}
        self._not_due = {key: head for key, head in self._not_due.items() if key in kept}

    async def _forget_silent(self, keys: Iterable[Key], now_ms: int) -> None:
        settings = self._settings
        silent = silent_producers(
            keys,
            lambda key: self._objects.producers(key).producers,
            now_ms - settings.producer_expiration_ms,
            Crowd(settings.producers_max, now_ms - settings.producer_idle_ms),
        )
        for some in _some(list(silent.items()), STARTS_PER_ENTRY):
            await self._agreement.propose(forget_entry(dict(some)))
            self._check()

    # --- merging and compaction ----------------------------------------------------------------------------------

    async def merge(self) -> None:
        """What is worth it, until something else is due, with rests as long as the work unless much is waiting."""
        kinds = {}
        async for key, keeping in self._keys():
            kinds[key] = keeping.kind
            self._watch.look(key)
        self._watch.keep_only(kinds)
        while (merge := self._watch.next_merge(frozenset(self.merges.damaged))) is not None:
            began_ms = self._clock.monotonic_ms()
            counts = await self.merges.merge(merge, kinds)
            for key in merge.rows:
                self._watch.look_again(key)
            if not counts:  # Others are faster. Whoever reads and writes all this in vain had better wait.
                self._due_ms["merge"] = self._clock.monotonic_ms() + REFUSED_MS
                return
            if self._watch.gathered_bytes < BACKLOG_MERGES * self._settings.merge.merge_bytes:
                await self._rest(began_ms)
            if self._is_other_work_due():
                return  # Whoever writes faster than this merges would keep everything else from being done.

    async def compact(self) -> None:
        """Everything that is due. A partition that is not done after its turn waits for the next look."""
        tried: set[Key] = set()
        while (due := await self._due_compactions(tried)) and not tried.issuperset(each.key for each in due):
            began_ms = self._clock.monotonic_ms()
            tried.update(each.key for each in due)
            await self.merges.compact(due, self._clock.wall_ms())
            for each in due:
                self._watch.look_again(each.key)
            await self._rest(began_ms)
            if self._is_other_work_due():
                return

    async def _due_compactions(self, tried: set[Key]) -> list[Compaction]:
        now_ms = self._clock.wall_ms()
        found = []
        async for key, keeping in self._keys():
            head = self._objects.head(key)
            if key in tried or key in self.merges.damaged or self._not_due.get(key) == head:
                continue
            compaction = compaction_of(self._objects, key, keeping, now_ms)
            if compaction is not None and compaction.is_due:
                found.append(compaction)
            elif not keeping.is_compacted_by_age:
                self._not_due[key] = head
        return most_urgent(found, self._settings.merge.merge_bytes)

    async def _rest(self, began_ms: int) -> None:
        took_ms = self._clock.monotonic_ms() - began_ms
        await asyncio.sleep(min(took_ms, REST_MS_MAX) / 1000)
        self._check()

    # --- collection ----------------------------------------------------------------------------------------------

    async def collect(self) -> None:
        """Tombstone what no row names any more, and delete what has been tombstoned for long enough."""
        for some in _some(list(self._objects.unreferenced()), OBJECTS_PER_ENTRY):
            await self._tombstone(some)
        before_ms = self._clock.wall_ms() - self._settings.collect_ms
        due = deletable(self._objects.tombstones, before_ms)
        for some in _some([each for each in due if self._is_covered(each)], OBJECTS_PER_ENTRY):
            await self._delete(some)

    def _is_covered(self, object_id: ObjectId) -> bool:
        """Whether coming back from the bucket alone would do without it."""
        if self.guard.covers(object_id):
            return True
        self.guard.hurry()
        return False

    async def collect_orphans(self) -> None:
        """Read all names under which we may have stored anything, and tombstone those that nobody can need. Nobody has
        ever read them, so that they need not wait for readers, but they do for snapshots, like everything else."""
        if self._objects.incarnation is None:
            return
        self.listings_total += 1
        before_ms = self._clock.wall_ms() - self._settings.collect_ms
        for prefix in chain.from_iterable(map(own_prefixes, self._objects.lives)):
            async for page in self._store.list(prefix):
                self._check()
                for some in _some(self._orphans(page, before_ms), OBJECTS_PER_ENTRY):
                    await self._tombstone(some)
                    found = [each for each in some if self._objects.is_tombstoned(each)]
                    self.orphans_total += len(found)
                    logger.info("%d objects in the store belong to nothing: they are deleted", len(found))
                    await self._delete([each for each in found if self._is_covered(each)])

    def _orphans(self, page: Sequence[StoredObject], before_ms: int) -> list[ObjectId]:
        present = {row.epoch: row.broker_id for row in self._agreement.table.brokers.values()}
        known = frozenset(self._objects.unreferenced())
        found = (
            orphan_of(self._objects, each.name, each.modified_ms, present, known, before_ms) for each in page
        )
        return [each for each in found if each is not None]

    async def _tombstone(self, objects: Sequence[ObjectId]) -> None:
        await self._agreement.propose(tombstone_entry(objects, self._clock.wall_ms()))
        self._check()

    async def _delete(self, objects: Sequence[ObjectId]) -> None:
        if not objects or not await self.guard.may_delete():
            return
        self._check()
        await self._store.delete([each.name for each in objects])
        self._check()
        await self._agreement.propose(removed_entry(objects))
        self._check()
        self.objects_deleted_total += len(objects)


def _some(each: Sequence[Each], count: int) -> Iterator[Sequence[Each]]:
    for start in range(0, len(each), count):
        yield each[start : start + count]
