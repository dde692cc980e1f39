"""QuorumWriter: carries out what the core of the metadata quorum has ready, in its order: term and vote, a snapshot,
entries, each on the disk before the messages that follow from it leave and the core is told.

One thing after the other, by one task that lives while there is something to do. What comes meanwhile waits, and
entries that follow each other are written together and share one sync. Appends go the way of every partition; what
truncates or replaces the log runs in a worker while nobody else may touch its files. What a full disk did not take is
tried again, and all else waits for it. Any other write that fails is the last: the owner is told, and decides.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from anabranch.broker.metadata.quorum_store import QuorumState, QuorumStore, batch_of
from anabranch.broker.topics.partition import Partition
from anabranch.broker.workers import in_heavy_worker
from anabranch.broker.write.core import BrokerCore
from anabranch.cluster.metadata.table import FrozenTable, MetadataTable, carried
from anabranch.cluster.raft.messages import Entry, Member, Message, Snapshot
from anabranch.cluster.raft.quorum import Ready
from anabranch.errors import CorruptDataError, StorageError
from anabranch.modes.solo import SoloMode
from anabranch.record.batch import read_header, stamp
from anabranch.values import BrokerId, Generation, Offset

if TYPE_CHECKING:
    from anabranch.cluster.objects.rows import Coordinates

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
WRITE_AGAIN_SECONDS = 1.0


class Owner(Protocol):
    """Whom the writer tells."""

    me: Member

    def send(self, messages: list[Message]) -> None: ...

    def persisted(self, token: tuple[int, int]) -> None: ...

    def replaced(self, snapshot: Snapshot, table: MetadataTable) -> None: ...

    def empty_table(self) -> MetadataTable: ...

    def waits_for_room(self, error: StorageError) -> bool:
        """The disk took nothing: is it to be tried again? If so, nothing of this may be counted on until `has_room`."""
        ...

    def has_room(self) -> None: ...

    def refused(self, error: StorageError) -> None: ...


class QuorumWriter:
    def __init__(
        self, core: BrokerCore, store: QuorumStore, partition: Partition, state: QuorumState, owner: Owner
    ) -> None:
        self._core = core
        self._store = store
        self._partition = partition
        self._state = state
        self._owner = owner
        self._queue: deque[Ready] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_vote_pending = False
        self._is_over = False
        self._snapshot_lock = asyncio.Lock()
        partition.generation = Generation(state.term)

    def write_at_start(self, ready: Ready) -> None:
        """On the spot, as everything at a start; nobody can be told anything yet."""
        log, now_ms = self._partition.log, self._core.clock.wall_ms()
        if ready.vote is not None:
            self._write_vote(ready.vote)
        start, entries = ready.entries or (log.end_offset, [])
        stamped = []
        for offset, entry in enumerate(entries, start):
            batch = batch_of(entry, now_ms)
            stamp(batch, 0, Offset(offset), Generation(entry.term))
            stamped.append((batch, Offset(offset), Offset(offset), read_header(batch).max_timestamp))
        log.append(stamped, now_ms)
        log.sync()
        self._begin_anew()

    # --- what comes in -------------------------------------------------------------------------------------------

    def take(self, ready: Ready) -> None:
        if ready.vote is not None:
            self._is_vote_pending = True
        elif self._is_vote_pending:
            ready.now, ready.after = [], ready.after + ready.now  # Its term is not on the disk yet.
        self._owner.send(ready.now)
        has_work = ready.vote is not None or ready.snapshot is not None or ready.entries is not None
        if has_work or self._queue or self._task is not None:
            self._queue.append(ready)
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._work())
        else:
            self._owner.send(ready.after)

    def clear(self) -> None:
        """Nothing more is to be written."""
        self._queue.clear()
        self._is_over = True

    async def idle(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])

    # --- the task ------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        try:
            while self._queue:
                await self._carry_out(self._take_group())
        except StorageError as error:
            self._refuse(error)
        except CorruptDataError as error:
            self._refuse(StorageError(str(error)))
        except Exception:
            logger.exception("the metadata quorum cannot be written: this is a defect")
            self._refuse(StorageError("The metadata was not written for a reason that was not expected."))
        finally:
            self._task = None

    def _refuse(self, error: StorageError) -> None:
        self._queue.clear()
        self._is_vote_pending = False
        self._owner.refused(error)

    def _take_group(self) -> list[Ready]:
        """The first, and those behind it whose entries just go on where its entries end."""
        group = [self._queue.popleft()]
        start, entries = group[0].entries or (None, [])
        end = None if start is None else start + len(entries)
        while self._queue:
            ready = self._queue[0]
            if ready.vote is not None or ready.snapshot is not None:
                break
            if ready.entries is not None and ready.entries[0] != end:
                break
            if ready.entries is not None and end is not None:
                end += len(ready.entries[1])
            group.append(self._queue.popleft())
        return group

    async def _carry_out(self, group: Sequence[Ready]) -> None:
        try:
            await self._write(group)
        except StorageError as error:
            # Of a snapshot that takes the place of everything half may be there.
            if group[0].snapshot is not None or not self._owner.waits_for_room(error):
                raise
            await self._write_again(group)
        self._is_vote_pending = any(ready.vote is not None for ready in self._queue)
        for ready in group:
            self._owner.send(ready.after)
        self._owner.persisted(group[-1].token)

    async def _write_again(self, group: Sequence[Ready]) -> None:
        while True:
            await asyncio.sleep(WRITE_AGAIN_SECONDS)
            try:
                await self._write(group)
            except StorageError as error:
                if self._is_over or not self._owner.waits_for_room(error):
                    raise
            else:
                self._owner.has_room()
                return

    async def _write(self, group: Sequence[Ready]) -> None:
        first = group[0]
        if first.vote is not None:
            vote = first.vote
            await self._in_sync_worker(lambda: self._write_vote(vote))
        if first.snapshot is not None:
            await self._replace(first.snapshot)
        if first.entries is not None:
            entries = [entry for ready in group if ready.entries is not None for entry in ready.entries[1]]
            await self._append(first.entries[0], entries)

    def _write_vote(self, vote: tuple[int, Member | None]) -> None:
        self._state = self._state._replace(term=vote[0], vote=vote[1])
        self._store.write_state(self._state)

    # --- entries -------------------------------------------------------------------------------------------------

    async def _append(self, start: int, entries: Sequence[Entry]) -> None:
        partition, log = self._partition, self._partition.log
        if start < log.end_offset:
            await self._alter_log(lambda: log.truncate_to(Offset(start)))
        assert log.end_offset == start, "entries follow each other without a gap"
        now_ms = self._core.clock.wall_ms()
        for term, run in groupby(entries, lambda entry: entry.term):
            partition.generation = Generation(term)
            await _all_of([self._core.append(partition, batch_of(entry, now_ms)) for entry in run])

    async def _alter_log(self, change: Callable[[], None]) -> None:
        """What no other may see half done, and no sync may run across."""
        await self._core.syncer.idle(self._partition)
        async with self._partition.upkeep:
            await self._in_sync_worker(change)
        self._begin_anew()

    def _begin_anew(self) -> None:
        """The end of the log has moved without the partition: what it took for safe is another thing now."""
        partition, end = self._partition, self._partition.log.end_offset
        partition.mode = SoloMode(BrokerId(self._owner.me.broker_id), end, sync_first=True)
        partition.high_watermark = end

    # --- snapshots -----------------------------------------------------------------------------------------------

    async def _replace(self, snapshot: Snapshot) -> None:
        """What lies beside the snapshot, such as coordinates of objects, is on the disk before it, and what only ours
        has named goes behind it."""
        log = self._partition.log
        async with self._snapshot_lock:
            read = partial(_read_table, snapshot, self._owner.empty_table())
            table, frozen, value = await in_heavy_worker(self._core.workers, read)
            await self._alter_log(lambda: self._store.replace_all(snapshot, value, log))
            frozen.kept()
            self._owner.replaced(snapshot._replace(data=json.dumps(value).encode()), table)
            await in_heavy_worker(self._core.workers, frozen.remove_others)

    async def write_snapshot(
        self,
        freeze: Callable[[], tuple[Snapshot, FrozenTable] | None],
        is_written: Callable[[Snapshot], None],
    ) -> None:
        """Write our own table aside and drop the entries below; other writes go on meanwhile. `freeze` says what is
        to be written, once its turn has come; `is_written` gets it with the table as our own snapshot has it."""

        def write() -> Snapshot:
            try:
                table = frozen.write()
            except StorageError:
                frozen.discard()
                raise
            # If this is refused, the disk may have it all the same: the files that it names stay.
            self._store.write_snapshot(snapshot, table)
            return snapshot._replace(data=json.dumps(table).encode())

        async with self._snapshot_lock:
            found = freeze()
            if found is None:
                return  # Another member's has taken its place.
            snapshot, frozen = found
            written = await in_heavy_worker(self._core.workers, write)
            frozen.kept()
            is_written(written)
            await self._drop_entries(Offset(snapshot.end))
            await in_heavy_worker(self._core.workers, frozen.remove_others)

    async def carry(
        self, present: Callable[[], Snapshot], coordinates: "Callable[[], Coordinates]"
    ) -> Snapshot:
        """The present snapshot in the form that another broker can read. Raises CorruptDataError, StorageError."""

        def make() -> bytes:
            assert isinstance(snapshot.data, bytes)
            return json.dumps(carried(json.loads(snapshot.data), coordinates)).encode()

        async with self._snapshot_lock:  # None of its files goes meanwhile.
            snapshot = present()
            return snapshot._replace(data=await in_heavy_worker(self._core.workers, make))

    async def _drop_entries(self, end: Offset) -> None:
        log = self._partition.log
        async with self._partition.upkeep:
            if self._partition.is_gone:
                return
            log.roll()
            log.advance_start(end)
            dropped = log.drop([each for each in log.segments[:-1] if each.published_offset <= end])
            await in_heavy_worker(self._core.workers, lambda: log.delete_files(dropped))

    async def _in_sync_worker(self, task: Callable[[], Result]) -> Result:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def done(result: Result | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]  # None only where Result is None.

        self._core.workers.sync(task, done)
        return await future


async def _all_of(futures: "list[asyncio.Future[Offset]]") -> None:
    """Raises the first error once all have ended."""
    if len(futures) == 1:
        await futures[0]
        return
    for result in await asyncio.gather(*futures, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _read_table(snapshot: Snapshot, table: MetadataTable) -> tuple[MetadataTable, FrozenTable, Any]:
    """A leader's snapshot as the table it stands for, and as our own snapshot: once it is on the disk, nothing else
    is."""
    if not isinstance(snapshot.data, bytes | bytearray | memoryview):
        raise CorruptDataError("The leader's snapshot of the metadata has no table.")
    try:
        table.restore(json.loads(bytes(snapshot.data)))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CorruptDataError(f"The leader's snapshot of the metadata is no table: {error!r}.") from error
    frozen = table.freeze()
    return table, frozen, frozen.write()
