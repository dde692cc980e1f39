"""JobStore: the object store of a cluster, for a task: blocking, with credentials from the task's own environment.

The URL is the broker's; it holds no credentials, and an executor has to reach it as the broker does. A folder is
written with the same care as the broker's own (`objects.folder_store`).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from anabranch.clock import RealClock
from anabranch.errors import PipelineError, StoreError
from anabranch.log.real_files import RealFiles
from anabranch.objects.store import Buffer
from anabranch.objects.stores import open_store

T = TypeVar("T")


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
        self._runner.run(self._store.close())
        self._runner.close()

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Raises StoreError; ObjectGoneError: ask for the coordinates again."""
        return self._runner.run(self._store.get(name, start, end))

    def get_all(self, spans: Sequence[Span]) -> list[bytes | StoreError]:
        """Several at the same time; in the place of one that fails is its error."""
        return self._runner.run(self._get_all(spans))

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
        self._runner.run(self._store.put(name, pieces))
