"""Workers: the threads that do what would hold up the loop, and the way their results come back to it.

Two pools, so that a long verification or cleaning never delays an acknowledgement: `sync` for fdatasync,
`heavy` for everything else. A task is handed plain values and returns plain values; `done` runs on the loop's
thread with the result or the exception. The simulator hands in its own `Workers`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

SIDE_BY_SIDE_THREADS = 16

Result = TypeVar("Result")
Done = Callable[[Result | None, BaseException | None], None]


class Workers(Protocol):
    def sync(self, task: Callable[[], Result], done: Done[Result]) -> None: ...

    def heavy(self, task: Callable[[], Result], done: Done[Result]) -> None: ...

    def side_by_side(self, tasks: Iterable[Callable[[], Result]]) -> list[Result]:
        """Do all of these and wait for them, at a start or a stop: their syncs then share what the disk does.

        The first error is raised once all have ended.
        """
        ...

    def close(self) -> None: ...


class ThreadWorkers:
    """Real threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sync_threads: int, heavy_threads: int) -> None:
        self._loop = loop
        self._sync = ThreadPoolExecutor(sync_threads, thread_name_prefix="anabranch-sync")
        self._heavy = ThreadPoolExecutor(heavy_threads, thread_name_prefix="anabranch-heavy")

    def sync(self, task: Callable[[], Result], done: Done[Result]) -> None:
        self._sync.submit(self._run, task, done)

    def heavy(self, task: Callable[[], Result], done: Done[Result]) -> None:
        self._heavy.submit(self._run, task, done)

    def side_by_side(self, tasks: Iterable[Callable[[], Result]]) -> list[Result]:
        with ThreadPoolExecutor(SIDE_BY_SIDE_THREADS, thread_name_prefix="anabranch-side") as pool:
            running = [pool.submit(task) for task in tasks]
        return [future.result() for future in running]

    def _run(self, task: Callable[[], Result], done: Done[Result]) -> None:
        try:
            result = task()
        except BaseException as error:  # noqa: BLE001 - handed to `done` on the loop, where it is dealt with.
            self._loop.call_soon_threadsafe(done, None, error)
        else:
            self._loop.call_soon_threadsafe(done, result, None)

    def close(self) -> None:
        self._sync.shutdown(wait=True)
        self._heavy.shutdown(wait=True)


def in_heavy_worker(workers: Workers, task: Callable[[], Result]) -> "asyncio.Future[Result]":
    """The same for coroutines: await the result of a heavy task."""
    future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
    workers.heavy(task, settle(future))
    return future


def settle(future: "asyncio.Future[Result]") -> Done[Result]:
    """What a worker is to call for a future to be settled."""

    def done(result: Result | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None only where Result is None.

    return done


async def to_its_end(work: "Coroutine[None, None, Result]") -> Result:
    """For what must not be left half way: whoever is cancelled while it waits for this is so when it is over. A worker
    goes on with its task whatever becomes of those who wait, and another must not begin beside it."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # Whoever was cancelled does not want to know.
        raise
