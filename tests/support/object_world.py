"""Stored objects without a broker: a store in memory that counts and fails on demand, and rows that tests make."""

import asyncio
import functools
import inspect
import uuid
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from itertools import count
from typing import Any, NamedTuple

from anabranch.broker.object.cache.block_cache import BlockCache
from anabranch.broker.object.cache.disk_cache import DiskCache
from anabranch.broker.object.log import ObjectLog
from anabranch.cluster.objects.entries import Key
from anabranch.errors import ObjectExistsError, ObjectGoneError
from anabranch.objects.layout.names import ObjectId, ObjectKind, Row
from anabranch.objects.store import Buffer, StoredObject
from anabranch.record.batch import batch_spans, read_header, stamp
from anabranch.record.builder import BatchBuilder
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.loop import VirtualLoop
from anabranch.values import Generation, Offset
from support.workers import HeldWorkers, InlineWorkers

INCARNATION = 7
TIME = 1_700_000_000_000


def on_virtual_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test where waiting takes no time; a callback that fails fails the test. It gets the clock of the loop as
    its keyword argument `clock`."""

    def run(*args: Any, **kwargs: Any) -> None:
        failures: list[dict[str, Any]] = []
        clock = FakeClock()
        loop = VirtualLoop(clock, lambda: False)
        loop.set_exception_handler(lambda _, context: failures.append(context))
        try:
            loop.run_until_complete(test(*args, clock=clock, **kwargs))
        finally:
            loop.close()
        assert not failures, failures

    signature = inspect.signature(test)
    others = [each for name, each in signature.parameters.items() if name != "clock"]
    wrapped = functools.wraps(test)(run)
    wrapped.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]  # For pytest's fixtures.
    return wrapped


class CountingStore:
    """Every GET is noted; it may be held back, or fail."""

    url = "memory:test"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.gets: list[tuple[str, int]] = []
        self.failures: list[Exception] = []
        """Of the next GETs, first come."""
        self.is_away: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.get_seconds = 0.0
        self.running = 0
        self.running_max = 0
        self.damage: Callable[[bytes], bytes] = lambda data: data

    async def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        if name in self.objects:
            raise ObjectExistsError(name)
        self.objects[name] = b"".join(pieces)

    async def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        self.gets.append((name, start))
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            await asyncio.sleep(self.get_seconds)
            await self.open.wait()
        finally:
            self.running -= 1
        if self.failures:
            raise self.failures.pop(0)
        if self.is_away is not None:
            raise self.is_away
        if name not in self.objects:
            raise ObjectGoneError(f"{name} is not there.")
        return self.damage(self.objects[name][start:end])

    async def get_end(self, name: str, size: int) -> bytes:
        return self.objects[name][-size:]

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self.objects.pop(name, None)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        yield [StoredObject(name, len(data), 0) for name, data in self.objects.items()]

    async def close(self) -> None: ...


class WrittenHead(NamedTuple):
    start: Offset
    end: Offset
    size_bytes: int


class WrittenRows:
    """`Coordinates` from lists."""

    def __init__(self) -> None:
        self.by_key: dict[Key, list[Row]] = {}
        self.starts: dict[Key, Offset] = {}
        self.lookups = 0

    def head(self, key: Key) -> WrittenHead:
        rows = self.by_key.get(key, [])
        end = rows[-1].next_offset if rows else Offset(0)
        return WrittenHead(self.starts.get(key, Offset(0)), end, sum(row.length for row in rows))

    def rows(self, key: Key, start: Offset, count_max: int) -> Sequence[Row]:
        self.lookups += 1
        rows = self.by_key.get(key, [])
        first = bisect_right([row.next_offset for row in rows], start)
        return rows[first : first + count_max]

    def row_at_time(self, key: Key, timestamp_ms: int) -> Row | None:
        return next((row for row in self.by_key.get(key, []) if row.max_timestamp >= timestamp_ms), None)

    def newest_row(self, key: Key) -> Row | None:
        return max(self.by_key.get(key, []), key=lambda row: row.max_timestamp, default=None)


def batch(*values: bytes, time: int = TIME, step: int = 0, **fields: Any) -> bytes:
    builder = BatchBuilder(**fields)
    for number, value in enumerate(values or (b"v",)):
        builder.add(None, value, timestamp_ms=time + step * number)
    return bytes(builder.build())


class ObjectWorld:
    """A store, rows, a cache, and the logs over them."""

    def __init__(self, bytes_max: int = 64 * 2**20, **more: Any) -> None:
        self.store = CountingStore()
        self.rows = WrittenRows()
        self.clock: FakeClock = more.pop("clock", None) or FakeClock()
        self.workers: InlineWorkers | HeldWorkers = more.pop("workers", None) or InlineWorkers()
        self.disk: DiskCache | None = more.get("disk")
        self.cache = BlockCache(self.store, self.clock, bytes_max, **more)
        self.topic = uuid.UUID(int=1)
        self.logs: dict[int, ObjectLog] = {}
        self._numbers = count()

    def key(self, partition: int = 0) -> Key:
        return self.topic, partition

    def log(self, partition: int = 0) -> ObjectLog:
        if partition not in self.logs:
            key = self.key(partition)
            self.logs[partition] = ObjectLog(f"t-{partition}", key, self.rows, self.cache, self.workers)
        return self.logs[partition]

    def write(self, batches: dict[int, Sequence[bytes]], *, keep: bool = False, padding: int = 0) -> ObjectId:
        """One gathered object of batches of any partitions, and its rows."""
        object_id = ObjectId(INCARNATION, 1, next(self._numbers))
        data = bytearray(padding)
        for partition, each in batches.items():
            self._append(self.key(partition), object_id, len(data), each)
            data += b"".join(each)
        self.store.objects[object_id.name] = bytes(data + b"the index and the footer")
        if keep:
            self.cache.keep(object_id, [self.store.objects[object_id.name]])
        return object_id

    def _append(self, key: Key, object_id: ObjectId, position: int, batches: Sequence[bytes]) -> None:
        rows = self.rows.by_key.setdefault(key, [])
        headers = [read_header(each) for each in batches]
        base = rows[-1].next_offset if rows else Offset(0)
        next_offset = Offset(base + sum(header.last_offset_delta + 1 for header in headers))
        newest = max(header.max_timestamp for header in headers)
        length = sum(len(each) for each in batches)
        rows.append(Row(base, next_offset, object_id, position, length, newest, len(batches)))

    def write_merged(
        self, batches: Sequence[tuple[int, bytes]], next_offset: int, partition: int = 0, padding: int = 0
    ) -> ObjectId:
        """One merged object with batches at these base offsets, as one row that reaches to `next_offset`."""
        object_id = ObjectId(INCARNATION, 1, next(self._numbers), ObjectKind.MERGED)
        rows = self.rows.by_key.setdefault(self.key(partition), [])
        data = bytearray(padding)
        for base, each in batches:
            placed = bytearray(each)
            stamp(placed, 0, Offset(base), Generation(0))
            data += placed
        row = Row(
            rows[-1].next_offset if rows else Offset(0),
            Offset(next_offset),
            object_id,
            padding,
            len(data) - padding,
            max((read_header(each).max_timestamp for _, each in batches), default=-1),
            len(batches),
            is_stamped=True,
        )
        rows.append(row)
        self.store.objects[object_id.name] = bytes(data + b"the index and the footer")
        return object_id


def offsets_in(data: Buffer) -> list[int]:
    """The base offsets of the batches, each of which must be whole."""
    return [read_header(data, first).base_offset for first, _ in batch_spans(data)]
