"""ModeChanges: brings the records of partitions that go over to the object store there
(`cluster/metadata/residence.py`).

Whoever leads such a partition reads what is safe, stores it piece by piece as objects like those that merges make, and
has each agreed on (`objects-import`) together with what producers wrote last. The table says how far that has come, so
another leader, or this one after a restart, goes on where it ended. When little is left the replica lets nobody write
(`modes/ring/moves.py`); when it hears that nothing is left, its view ends, and with it this work.

A piece carries the offsets that it stands for (`object_format.Span`): until a snapshot of the metadata knows of it, the
bucket alone has to be enough to bring these records back.

The order makes it safe: a piece is in the store before an entry names it, a record is withdrawn from no disk before the
partition has gone over, and the partition goes over only at the very offset up to which the table has everything.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from anabranch.broker.topics.partition import Partition
from anabranch.broker.workers import in_heavy_worker
from anabranch.cluster.metadata.rows import Placement
from anabranch.cluster.objects.entries import Import, import_entry
from anabranch.errors import (
    AnabranchError,
    NotOwnerError,
    ObjectExistsError,
    WorkStoppedError,
)
from anabranch.log.segment.slice import Slice
from anabranch.objects.layout.format import Span
from anabranch.objects.layout.merge import build_copied_object, kept_ranges
from anabranch.objects.layout.names import Key, Row
from anabranch.values import Generation, Offset

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.object.objects import Objects

logger = logging.getLogger(__name__)

PIECE_BYTES = 16 * 2**20
PRODUCERS_PER_ENTRY = 1000
NAMES_TRIED_MAX = 100
PAUSE_SECONDS = 0.05
AGAIN_SECONDS = 1.0


class ModeChanges:
    def __init__(self, broker: "Broker", objects: "Objects") -> None:
        self._broker = broker
        self._objects = objects
        self._tasks: dict[Partition, asyncio.Task[None]] = {}

    def placed(self, partition: Partition, placement: Placement) -> None:
        """A partition that is kept here goes over to the object store."""
        if placement.leaves_for_store and partition not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._bring(partition))
            self._tasks[partition] = task
            task.add_done_callback(lambda done: self._ended(partition, done))

    def closed(self, partition: Partition) -> None:
        task = self._tasks.get(partition)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, partition: Partition, task: asyncio.Task[None]) -> None:
        del self._tasks[partition]
        if not task.cancelled() and task.exception() is not None:
            logger.error(
                "%s could not be brought to the object store: this is a defect",
                partition.id,
                exc_info=task.exception(),
            )

    async def _bring(self, partition: Partition) -> None:
        """As long as it goes over; every replica waits to lead it."""
        bringing: Bringing | None = None
        complaint = ""
        while (move := self._move_of(partition)) is not None:
            pause = PAUSE_SECONDS
            if not partition.driver.leads_replicas:
                bringing = None
            else:
                generation = partition.generation
                if bringing is None or (bringing.generation, bringing.move) != (generation, move):
                    bringing = Bringing(self._broker, self._objects, partition, generation, move)
                try:
                    pause = PAUSE_SECONDS if await bringing.go_on() else 0.0
                    complaint = ""
                except AnabranchError as error:
                    if str(error) != complaint:
                        logger.warning("%s goes on to the object store in a moment: %s", partition.id, error)
                    complaint, pause = str(error), AGAIN_SECONDS
            await asyncio.sleep(pause)

    def _move_of(self, partition: Partition) -> int | None:
        """The decision that it shall go over; None: it shall not, or not any more."""
        table = self._broker.metadata.table
        topic = table.topics_by_id.get(partition.topic_id)
        if partition.is_gone or topic is None:
            return None
        placement = table.placement(topic, partition.id.partition)
        return placement.move if placement.leaves_for_store else None


class Piece(NamedTuple):
    """What a log has from where the store ends; `end`: up to there nothing is missing."""

    data: list[bytes]
    end: Offset


class Bringing:
    """One leadership's part in bringing one partition to the store."""

    def __init__(
        self,
        broker: "Broker",
        objects: "Objects",
        partition: Partition,
        generation: Generation,
        move: int,
    ) -> None:
        self.generation = generation
        self.move = move
        self._broker = broker
        self._objects = objects
        self._partition = partition
        self._key: Key = (partition.topic_id, partition.id.partition)
        self._sent: dict[int, list[Any]] = {}
        """Of each producer, what the table was told last: by this leadership, for nobody knows what others told."""
        self._is_first = True

    async def go_on(self) -> bool:
        """Bring a piece, and if that was all there was, say so: only then is it time to let nobody write. Whether it
        was. Raises what the disk, the store or the quorum says."""
        partition, head = self._partition, self._broker.metadata.table.objects.head(self._key)
        safe = partition.high_watermark
        if safe < head.end:
            return True  # A new leader does not know yet how much of its log is safe.
        if await self._began_anew(head.end):
            return False
        piece = await self._read(max(head.end, partition.log.start_offset), safe)
        start = max(head.start, min(partition.start_offset, piece.end))
        producers = self._news(piece.end)
        if piece.end > head.end or start > head.start or producers:
            rows = await self._put(piece.data, Span(head.end, piece.end)) if piece.end > head.end else []
            await self._agree(Import(self._key, self.move, start, piece.end, rows, producers))
        known = self._broker.metadata.table.objects.head(self._key)
        if piece.end == safe and min(partition.start_offset, piece.end) <= known.start:
            self._say(piece.end)  # Else somebody has deleted records meanwhile, which must not come back.
        return piece.end == safe

    async def _began_anew(self, stored_end: Offset) -> bool:
        """Logs that are compacted differ: with the older records of one and the newer ones of another, a key could come
        back whose deletion one of them has forgotten. So all of it comes from one."""
        topic = self._broker.metadata.table.topics_by_id.get(self._key[0])
        is_first, self._is_first = self._is_first, False
        if not is_first or topic is None or not self._partition.settings.is_compacted:
            return False
        floor = self._broker.metadata.table.placement(topic, self._key[1]).floor
        if stored_end <= floor:
            return False
        await self._propose(Import(self._key, self.move, Offset(0), floor, (), (), is_anew=True))
        return True

    # --- reading -------------------------------------------------------------------------------------------------

    async def _read(self, start: Offset, upto: Offset) -> Piece:
        """Whole batches, about `PIECE_BYTES` at most."""
        found: list[bytes] = []
        size, at = 0, start
        while at < upto and size < PIECE_BYTES:
            part = self._partition.log.slice(at, PIECE_BYTES - size, upto)
            if not part.count:
                return Piece(found, upto)  # Nothing follows: retention or the cleaner has been there.
            part.pin()
            try:
                data, at = await in_heavy_worker(self._broker.workers, lambda part=part: _whole(part))  # type: ignore[misc]
            finally:
                part.unpin()
            found.append(data)
            size += len(data)
        return Piece(found, max(at, start))

    # --- storing -------------------------------------------------------------------------------------------------

    async def _put(self, data: Sequence[bytes], span: Span) -> Sequence[Row]:
        """Also if there is nothing: that offsets up to the span's end were given out is to be known as well."""
        table, names, workers = self._broker.metadata.table, self._objects.names, self._broker.workers
        made = await in_heavy_worker(workers, lambda: kept_ranges(b"".join(data)) if data else [])
        for _ in range(NAMES_TRIED_MAX):
            object_id = names.take(table)
            build = partial(build_copied_object, self._key, made, span, object_id)
            pieces, rows = await in_heavy_worker(workers, build)
            try:
                await self._objects.store.put(object_id.name, pieces)
            except ObjectExistsError:
                continue  # What an earlier process has left.
            return rows
        raise WorkStoppedError(f"{NAMES_TRIED_MAX} names for an object are all taken.")

    # --- agreeing ------------------------------------------------------------------------------------------------

    def _news(self, end: Offset) -> list[list[Any]]:
        """What producers have written below `end` that the table was not told."""
        rows = [_without_checksums(row) for row in self._partition.producers.snapshot(end)]
        return [row for row in rows if self._sent.get(row[0]) != row]

    async def _agree(self, part: Import) -> None:
        """Producers first, some at a time, and with the last of them the rows: nothing counts as stored before."""
        broker, producers = self._broker, list(part.producers)
        head = broker.metadata.table.objects.head(self._key)
        while len(producers) > PRODUCERS_PER_ENTRY:
            some, producers = producers[:PRODUCERS_PER_ENTRY], producers[PRODUCERS_PER_ENTRY:]
            await self._propose(part._replace(start=head.start, end=head.end, rows=(), producers=some))
        await self._propose(part._replace(producers=producers))
        if broker.metadata.table.objects.head(self._key).end != part.end:
            raise NotOwnerError("what was stored came too late, and is stored again")
        self._sent.update((row[0], list(row)) for row in part.producers)

    async def _propose(self, part: Import) -> None:
        broker = self._broker
        _, epoch = self._objects.names.check(broker.metadata.table)
        await self._objects.proposals.propose(import_entry(self._objects.names.me, epoch, part))
        await broker.metadata.caught_up()  # At the leader it has been applied.

    def _say(self, end: Offset) -> None:
        partition = self._partition
        is_leader = not partition.is_gone and partition.driver.leads_replicas
        if is_leader and partition.generation == self.generation:
            partition.driver.stored(end)


def _without_checksums(row: list[Any]) -> list[Any]:
    """Of what was written in branches: in the store, where nobody else writes, numbers alone tell batches apart."""
    producer_id, epoch, time_ms, batches = row
    return [producer_id, epoch, time_ms, [batch[:3] for batch in batches]]


def _whole(part: Slice) -> tuple[bytes, Offset]:
    """In a worker: the bytes of a slice, each batch checked, and what follows them."""
    data = part.read()
    return data, kept_ranges(data)[-1].next_offset
