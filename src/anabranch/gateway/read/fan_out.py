"""FanOut: what subscribers read, fetched once, decoded once and written as JSON once for all who stand at one place.

    chunk = fan_out.chunk_at(stream, offset)             at hand, or None
    wait = fan_out.wait(stream, offset, on_arrival)      then on_arrival(chunk, None) or on_arrival(None, error), once
    fan_out.leave(wait)

Nothing is pushed: whoever has room asks for the next chunk. Those who ask for the same offset, at the tail or far
behind it, share one load; one whose last waiter leaves is called off. Chunks stay at hand for a moment, in a budget for
all of them, so that those a little behind find them. So memory depends on that budget and not on how many follow, or
how slowly. A stream is known by its topic's id: what a deleted topic held is not taken for its successor's.
"""

import asyncio
import logging
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, Protocol
from uuid import UUID

from anabranch.broker.requests.turns import Turns
from anabranch.clock import Clock
from anabranch.errors import AnabranchError, BrokerRefusedError, NotOwnerError, RequestTimedOutError
from anabranch.gateway.read.chunks import Chunk
from anabranch.wire.error_codes import ErrorCode

BUDGET_BYTES = 64 * 1024 * 1024
AGE_MS_MAX = 5000
"""How long a chunk is at hand: what a merge of branches has replaced must not be seen for long."""
WAIT_MS = 20_000
PAUSE_SECONDS = 0.25
PAUSE_SECONDS_MAX = 5.0
WOKEN_AT_ONCE = 64
"""How many waiters go on in one turn of the loop: a thousand would hold up everybody else's requests."""

logger = logging.getLogger(__name__)


class Stream(NamedTuple):
    topic: str
    topic_id: UUID
    partition: int


OnArrival = Callable[[Chunk | None, AnabranchError | None], None]


class Wait:
    """Somebody who waits for the chunk at an offset."""

    __slots__ = ("key", "on_arrival")

    def __init__(self, key: tuple[Stream, int], on_arrival: OnArrival) -> None:
        self.key = key
        self.on_arrival: OnArrival | None = on_arrival


class Source(Protocol):
    async def load(self, stream: Stream, offset: int, wait_ms: int) -> list[Chunk]:
        """Chunks of a stream from an offset on; none if nothing came within so many milliseconds."""
        ...


class _Loading:
    def __init__(self, task: "asyncio.Task[None]") -> None:
        self.task = task
        self.waits: dict[Wait, None] = {}


class FanOut:
    def __init__(
        self, source: Source, clock: Clock, budget_bytes: int = BUDGET_BYTES, turns: Turns | None = None
    ) -> None:
        self._source = source
        self.turns = turns if turns is not None else Turns()
        """For what is heavy about sending chunks."""
        self.clock = clock
        self._at_hand = _AtHand(clock, budget_bytes)
        self._loading: dict[tuple[Stream, int], _Loading] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None
        self.loads_total = 0
        self.records_sent_total = 0
        """By all subscriptions."""

    @property
    def bytes_at_hand(self) -> int:
        return self._at_hand.size_bytes

    def chunk_at(self, stream: Stream, offset: int) -> Chunk | None:
        return self._at_hand.find(stream, offset)

    def wait(self, stream: Stream, offset: int, on_arrival: OnArrival) -> Wait:
        key = (stream, offset)
        loading = self._loading.get(key)
        if loading is None:
            loading = _Loading(asyncio.ensure_future(self._load(key)))
            self._loading[key] = loading
        wait = Wait(key, on_arrival)
        loading.waits[wait] = None
        return wait

    def leave(self, wait: Wait) -> None:
        """Whoever waits no more hears nothing more; harmless if it has heard already."""
        wait.on_arrival = None
        loading = self._loading.get(wait.key)
        if loading is None or wait not in loading.waits:
            return
        del loading.waits[wait]
        if not loading.waits:
            del self._loading[wait.key]
            loading.task.cancel()

    async def close(self) -> None:
        """Calls off every load; nobody is woken."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        tasks = [loading.task for loading in self._loading.values()]
        self._loading.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _load(self, key: tuple[Stream, int]) -> None:
        error: AnabranchError | None = None
        chunk: Chunk | None = None
        try:
            chunks = await self._loaded(*key)
            for each in reversed(chunks):  # The one that is wanted next is the last to go.
                self._at_hand.add(key[0], each)
            chunk = chunks[0]
            self._sweep_later()
        except AnabranchError as met:
            error = met
        except Exception:
            logger.exception("reading %s-%d for subscribers failed", key[0].topic, key[0].partition)
            error = BrokerRefusedError(
                "The node met something unexpected and has logged it.", ErrorCode.UNKNOWN_SERVER_ERROR
            )
        loading = self._loading.pop(key)
        self._wake(list(loading.waits), chunk, error)

    async def _loaded(self, stream: Stream, offset: int) -> list[Chunk]:
        """At least one chunk. Whatever may be over in a moment is waited for, as long as anybody waits with us."""
        pause_seconds = PAUSE_SECONDS
        while True:
            begun_ms = self.clock.monotonic_ms()
            try:
                self.loads_total += 1
                chunks = await self._source.load(stream, offset, WAIT_MS)
                if chunks:
                    return chunks
                pause_seconds = PAUSE_SECONDS
                if self.clock.monotonic_ms() - begun_ms < WAIT_MS // 2:
                    await asyncio.sleep(
                        pause_seconds
                    )  # It has not waited: asking at once again would not help.
            except (NotOwnerError, RequestTimedOutError, BrokerRefusedError) as error:
                if isinstance(error, BrokerRefusedError) and not is_passing(error):
                    raise
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, PAUSE_SECONDS_MAX)

    def _sweep_later(self) -> None:
        if self._sweep_timer is None:
            loop = asyncio.get_running_loop()
            self._sweep_timer = loop.call_later(AGE_MS_MAX / 1000, self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        self._at_hand.drop_old()
        if self._at_hand.size_bytes:
            self._sweep_later()

    def _wake(self, waits: list[Wait], chunk: Chunk | None, error: AnabranchError | None) -> None:
        for wait in waits[:WOKEN_AT_ONCE]:
            if wait.on_arrival is not None:
                wait.on_arrival(chunk, error)
        if len(waits) > WOKEN_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._wake, waits[WOKEN_AT_ONCE:], chunk, error)


def is_passing(error: BrokerRefusedError) -> bool:
    """Whether the same question may be answered in a moment."""
    code = ErrorCode(error.code)
    return code.retriable and code not in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.CORRUPT_MESSAGE,
    )


class _AtHand:
    """Chunks by place; those unused for longest go first, when the budget is spent or their time is over."""

    def __init__(self, clock: Clock, budget_bytes: int) -> None:
        self._clock = clock
        self._budget_bytes = budget_bytes
        self._chunks: OrderedDict[tuple[Stream, int], tuple[Chunk, int]] = OrderedDict()
        self._firsts: dict[Stream, list[int]] = {}
        self.size_bytes = 0

    def find(self, stream: Stream, offset: int) -> Chunk | None:
        firsts = self._firsts.get(stream)
        if firsts is None:
            return None
        index = bisect_right(firsts, offset) - 1
        if index < 0:
            return None
        key = (stream, firsts[index])
        chunk, made_ms = self._chunks[key]
        if not chunk.serves(offset):
            return None
        if self._clock.monotonic_ms() - made_ms > AGE_MS_MAX:
            self._drop(key)
            return None
        self._chunks.move_to_end(key)
        return chunk

    def add(self, stream: Stream, chunk: Chunk) -> None:
        key = (stream, chunk.first)
        if key in self._chunks:
            self._drop(key)
        self._chunks[key] = (chunk, self._clock.monotonic_ms())
        insort(self._firsts.setdefault(stream, []), chunk.first)
        self.size_bytes += chunk.size_bytes_max
        while self.size_bytes > self._budget_bytes:
            self._drop(next(iter(self._chunks)))

    def drop_old(self) -> None:
        now_ms = self._clock.monotonic_ms()
        old = [key for key, (_, made_ms) in self._chunks.items() if now_ms - made_ms > AGE_MS_MAX]
        for key in old:
            self._drop(key)

    def _drop(self, key: tuple[Stream, int]) -> None:
        chunk, _ = self._chunks.pop(key)
        stream, first = key
        firsts = self._firsts[stream]
        del firsts[bisect_right(firsts, first) - 1]
        if not firsts:
            del self._firsts[stream]
        self.size_bytes -= chunk.size_bytes_max
