"""BlockLoads: blocks on their way into the cache. One GET for all who wait for a block, and a few GETs at a time.

Who waits may leave; a GET under way ends all the same, for the cache, but one that nobody waits for is neither begun
nor repeated. Blocks that are read ahead come when nobody waits in line, and are tried once.

A store that does not answer is asked again, each block after a pause that grows, and only one at a time once it has
failed a few times in a row; those who wait just wait. That, and that it is back, is said once in the log. An object
that is not in the store is looked for no more: this broker first learns what the others have agreed on, and whoever
waited for the block looks up again where its records are.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from anabranch.broker.object.cache.blocks import Block, BlockKey, Origin
from anabranch.errors import (
    AnabranchError,
    ObjectGoneError,
    ObjectRefusedError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
)
from anabranch.objects.store import ObjectStore

if TYPE_CHECKING:
    from anabranch.broker.object.cache.block_cache import BlockCache
    from anabranch.broker.object.cache.disk_cache import DiskCache

GET_MS_MAX = 120_000
"""The last resort: a store has limits of its own (`object.timeout.ms`)."""
PAUSE_MS_FIRST = 100
PAUSE_MS_MAX = 1_000
FAILURES_MIN = 3
"""In a row, before the store counts as away: one slow object says nothing about others."""
FRESH_KEYS_MAX = 1000
EARLY_SECONDS = 1e-6
"""A loop calls a timer as early as its clock cannot tell; setting it anew then would only keep the loop busy."""

logger = logging.getLogger(__name__)


class Load:
    """One block until it is there."""

    __slots__ = ("due", "is_ahead", "is_running", "key", "tries", "waiters")

    def __init__(self, key: BlockKey) -> None:
        self.key = key
        self.waiters: dict[Callable[[], None], None] = {}
        self.is_ahead = False
        self.is_running = False
        self.tries = 0
        self.due = 0.0
        """By the loop's clock."""


class BlockLoads:
    def __init__(
        self,
        store: ObjectStore,
        cache: "BlockCache",
        gets_max: int,
        disk: "DiskCache | None",
        caught_up: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self.gets_total = 0
        self.get_bytes_total = 0
        self.is_away = False
        self._store = store
        self._cache = cache
        self._gets_max = gets_max
        self._disk = disk
        self._caught_up = caught_up
        self._failures = 0
        self._resume = 0.0
        """A store that is away is not asked before."""
        self._loads: OrderedDict[BlockKey, Load] = OrderedDict()
        """Those under way and those in line, in order."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._fresh: OrderedDict[BlockKey, None] = OrderedDict()
        self.running_count = 0
        """Blocks that are about to take memory."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def want(self, key: BlockKey, woken: Callable[[], None]) -> None:
        load = self._loads.get(key)
        if load is None:
            load = self._loads[key] = Load(key)
            load.due = self._resume
        load.waiters[woken] = None
        self._begin_more()

    def want_ahead(self, key: BlockKey) -> None:
        if key not in self._loads and len(self._tasks) < self._gets_max and not self.is_away:
            load = self._loads[key] = Load(key)
            load.is_ahead = True
            self._begin_more()

    def leave(self, keys: Sequence[BlockKey], woken: Callable[[], None]) -> None:
        for key in keys:
            load = self._loads.get(key)
            if load is not None:
                load.waiters.pop(woken, None)

    def is_loading(self, key: BlockKey) -> bool:
        return key in self._loads

    def refresh(self, key: BlockKey) -> None:
        """The next time it has to come from the store itself."""
        self._fresh[key] = None
        while len(self._fresh) > FRESH_KEYS_MAX:
            self._fresh.popitem(last=False)

    def arrived(self, key: BlockKey) -> None:
        """The block is in the cache, wherever it came from."""
        load = self._loads.get(key)
        if load is not None:
            self._end(load)

    async def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for load in list(self._loads.values()):
            self._end(load)

    # --- the line --------------------------------------------------------------------------------------------

    def _begin_more(self) -> None:
        now, due = asyncio.get_running_loop().time(), None
        for load in list(self._loads.values()):
            if len(self._tasks) >= (1 if self.is_away else self._gets_max) or self._is_closed:
                return
            if load.is_running:
                continue
            if not load.waiters and not load.is_ahead:
                del self._loads[load.key]
            elif load.due > now + EARLY_SECONDS:
                due = min(load.due, due or load.due)
            else:
                self._begin(load)
        self._look_again_at(due)

    def _begin(self, load: Load) -> None:
        load.is_running = True
        task = asyncio.get_running_loop().create_task(self._run(load))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a block could not be loaded: this is a defect", exc_info=error)
        self._begin_more()

    def _look_again_at(self, due: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due, self._begin_more)

    def _end(self, load: Load) -> None:
        """Wake whoever waits: it looks for itself what has become of the block."""
        if self._loads.get(load.key) is load:
            del self._loads[load.key]
        waiters, load.waiters = load.waiters, {}
        for woken in waiters:
            woken()

    # --- one load --------------------------------------------------------------------------------------------

    async def _run(self, load: Load) -> None:
        try:
            block = await self._counted(load.key)
        except ObjectGoneError:
            await self._note_gone(load)
        except StoreError as error:
            self._note_failure(load, error)
        except BaseException:
            self._end(load)
            raise
        else:
            block.is_ahead = not load.waiters
            self._cache.put(block)
            self._end(load)

    async def _counted(self, key: BlockKey) -> Block:
        self.running_count += 1
        self._cache.make_room()
        try:
            return await self._block(key)
        finally:
            self.running_count -= 1

    async def _block(self, key: BlockKey) -> Block:
        is_fresh = key in self._fresh
        if self._disk is not None and not is_fresh:
            data = await self._disk.get(key)
            if data is not None:
                return Block(key, data, Origin.DISK)
        data = await self._get(key)
        self._fresh.pop(key, None)
        self._note_success()
        return Block(key, data, Origin.STORE, is_fresh=is_fresh)

    async def _get(self, key: BlockKey) -> bytes:
        self.gets_total += 1
        try:
            async with asyncio.timeout(GET_MS_MAX / 1000):
                data = await self._store.get(key.object_id.name, key.start, key.end)
        except TimeoutError as error:
            name = key.object_id.name
            raise StoreUnavailableError(f"{name} did not come within {GET_MS_MAX} ms.") from error
        self.get_bytes_total += len(data)
        return data

    # --- how the store does ------------------------------------------------------------------------------------

    def _note_success(self) -> None:
        self._failures = 0
        self._resume = 0.0
        if self.is_away:
            self.is_away = False
            logger.info("the object store %s answers again", self._store.url)

    def store_answers(self) -> None:
        """It did not before: whoever waits for a next try need not."""
        self._resume = 0.0
        for load in self._loads.values():
            load.due, load.tries = 0.0, 0
        if not self._is_closed:
            self._begin_more()

    def _note_failure(self, load: Load, error: StoreError) -> None:
        self._pause(load)
        self._failures += 1
        is_hopeless = isinstance(error, StoreRefusedError) and not isinstance(error, ObjectRefusedError)
        if not self.is_away and (self._failures >= FAILURES_MIN or is_hopeless):
            self.is_away = True
            logger.warning(
                "the object store %s does not answer, so what is not in a cache cannot be read: %s",
                self._store.url,
                error,
            )
        if self.is_away:
            self._resume = load.due

    def _pause(self, load: Load) -> None:
        """Try again later, if somebody waits still."""
        load.is_running = load.is_ahead = False
        pause_ms = min(PAUSE_MS_FIRST << min(load.tries, 10), PAUSE_MS_MAX)
        load.due = asyncio.get_running_loop().time() + pause_ms / 1000
        load.tries += 1

    async def _note_gone(self, load: Load) -> None:
        self._note_success()
        try:
            if self._caught_up is not None:
                await self._caught_up()
        except AnabranchError as error:
            logger.debug(
                "%s is gone, and nobody says whether it is needed: %s", load.key.object_id.name, error
            )
            self._pause(load)
            return
        self._cache.note_gone(load.key.object_id)
        self._end(load)
