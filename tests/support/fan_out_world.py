"""A fan-out over records in memory, on a loop whose time is a FakeClock: no broker, no sockets, no sleeps."""

import asyncio
import json
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar
from uuid import UUID

from anabranch.errors import AnabranchError
from anabranch.gateway.read.chunks import Chunk, chunks_of
from anabranch.gateway.read.fan_out import FanOut, Stream
from anabranch.gateway.websocket.outlet import Outlet
from anabranch.record.builder import build_batch
from anabranch.record.records import Record
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.loop import VirtualLoop
from anabranch.values import Offset

Result = TypeVar("Result")
HOUR_MS = 3_600_000
STREAM = Stream("t", UUID(int=1), 0)
OTHER = Stream("t", UUID(int=1), 1)


def encoded(record: Record) -> bytes:
    value = (record.value or b"").decode()
    return json.dumps({"offset": str(record.offset), "value": value}).encode()


class MemorySource:
    """Records by stream; a load at the end waits for more, as a fetch does."""

    def __init__(self) -> None:
        self._records: dict[Stream, list[Record]] = {}
        self._grown = asyncio.Event()
        self.loaded: list[tuple[Stream, int]] = []
        self.waiting = 0
        self.errors: list[Exception] = []

    def write(self, stream: Stream, *values: bytes, kind: bytes = b"a") -> None:
        records = self._records.setdefault(stream, [])
        for value in values:
            records.append(Record(Offset(len(records)), 0, None, value, (("kind", kind),)))
        self._grown.set()

    async def load(self, stream: Stream, offset: int, wait_ms: int) -> list[Chunk]:
        self.loaded.append((stream, offset))
        if self.errors:
            raise self.errors.pop(0)
        self.waiting += 1
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while len(self._records.get(stream, ())) <= offset:
                    self._grown.clear()
                    await self._grown.wait()
        except TimeoutError:
            return []
        finally:
            self.waiting -= 1
        return chunks_of(build_batch(self._records[stream][offset:]), stream.partition, offset, encoded)


class FanOutWorld:
    def __init__(self, budget_bytes: int = 2**20) -> None:
        self.clock = FakeClock()
        self.source = MemorySource()
        self.fan_out = FanOut(self.source, self.clock, budget_bytes)


class Arrivals:
    """What somebody who waits has heard."""

    def __init__(self) -> None:
        self.chunks: list[Chunk | None] = []
        self.errors: list[AnabranchError | None] = []

    def __call__(self, chunk: Chunk | None, error: AnabranchError | None) -> None:
        self.chunks.append(chunk)
        self.errors.append(error)


class FakeClient:
    """The other side of an outlet: takes everything, until it stalls."""

    def __init__(self, bytes_max: int = 2**20) -> None:
        self._reads = asyncio.Event()
        self._reads.set()
        self.heard: list[dict[str, Any]] = []
        self.outlet = Outlet(self._take, lambda text: False, bytes_max, Counter())

    async def _take(self, text: bytes) -> None:
        await self._reads.wait()
        self.heard.append(json.loads(text))

    def stall(self) -> None:
        self._reads.clear()

    def read_on(self) -> None:
        self._reads.set()

    def offsets(self, partition: int = 0) -> list[int]:
        messages = [each for each in self.heard if each["partition"] == partition]
        return [int(record["offset"]) for message in messages for record in message["records"]]


def on_virtual_loop(clock: FakeClock, work: Coroutine[Any, Any, Result]) -> Result:
    """What the coroutine returns; everything it has started must have ended by itself, or is cancelled."""
    loop = VirtualLoop(clock, lambda: False)
    asyncio.set_event_loop(loop)
    try:
        task = loop.create_task(work)
        task.add_done_callback(lambda _: loop.stop())
        loop.run_for(HOUR_MS)
        assert task.done(), "an hour was not enough"
        left = asyncio.all_tasks(loop)
        for each in left:
            each.cancel()
        if left:
            gathered = asyncio.gather(*left, return_exceptions=True)
            gathered.add_done_callback(lambda _: loop.stop())
            loop.run_for(HOUR_MS)
        return task.result()
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def turns(count: int = 30) -> None:
    """Let everybody go on as far as they can without time passing."""
    for _ in range(count):
        await asyncio.sleep(0)
