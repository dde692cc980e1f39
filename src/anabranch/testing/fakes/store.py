"""FakeBucket and FakeStore: an object store for the simulator, in memory, that fails by seed.

    bucket = FakeBucket(clock)                              # what is stored: one, for all brokers and all their lives
    store = FakeStore(bucket, Random(7), StoreFaults(refused=0.1, silent=0.05))     # one broker's way to it
    store.is_cut = True                                     # this broker cannot reach it any more
    bucket.is_away = True                                   # nobody can
    bucket.lose("segments/...")                             # an object that is gone, against all promises
    bucket.damage("segments/...", position=17)              # rot
    store.damage_next_gets = 1                              # rot on the way: the next GET brings a wrong bit

A request is on its way before its fate shows: what was sent arrives, even if the broker that sent it has died or given
up meanwhile. One that arrives too late is the worst a store does: a PUT that comes true long after its writer was told
that nobody had answered. All waits are the running loop's, so that they cost no time on a `VirtualLoop`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import NoReturn, TypeVar

from anabranch.clock import Clock
from anabranch.errors import StoreError, StoreUnavailableError
from anabranch.objects.memory_store import MemoryStore
from anabranch.objects.store import Buffer, StoredObject

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreFaults:
    """How often what goes wrong, from 0 to 1; the rest of requests succeed."""

    refused: float = 0.0
    """Answered at once that it cannot be done; it is not."""
    slow: float = 0.0
    """Done, and answered, but only after `slow_ms_max` at most."""
    lost: float = 0.0
    """Never arrives; the caller waits for the time-out."""
    silent: float = 0.0
    """Done, but the answer never arrives; the caller waits for the time-out."""
    late: float = 0.0
    """Arrives only after the caller's time-out, `late_ms_max` at most, and is done then."""
    busy: float = 0.0
    """Answered, after a while, that too many ask; it is not done."""
    answer_ms_max: int = 20
    slow_ms_max: int = 3000
    timeout_ms: int = 10_000
    late_ms_max: int = 60_000


NO_FAULTS = StoreFaults()


class _Request:
    """Something on its way to the store, and what came of it there."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self.error: StoreError | None = None
        self.is_done = False

    def arrive(self) -> None:
        try:
            self._act()
        except StoreError as error:
            self.error = error
        self.is_done = True


class FakeBucket:
    """What is stored, and what is on its way there."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.objects = MemoryStore(clock.wall_ms, "memory:fake")
        self.is_away = False
        self.requests: Counter[str] = Counter()
        """Those that were sent, by kind: put, get, list, delete."""
        self._coming: list[tuple[int, int, _Request]] = []
        self._sent = 0

    def names(self, prefix: str = "") -> list[str]:
        self.settle()
        return [name for name in self.objects.names if name.startswith(prefix)]

    def content(self, name: str) -> bytes:
        self.settle()
        return self.objects.content(name)

    def lose(self, name: str) -> None:
        self.settle()
        assert name in self.objects.names, f"there is no {name}"
        self.objects.delete_now([name])

    def damage(self, name: str, position: int, bit: int = 0) -> None:
        """Flip one bit for good."""
        content = with_flipped_bit(self.content(name), position, bit)
        self.objects.delete_now([name])
        self.objects.put_now(name, [content])

    # --- used by FakeStore -----------------------------------------------------------------------------------

    def send(self, after_ms: int, act: Callable[[], None]) -> _Request:
        """Let something arrive so much later, whatever becomes of who sent it."""
        request = _Request(act)
        self._sent += 1
        heappush(self._coming, (self._clock.monotonic_ms() + after_ms, self._sent, request))
        return request

    def settle(self, upto: _Request | None = None) -> None:
        """Let everything arrive that is due, in the order in which it is, and `upto` in any case: clocks and loops need
        not agree to the millisecond."""
        now_ms = self._clock.monotonic_ms()
        while self._coming and (self._coming[0][0] <= now_ms or (upto is not None and not upto.is_done)):
            heappop(self._coming)[2].arrive()


class FakeStore:
    """One broker's way to a FakeBucket: an `ObjectStore`."""

    def __init__(self, bucket: FakeBucket, rng: Random, faults: StoreFaults = NO_FAULTS) -> None:
        self.url = "memory:fake"
        self.bucket = bucket
        self.faults = faults
        self.is_cut = False
        self.damage_next_gets = 0
        self._rng = rng

    async def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        content = b"".join(pieces)
        await self._change("put", lambda: self.bucket.objects.put_now(name, [content]))

    async def delete(self, names: Sequence[str]) -> None:
        each = list(names)
        await self._change("delete", lambda: self.bucket.objects.delete_now(each))

    async def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        content = await self._look("get", lambda: self.bucket.objects.content(name)[start:end])
        return self._carried(content)

    async def get_end(self, name: str, size: int) -> bytes:
        def end() -> bytes:
            content = self.bucket.objects.content(name)
            return content[max(0, len(content) - size) :]

        return self._carried(await self._look("get", end))

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        objects = self.bucket.objects
        while page := await self._look("list", partial(objects.page, prefix, after)):
            yield page
            after = page[-1].name

    async def close(self) -> None:
        """What is on its way arrives all the same."""

    # --- what becomes of a request -----------------------------------------------------------------------------

    async def _change(self, kind: str, act: Callable[[], None]) -> None:
        """Send it, and wait for the answer or for the end of patience."""
        fate = await self._begin(kind)
        faults = self.faults
        if fate == "late":
            late_ms = self._rng.randint(1, faults.late_ms_max)
            self.bucket.send(faults.timeout_ms + late_ms, act)
            await self._give_up(kind)
        travel_ms = self._travel_ms(fate)
        request = self.bucket.send(travel_ms, act)
        await asyncio.sleep(travel_ms / 1000)
        self.bucket.settle(request)
        if fate == "silent":
            await self._give_up(kind)
        if request.error is not None:
            raise request.error

    async def _look(self, kind: str, look: Callable[[], T]) -> T:
        fate = await self._begin(kind)
        await asyncio.sleep(self._travel_ms(fate) / 1000)
        self.bucket.settle()
        if fate in ("silent", "late"):
            await self._give_up(kind)
        return look()

    async def _begin(self, kind: str) -> str:
        """What becomes of it; raises where it does not even arrive."""
        self.bucket.requests[kind] += 1
        fate = self._fate()
        if fate == "refused" or self.is_cut or self.bucket.is_away:
            await asyncio.sleep(self._travel_ms("") / 1000)
            raise StoreUnavailableError(f"{self.url} cannot be reached.")
        if fate == "busy":
            await asyncio.sleep(self._travel_ms("slow") / 1000)
            raise StoreUnavailableError(f"{self.url} answers 429: too many ask.")
        if fate == "lost":
            await self._give_up(kind)
        return fate

    def _fate(self) -> str:
        number = self._rng.random()
        for fate in ("refused", "slow", "lost", "silent", "late", "busy"):
            number -= getattr(self.faults, fate)
            if number < 0:
                return fate
        return ""

    def _travel_ms(self, fate: str) -> int:
        return self._rng.randint(0, self.faults.slow_ms_max if fate == "slow" else self.faults.answer_ms_max)

    async def _give_up(self, kind: str) -> NoReturn:
        await asyncio.sleep(self.faults.timeout_ms / 1000)
        raise StoreUnavailableError(f"{self.url} does not answer this {kind} in time.")

    def _carried(self, content: bytes) -> bytes:
        if not self.damage_next_gets or not content:
            return content
        self.damage_next_gets -= 1
        return with_flipped_bit(content, self._rng.randrange(len(content)), self._rng.randrange(8))


def with_flipped_bit(content: bytes, position: int, bit: int) -> bytes:
    changed = bytearray(content)
    changed[position] ^= 1 << bit
    return bytes(changed)
