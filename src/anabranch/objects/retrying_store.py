"""RetryingStore: an object store that repeats requests which fail in passing, for whoever has nobody else to do it.

Brokers repeat what the store refuses by themselves, each in its own way. A command that makes thousands of requests and
ends with the first error would never get through a store that refuses one of twenty. Here each request is tried
`attempts_max` times with growing pauses, for `seconds_max` at most; then its last error is raised, with the counts.
Whatever will not change by being repeated (credentials, an object that is gone) is raised at once.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple, TypeVar

from anabranch.clock import Clock
from anabranch.errors import ObjectExistsError, StoreUnavailableError
from anabranch.objects.store import Buffer, ObjectStore, StoredObject

T = TypeVar("T")


class Patience(NamedTuple):
    attempts_max: int = 12
    seconds_max: float = 300.0
    """For one request, its pauses included."""
    pause_seconds_min: float = 0.1
    pause_seconds_max: float = 10.0


PATIENCE = Patience()


class _Attempts:
    """Of one request."""

    def __init__(self, clock: Clock, patience: Patience) -> None:
        self._clock = clock
        self._patience = patience
        self._since_ms = clock.monotonic_ms()
        self.failed = 0

    async def pause(self, error: StoreUnavailableError) -> None:
        """Before the next one. Raises StoreUnavailableError if there is none."""
        self.failed += 1
        seconds = (self._clock.monotonic_ms() - self._since_ms) / 1000
        if self.failed >= self._patience.attempts_max or seconds >= self._patience.seconds_max:
            raise StoreUnavailableError(
                f"{error} Given up after {self.failed} attempts in {seconds:.0f} s: try again once the store answers."
            ) from error
        pause = self._patience.pause_seconds_min * 2 ** (self.failed - 1)
        await asyncio.sleep(min(pause, self._patience.pause_seconds_max))


class RetryingStore:
    """An `ObjectStore` before another one, which it closes."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        patience: Patience = PATIENCE,
        on_retry: Callable[[StoreUnavailableError], None] = lambda error: None,
    ) -> None:
        """`on_retry` hears of every failure that is followed by another attempt."""
        self.url = store.url
        self.retries_total = 0
        self._store = store
        self._clock = clock
        self._patience = patience
        self._on_retry = on_retry

    async def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        attempts = _Attempts(self._clock, self._patience)
        while True:
            try:
                await self._store.put(name, pieces)
            except ObjectExistsError:
                if attempts.failed:
                    return  # One that failed has done it all the same.
                raise
            except StoreUnavailableError as error:
                await self._pause(attempts, error)
            else:
                return

    async def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        return await self._repeated(lambda: self._store.get(name, start, end))

    async def get_end(self, name: str, size: int) -> bytes:
        return await self._repeated(lambda: self._store.get_end(name, size))

    async def delete(self, names: Sequence[str]) -> None:
        await self._repeated(lambda: self._store.delete(names))

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        attempts = _Attempts(self._clock, self._patience)
        while True:
            try:
                async with aclosing(self._pages(prefix, after)) as pages:
                    async for page in pages:
                        yield page
                        after = page[-1].name if page else after
                        attempts = _Attempts(self._clock, self._patience)
            except StoreUnavailableError as error:
                await self._pause(attempts, error)  # And goes on where it was.
            else:
                return

    async def _pages(self, prefix: str, after: str) -> AsyncGenerator[Sequence[StoredObject], None]:
        async for page in self._store.list(prefix, after):
            yield page

    async def close(self) -> None:
        await self._store.close()

    async def _repeated(self, request: Callable[[], Awaitable[T]]) -> T:
        attempts = _Attempts(self._clock, self._patience)
        while True:
            try:
                return await request()
            except StoreUnavailableError as error:
                await self._pause(attempts, error)

    async def _pause(self, attempts: _Attempts, error: StoreUnavailableError) -> None:
        await attempts.pause(error)
        self.retries_total += 1
        self._on_retry(error)
