"""JobStore: the object store of a cluster, for a task: blocking, with credentials from the task's own environment.

The URL is the broker's; it holds no credentials, and an executor has to reach it as the broker does. A folder is
written with the same care as the broker's own (`objects.folder_store`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from anabranch.clock import RealClock
from anabranch.errors import ObjectExistsError, PipelineError, StoreError, StoreUnavailableError
from anabranch.log.disk.real_files import RealFiles
from anabranch.objects.store import Buffer
from anabranch.objects.stores import open_store

logger = logging.getLogger(__name__)

T = TypeVar("T")
PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0)
"""How long a store that is away is waited for, before Spark is told and may try the task again."""


REQUESTS_MAX = 16
"""Of one task, at the same time."""


class Span(NamedTuple):
    """Some bytes of one object."""

    name: str
    start: int
    end: int


class _Inline:
    """Workers that do it on the spot: a task has nothing else to do."""

    def sync(self, task: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        try:
            result = task()
        except Exception as error:  # noqa: BLE001 - Handed to whoever waits for it.
            done(None, error)
        else:
            done(result, None)

    heavy = sync


class JobStore:
    """Not for several threads at once."""

    def __init__(self, url: str, credentials_file: str | None = None) -> None:
        if url.startswith("memory:"):
            raise PipelineError(
                "The cluster keeps its objects in a broker's memory, where no job finds them: use file: or a bucket."
            )
        self._runner = asyncio.Runner()
        workers: Any = _Inline()
        self._store = open_store(
            url, files=RealFiles(), workers=workers, clock=RealClock(), credentials_file=credentials_file
        )

    def __enter__(self) -> "JobStore":
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._store.close())
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Not by the runner: it makes a text of the result, to no end, and takes seconds for some megabytes."""
        return self._runner.get_loop().run_until_complete(work)

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Raises StoreError; ObjectGoneError: ask for the coordinates again."""
        return self._patiently(lambda: self._store.get(name, start, end))

    def get_all(self, spans: Sequence[Span]) -> list[bytes | StoreError]:
        """Several at the same time; in the place of one that fails is its error."""
        return self._run(self._get_all(spans))

    async def _get_all(self, spans: Sequence[Span]) -> list[bytes | StoreError]:
        free = asyncio.Semaphore(REQUESTS_MAX)

        async def one(span: Span) -> bytes | StoreError:
            async with free:
                try:
                    return await self._store.get(*span)
                except StoreError as error:
                    return error

        return await asyncio.gather(*map(one, spans))

    def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        """Under a name that nobody else has. Raises StoreError."""
        tries = 0

        async def put() -> None:
            nonlocal tries
            tries += 1
            try:
                await self._store.put(name, pieces)
            except ObjectExistsError:
                if tries == 1:
                    raise  # Somebody else's after all; later it is our own, of a try that was not answered.

        self._patiently(put)

    def _patiently(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        for pause_seconds in PAUSES_SECONDS:
            try:
                return self._run(request())
            except StoreUnavailableError as error:
                logger.info("trying again in %.1f s: %s", pause_seconds, error)
                time.sleep(pause_seconds)
        return self._run(request())
