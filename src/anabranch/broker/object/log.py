"""ObjectLog: the log of a partition whose records lie in the object store, as its readers see it.

What there is, the agreed table says: start, end, and rows of coordinates, which are looked up anew at every call,
because they change when objects are merged. The bytes come through the block cache. `slice` never waits: it is ready,
or names the blocks it is missing, or has to be verified first (see `slice.py`); `loaded` does wait.

A slice may span rows, as far as they are at hand. A reader that asks twice where its last slice ended is taken for a
sequential one, and the blocks it will want next are loaded before it does.

For the loop's thread.
"""

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from anabranch.broker.object.cache.block_cache import BlockCache, Loan
from anabranch.broker.object.cache.blocks import Block, BlockKey, block_bytes, keys_of
from anabranch.broker.object.slice import Check, ObjectSlice, Part
from anabranch.broker.object.times import first_at_or_after, of_largest_timestamp
from anabranch.broker.topics.archived_prefix import Moment
from anabranch.broker.workers import Workers, in_heavy_worker
from anabranch.cluster.objects.entries import Key
from anabranch.errors import (
    CorruptDataError,
    ObjectGoneError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    StorageError,
)
from anabranch.objects.layout.batch_walk import Walk
from anabranch.objects.layout.names import ObjectId, Row
from anabranch.values import Offset

ROWS_PER_SLICE = 64
CHECKED_AT_ONCE_BYTES = 256 * 2**10
CHECKED_AT_ONCE_BATCHES = 512
"""More than these are looked at in a worker, so that nobody else waits."""
AHEAD_BYTES = 8 * 2**20
AHEAD_BLOCKS = 4
AHEAD_ROWS = 16
READERS_REMEMBERED = 16
LOOKUP_MS_MAX = 10_000

Result = TypeVar("Result")


class Head(Protocol):
    @property
    def start(self) -> Offset: ...
    @property
    def end(self) -> Offset: ...
    @property
    def size_bytes(self) -> int: ...


class Coordinates(Protocol):
    """What the agreed table says of where records lie (`cluster.objects.table.ObjectTable`)."""

    def head(self, key: Key) -> Head: ...

    def rows(self, key: Key, start: Offset, count_max: int) -> Sequence[Row]: ...

    def row_at_time(self, key: Key, timestamp_ms: int) -> Row | None: ...

    def newest_row(self, key: Key) -> Row | None: ...


class Missing(NamedTuple):
    """These blocks have to be loaded first; the others, which they are of use with, are at hand."""

    keys: Sequence[BlockKey]
    present: Sequence[Block]
    walk: Walk


class NoRoom(NamedTuple):
    """What comes next is larger than what is left, or reaches too far."""


Step = Part | Check | Missing | NoRoom | None


class ObjectLog:
    fenced = False

    def __init__(
        self, name: str, key: Key, objects: Coordinates, cache: BlockCache, workers: Workers
    ) -> None:
        self.name = name
        self.key = key
        self.cache = cache
        self.objects = objects
        self._workers = workers
        self._readers: OrderedDict[Offset, int] = OrderedDict()
        """Where a reader is expected next, and how often one came where it was."""

    # --- what is known ---------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> Offset:
        return self.objects.head(self.key).start

    @property
    def end_offset(self) -> Offset:
        """The next record gets this offset."""
        return self.objects.head(self.key).end

    @property
    def size_bytes(self) -> int:
        return self.objects.head(self.key).size_bytes

    # --- slices ----------------------------------------------------------------------------------------------

    def slice(self, start: Offset, bytes_max: int, upto: Offset, *, whole_first: bool = True) -> ObjectSlice:
        """Whole batches from the one that holds `start` on, at most `bytes_max` and none that reaches `upto`.

        With `whole_first` the first batch comes even if it is larger. Empty if there is nothing below `upto`. Raises
        OffsetOutOfRangeError; CorruptDataError where the store's own bytes are damaged; StorageError if it has lost
        them.
        """
        head = self.objects.head(self.key)
        if not head.start <= start <= head.end:
            raise OffsetOutOfRangeError(
                f"Offset {start} is not within {head.start} to {head.end} of {self.name}."
            )
        upto = min(upto, head.end)
        parts: list[Part] = []
        size, at = 0, start
        rows = self.objects.rows(self.key, start, ROWS_PER_SLICE) if start < upto else ()
        for row in rows:
            if row.base_offset >= upto:
                break
            step = self._step(row, at, bytes_max - size, upto, whole_first=whole_first and not parts)
            if isinstance(step, Part):
                parts.append(step)
                size += step.end - step.start
                at = Offset(step.walk.next_offsets[step.last - 1])
                if step.end < row.position + row.length:
                    break
            elif step is not None:
                if not parts and not isinstance(step, NoRoom):
                    return self._unready(step, row, start, bytes_max)
                break
        served = partial(self._served, start, at)
        return ObjectSlice(self.cache, size, parts=parts, is_cut=at < upto and bool(parts), served=served)

    def _unready(self, step: Check | Missing, row: Row, start: Offset, bytes_max: int) -> ObjectSlice:
        guess = max(1, min(row.length, bytes_max))
        if isinstance(step, Check):
            return ObjectSlice(self.cache, guess, check=step, present=step.blocks, walk=step.walk)
        if start in self._readers:
            self._read_ahead(row.next_offset, len(step.keys))
        return ObjectSlice(self.cache, guess, missing=step.keys, present=step.present, walk=step.walk)

    def _step(self, row: Row, start: Offset, left: int, upto: Offset, *, whole_first: bool) -> Step:
        """What one row gives. A check that costs little is made at once."""
        step = self._look(row, start, left, upto, whole_first=whole_first)
        while isinstance(step, Check) and _is_small(step):
            try:
                step.run()
            except CorruptDataError:
                if not self.cache.distrust(step.blocks):
                    raise
            else:
                step.note(self.cache)
            step = self._look(row, start, left, upto, whole_first=whole_first)
        return step

    def _look(self, row: Row, start: Offset, left: int, upto: Offset, *, whole_first: bool) -> Step:
        walk = self.cache.walk_of(row)
        first = walk.batch_of(start)
        if first == len(walk.next_offsets):
            return self._look_further(walk, start) if not walk.is_whole else None
        position = walk.positions[first]
        last = walk.last_within(position + left, upto)
        if last <= first:
            if not whole_first or walk.next_offsets[first] > upto:
                return NoRoom()
            last = first + 1
        blocks, end = self._blocks(row.object_id, position, walk.positions[last])
        if end < walk.positions[last]:
            last = bisect_right(walk.positions, end) - 1
            if last <= first:
                return self._missing(walk, end, walk.positions[first + 1], blocks)
            end = walk.positions[last]
        if all(block.is_good(position, end) for block in blocks):
            return Part(walk, first, last, blocks)
        return Check(walk, position, walk.base_of(first), blocks)

    def _look_further(self, walk: Walk, start: Offset) -> Check | Missing:
        """Where the batches lie that nobody has seen: in a long row no further than a block, or the next batch."""
        row, position = walk.row, walk.frontier
        size = block_bytes(row.object_id)
        block_end = min((position // size + 1) * size, row.position + row.length)
        wanted_end = max(walk.wanted_end, block_end)
        blocks, end = self._blocks(row.object_id, position, wanted_end)
        if end == wanted_end:
            return Check(walk, position, walk.next_offset, blocks)
        missing = self._missing(walk, end, wanted_end, blocks)
        for key in self._on_the_way(walk, start, wanted_end):
            self.cache.want_ahead(key)
        return missing

    def _on_the_way(self, walk: Walk, start: Offset, position: int) -> Sequence[BlockKey]:
        """Blocks of a long row that have to be gone through before the one that has `start`, at a guess."""
        row = walk.row
        share = (start - walk.next_offset) / max(1, row.next_offset - walk.next_offset)
        end = walk.frontier + round(share * (row.position + row.length - walk.frontier))
        return keys_of(row.object_id, position, end)[: AHEAD_BLOCKS - 1] if end > position else ()

    def _blocks(self, object_id: ObjectId, start: int, end: int) -> tuple[list[Block], int]:
        """Those at hand for the bytes from `start` on, without a gap, and how far they reach."""
        blocks: list[Block] = []
        for key in keys_of(object_id, start, end):
            block = self.cache.get(key)
            if block is None or (block.end < end and self._is_short(block, end)):
                return blocks, max(start, key.start)
            blocks.append(block)
        return blocks, end

    def _is_short(self, block: Block, end: int) -> bool:
        """An object ends before its rows do. Raises CorruptDataError if the store says so twice."""
        if block.end >= min(end, block.key.end):
            return False
        if not self.cache.distrust([block]):
            name = block.key.object_id.name
            raise CorruptDataError(
                f"{name} ends at {block.end}, before records of {self.name} that it holds."
            )
        return True

    def _missing(self, walk: Walk, start: int, end: int, present: Sequence[Block]) -> Missing:
        object_id = walk.row.object_id
        try:
            self.cache.check_gone(object_id)
        except ObjectGoneError as error:
            raise StorageError(f"Records of {self.name} are lost: {error}") from error
        keys = [key for key in keys_of(object_id, start, end) if self.cache.get(key) is None]
        return Missing(keys, present, walk)

    async def loaded(self, start: Offset, bytes_max: int, upto: Offset) -> ObjectSlice:
        """A slice that is ready, however long that takes. Raises as `slice` does."""
        loan = Loan(self.cache)
        try:
            while True:
                part = self.slice(start, bytes_max, upto)
                loan.begin()
                may_go_on = part.walk is None or loan.borrow(part.walk, part.present)
                loan.settle()
                if part.missing:
                    await self._woken(part.missing if may_go_on else ())
                elif part.verified:
                    return part
                else:
                    await self._verified(part)
        finally:
            loan.end()

    async def _woken(self, keys: Sequence[BlockKey]) -> None:
        """Wait for the first of these blocks, and let the others come too; without any, for room to borrow them."""
        event = asyncio.Event()
        for key in keys:
            self.cache.want(key, event.set)
        if not keys:
            self.cache.call_when_returned(event.set)
        try:
            await event.wait()
        finally:
            self.cache.leave(keys, event.set)

    async def _verified(self, part: ObjectSlice) -> None:
        try:
            await in_heavy_worker(self._workers, part.verify)
        except CorruptDataError:
            if not part.distrust():
                raise
        else:
            part.mark_verified()

    def in_worker(self, task: Callable[[], Result]) -> "asyncio.Future[Result]":
        """What a task returns that unpacks a batch."""
        return in_heavy_worker(self._workers, task)

    # --- time ------------------------------------------------------------------------------------------------

    async def offset_for_time(self, timestamp_ms: int) -> Moment | None:
        """The first record, from the start of the log, whose timestamp is not before `timestamp_ms`. Raises as `slice`
        does, and OffsetNotAvailableError if the store does not answer."""
        return await self._in_time(first_at_or_after(self, timestamp_ms))

    async def max_timestamp(self) -> Moment | None:
        """The first record with the largest timestamp. Raises as `offset_for_time` does."""
        return await self._in_time(of_largest_timestamp(self))

    async def _in_time(self, lookup: Awaitable[Moment | None]) -> Moment | None:
        try:
            async with asyncio.timeout(LOOKUP_MS_MAX / 1000):
                return await lookup
        except TimeoutError as error:
            raise OffsetNotAvailableError(
                f"{self.name} cannot be searched: the object store did not answer within {LOOKUP_MS_MAX} ms."
            ) from error

    # --- reading ahead ---------------------------------------------------------------------------------------

    def _served(self, start: Offset, end: Offset) -> None:
        if end <= start:
            return
        streak = self._readers.pop(start, 0) + 1
        self._readers[end] = max(streak, self._readers.pop(end, 0))
        if len(self._readers) > READERS_REMEMBERED:
            self._readers.popitem(last=False)
        if streak > 1 and end < self.end_offset:
            self._read_ahead(end, 0)

    def _read_ahead(self, start: Offset, blocks_wanted: int) -> None:
        """Load what a sequential reader will want from `start` on; so many blocks are on their way to it."""
        keys: dict[BlockKey, None] = {}
        bytes_left = AHEAD_BYTES
        for row in self.objects.rows(self.key, start, AHEAD_ROWS):
            walk = self.cache.walk_of(row)
            position = walk.positions[walk.batch_of(start)]
            end = min(row.position + row.length, position + bytes_left)
            if position < end:
                keys.update(dict.fromkeys(keys_of(row.object_id, position, end)))
                bytes_left -= end - position
            if bytes_left <= 0 or len(keys) >= AHEAD_BLOCKS:
                break
        for key in list(keys)[: AHEAD_BLOCKS - blocks_wanted]:
            self.cache.want_ahead(key)


def _is_small(check: Check) -> bool:
    return (
        check.end - check.start <= CHECKED_AT_ONCE_BYTES
        and check.walk.row.batch_count <= CHECKED_AT_ONCE_BATCHES
    )
