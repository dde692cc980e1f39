"""ObjectSnapshots: writes to the object store what a cluster needs to come back from its bucket alone.

The leader of the metadata quorum (or the node alone) writes what everybody has agreed on, every `object.snapshot.ms` if
something has changed, and within a second of any change of a topic: records of a topic that no snapshot knows would
come back without its name. Each broker writes the committed offsets of the groups it coordinates (group_snapshots.py).
Of each the newest few are kept. A store that is away delays them; nobody waits for a snapshot.

A snapshot of what was agreed on is read back after it was written, and counts once it has proved to be whole: it is
*verified*. The three newest verified ones are kept; everything else goes once there are two of them.

Two promises to whoever deletes objects. `covers`: the two newest verified ones know that an object is given up, so that
coming back never needs it, even if one of them cannot be read by then. `may_delete`: nobody has brought this cluster
back as another one, to which the objects now belong.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from anabranch.broker.coordination.group_snapshots import GroupSnapshots
from anabranch.broker.restore.bucket_survey import SNAPSHOTS_NEEDED
from anabranch.broker.workers import in_heavy_worker
from anabranch.cluster.metadata.entries import Entry
from anabranch.cluster.objects.entries import over_entry, tombstone_entry
from anabranch.errors import (
    AnabranchError,
    CorruptDataError,
    NotControllerError,
    ObjectExistsError,
    QuorumBusyError,
    StorageError,
    StoreError,
    StoreUnavailableError,
)
from anabranch.objects.layout.names import ObjectId
from anabranch.objects.layout.snapshots import (
    FenceId,
    MetadataId,
    fence_id_of,
    fences_prefix,
    metadata_id_of,
    metadata_prefix,
    metadata_value,
    pack_snapshot,
    unpack_snapshot,
)
from anabranch.objects.store import ObjectStore
from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

KEPT = 3
RETRY_SECONDS = 5.0
GATHER_SECONDS = 0.2
"""After a change of a topic: others may follow."""
STOP_SECONDS_MAX = 1.0
SETTLE_SECONDS_MAX = 2.0
TOPIC_CHANGES = frozenset({"topic", "topic-removed", "topic-config", "partitions", "boundary", "keep"})

logger = logging.getLogger(__name__)


class Verified(NamedTuple):
    """A snapshot that has proved to be whole in the store."""

    metadata_id: MetadataId
    given_up: frozenset[ObjectId]
    """The tombstones in it."""


class ObjectSnapshots:
    def __init__(self, broker: "Broker", store: ObjectStore) -> None:
        self._broker = broker
        self._store = store
        self._groups = GroupSnapshots(broker, store)
        self._task: asyncio.Task[None] | None = None
        self._is_urgent = asyncio.Event()
        self._taking = asyncio.Lock()
        self._is_named = asyncio.Event()
        """The cluster has an incarnation."""
        self._stored_end = Offset(-1)
        self._verified: list[Verified] = []
        """The newest ones, the newest last, of the term in which this broker leads: another leader may delete what was
        written before."""
        self._term = -1
        self._is_another_due = False
        """Something waits for one more snapshot, even if nothing changes."""
        self._is_failing = False
        broker.metadata.subscribe(self._changed)
        self._note_incarnation()

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """With one last snapshot, if the store answers soon."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self._take_or_say()

    def _changed(self, offset: Offset, entry: Entry | None) -> None:
        if entry is None or entry["type"] == "objects-incarnation":
            self._note_incarnation()
        elif entry["type"] in TOPIC_CHANGES:
            self._is_urgent.set()

    def _note_incarnation(self) -> None:
        if self._incarnation is not None and not self._is_named.is_set():
            self._is_named.set()
            self._is_urgent.set()

    async def _run(self) -> None:
        seconds = self._broker.settings.object_snapshot_ms / 1000
        while True:
            is_done = await self._take_or_say()
            await self._pause(seconds if is_done else min(RETRY_SECONDS, seconds))

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._is_urgent.wait()
        except TimeoutError:
            return
        await asyncio.sleep(GATHER_SECONDS)

    async def _take_or_say(self) -> bool:
        self._is_urgent.clear()
        try:
            await self.take()
        except (StoreError, StorageError, CorruptDataError, NotControllerError, QuorumBusyError) as error:
            if not self._is_failing:
                logger.warning("no snapshot can be written to the object store: %s", error)
            self._is_failing = True
            return False
        except Exception:
            logger.exception("no snapshot can be written to the object store: this is a defect")
            return False
        self._is_failing = False
        return True

    async def settle(self) -> None:
        """Until the store knows all that was agreed on before, or does not answer soon."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS_MAX):
                await self._is_named.wait()
                await self._take_or_say()

    # --- one round -----------------------------------------------------------------------------------------------

    async def take(self) -> None:
        """Write whatever has changed since the last time. Raises StoreError."""
        async with self._taking:
            await self._take()

    async def _take(self) -> None:
        incarnation = self._incarnation
        if incarnation is None or self._is_over:
            return
        failure: AnabranchError | None = None
        if self._broker.metadata.is_leader:
            try:
                await self._take_if_changed(incarnation)
            except AnabranchError as error:
                failure = error  # Groups do not wait for it: their offsets would only become older.
        if not self._is_over:
            await self._groups.take(incarnation)
        if failure is not None:
            raise failure

    async def _take_if_changed(self, incarnation: int) -> None:
        metadata = self._broker.metadata
        if self._term != metadata.term:
            self._term, self._stored_end, self._verified = metadata.term, Offset(-1), []
        if self._is_another_due and metadata.applied_end == self._stored_end:
            # A name says where in the log a snapshot was taken: an entry that changes nothing makes room for another.
            await metadata.propose(tombstone_entry([], self._broker.clock.wall_ms()))
        if metadata.applied_end == self._stored_end:
            return
        await self._find_successor(incarnation)
        if not self._is_over:
            await self._take_metadata(incarnation)
            self._is_another_due = False

    @property
    def _is_over(self) -> bool:
        """Somebody has brought this cluster back: whatever is written now belongs to nobody."""
        return self._broker.metadata.table.objects.successor is not None

    @property
    def _incarnation(self) -> int | None:
        table = self._broker.metadata.table
        return table.objects.incarnation if table.has_objects else None

    async def _take_metadata(self, incarnation: int) -> None:
        broker, table = self._broker, self._broker.metadata.table
        end, given_up = broker.metadata.applied_end, frozenset(table.objects.tombstones)
        snapshot = MetadataId(incarnation, end)
        table_now, time_ms = table.snapshot_later(), broker.clock.wall_ms()
        # Where there are many, those silent for the shorter of the two are forgotten.
        settings = broker.settings
        silence_ms = min(settings.producer_id_expiration_ms, settings.producer_id_idle_ms)

        def packed() -> bytes:
            value = metadata_value(snapshot, table_now(), time_ms=time_ms, producer_silence_ms=silence_ms)
            return pack_snapshot(value)

        data = await in_heavy_worker(broker.workers, packed)
        # Of what is agreed on at one point there is one snapshot only: an earlier try has done it.
        with contextlib.suppress(ObjectExistsError):
            await self._store.put(snapshot.name, [data])
        await self._verify(snapshot, data)
        if self._term != broker.metadata.term:
            return  # Another has led meanwhile: what it has deleted is not known here.
        self._stored_end = end
        self._verified = [*self._verified[1 - KEPT :], Verified(snapshot, given_up)]
        await self._prune(incarnation)

    async def _verify(self, snapshot: MetadataId, data: bytes) -> None:
        """Read it back. One that is not whole is removed, so that the next try can write it again."""
        found = await self._store.get(snapshot.name)
        if found == data or await in_heavy_worker(
            self._broker.workers, lambda: _is_whole_snapshot(found, snapshot)
        ):
            return
        await self._store.delete([snapshot.name])
        raise StoreUnavailableError(
            f"{self._store.url} has other bytes of {snapshot.name} than were written: it is written again."
        )

    async def _prune(self, incarnation: int) -> None:
        names = await listed_names(self._store, metadata_prefix(incarnation))
        found = sorted(each for each in map(metadata_id_of, names) if each is not None)
        needed = {each.metadata_id for each in self._verified}
        if len(needed) < SNAPSHOTS_NEEDED:
            needed.update(found[-KEPT:])  # Whoever led before has verified some of them.
        if not needed:
            return  # This broker lost the leadership meanwhile, and somebody else has emptied the folder.
        # Newer ones are of whoever leads now, if this broker has lost that meanwhile: they are not its to judge.
        newest = max(needed)
        await self._store.delete([each.name for each in found if each < newest and each not in needed])

    # --- whoever deletes objects -----------------------------------------------------------------------------------

    def covers(self, object_id: ObjectId) -> bool:
        """Whether the two newest verified snapshots know that this object is tombstoned: one that does not may still
        name it, and what it names has to be there if the other cannot be read."""
        metadata = self._broker.metadata
        return (
            metadata.is_leader
            and metadata.term == self._term
            and len(self._verified) >= SNAPSHOTS_NEEDED
            and all(object_id in each.given_up for each in self._verified[-SNAPSHOTS_NEEDED:])
        )

    def hurry(self) -> None:
        """Something waits for the next snapshot: take it soon."""
        self._is_another_due = True
        self._is_urgent.set()

    async def may_delete(self) -> bool:
        """To be asked right before: whoever brings a cluster back says so before it looks at what there is. Raises
        StoreError."""
        incarnation = self._incarnation
        return incarnation is not None and not await _fences(self._store, incarnation)

    async def _find_successor(self, incarnation: int) -> None:
        for fence in await _fences(self._store, incarnation):
            if await listed_names(self._store, metadata_prefix(fence.successor)):
                logger.error(
                    "this cluster was brought back from %s as another one: it takes no more writes; stop it",
                    self._store.url,
                )
                async with self._broker.metadata.lock:
                    await self._broker.metadata.commit(over_entry(fence.successor))
                return


def _is_whole_snapshot(data: bytes, snapshot: MetadataId) -> bool:
    """In a worker: whether these bytes, written by an earlier try, are that snapshot."""
    try:
        value = unpack_snapshot(data)
    except CorruptDataError:
        return False
    return (value.get("incarnation"), value.get("end")) == (f"{snapshot.incarnation:016x}", snapshot.end)


async def _fences(store: ObjectStore, incarnation: int) -> list[FenceId]:
    names = await listed_names(store, fences_prefix(incarnation))
    return [each for each in map(fence_id_of, names) if each is not None]


async def listed_names(store: ObjectStore, prefix: str) -> Sequence[str]:
    return [each.name async for page in store.list(prefix) for each in page]
