"""WatchedStore: an object store that notices when it stops answering, and tells everybody when it answers again.

    store = WatchedStore(store)
    store.on_back.append(wake)      # called when the store answers after it did not

Every request counts, whoever makes it. From the first one that fails, or takes longer than `SLOW_SECONDS`, the store is
asked for an object that does not exist, over and over, until anybody is answered: one small request at a time stands
for all who wait. Then those who wait for their next try need not wait any longer. Requests that were sent into an
outage and have had no answer since are given up (StoreUnavailableError): their connection may be dead, and nobody
would say so for `object.timeout.ms`. One that was sent after the outage is never given up for it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from anabranch.errors import ObjectExistsError, ObjectGoneError, StoreError, StoreUnavailableError
from anabranch.objects.store import Buffer, ObjectStore, StoredObject

T = TypeVar("T")

SLOW_SECONDS = 1.0
PROBE_SECONDS_MAX = 1.0
PROBE_PAUSE_SECONDS = 0.25
OUTAGE_SECONDS_MIN = 0.5
"""A single request that fails is no outage: no other is given up for it, and whoever pauses before its next try goes on
pausing. A store that refuses writes and answers reads would otherwise be asked again and again without a pause."""
BYTES_PER_SECOND_MIN = 2**20
PROBE_NAME = "probe/of-nothing"
"""Nobody ever writes it: that it is not there is the answer."""

logger = logging.getLogger(__name__)


class _Asking(NamedTuple):
    """A request under way."""

    scope: asyncio.Timeout
    began: float
    patience: float
    """How many seconds it may take if all is well."""


class WatchedStore:
    def __init__(self, store: ObjectStore) -> None:
        self.url = store.url
        self.on_back: list[Callable[[], None]] = []
        self._store = store
        self._asking: set[_Asking] = set()
        self._away_since: float | None = None
        self._probing: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_away(self) -> bool:
        return self._away_since is not None

    # --- ObjectStore -------------------------------------------------------------------------------------------

    async def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        await self._asked(self._store.put(name, pieces), sum(map(len, pieces)))

    async def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        size = 0 if end is None else max(0, end - start)
        return await self._asked(self._store.get(name, start, end), size)

    async def get_end(self, name: str, size: int) -> bytes:
        return await self._asked(self._store.get_end(name, size), size)

    async def delete(self, names: Sequence[str]) -> None:
        await self._asked(self._store.delete(names), len(names) * BYTES_PER_SECOND_MIN)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        pages = self._store.list(prefix, after)
        while True:
            try:
                page = await self._asked(anext(pages), BYTES_PER_SECOND_MIN)
            except StopAsyncIteration:
                return
            yield page

    async def close(self) -> None:
        self.end_watch()
        await self._store.close()

    def end_watch(self) -> None:
        """Ask nothing by itself any more."""
        self._is_closed = True
        self._end_probing()

    # --- every request -----------------------------------------------------------------------------------------

    async def _asked(self, request: Awaitable[T], size: int) -> T:
        loop = asyncio.get_running_loop()
        patience = SLOW_SECONDS + size / BYTES_PER_SECOND_MIN
        doubt = loop.call_later(patience, self._probe)
        scope = asyncio.timeout(None)
        asking = _Asking(scope, loop.time(), patience)
        try:
            async with scope:
                self._asking.add(asking)
                answer = await request
        except (ObjectGoneError, ObjectExistsError, StopAsyncIteration):
            self._asking.discard(asking)  # It has its answer, and its scope can no longer be changed.
            self._answered(loop.time())
            raise
        except TimeoutError as error:
            if scope.expired():
                raise StoreUnavailableError(
                    f"{self.url} was away and answers again; this request was under way meanwhile, and is made anew."
                ) from error
            self._failed(loop.time())
            raise
        except (StoreError, OSError):
            self._failed(loop.time())
            raise
        finally:
            doubt.cancel()
            self._asking.discard(asking)
        self._answered(loop.time())
        return answer

    # --- away and back -----------------------------------------------------------------------------------------

    def _failed(self, now: float) -> None:
        if self._away_since is None:
            self._away_since = now
        self._probe()

    def _answered(self, now: float) -> None:
        since, self._away_since = self._away_since, None
        if since is None:
            return
        self._end_probing()
        if now - since < OUTAGE_SECONDS_MIN:
            return
        for asking in list(self._asking):
            if now - asking.began > asking.patience and not asking.scope.expired():
                asking.scope.reschedule(now)
        for wake in self.on_back:
            try:
                wake()
            except Exception:
                # A defect of theirs must not fail the request that was answered, nor the other wakes.
                logger.exception("%s is back, and %r failed on it", self.url, wake)

    def _probe(self) -> None:
        if self._probing is None and not self._is_closed:
            self._probing = asyncio.get_running_loop().create_task(self._probe_until_answered())

    def _end_probing(self) -> None:
        probing, self._probing = self._probing, None
        if probing is not None and probing is not asyncio.current_task():
            probing.cancel()

    async def _probe_until_answered(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PROBE_PAUSE_SECONDS)
            began = loop.time()
            try:
                async with asyncio.timeout(PROBE_SECONDS_MAX):
                    await self._store.get_end(PROBE_NAME, 1)
            except ObjectGoneError:
                break
            except (StoreError, OSError, TimeoutError) as error:
                logger.debug("%s does not answer: %s", self.url, error)
                if self._away_since is None:
                    self._away_since = began
            else:
                break
        self._probing = None
        self._answered(loop.time())
