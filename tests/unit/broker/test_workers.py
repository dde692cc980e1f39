"""Real threads: results and exceptions come back on the loop's thread."""

import asyncio
import threading

import pytest

from anabranch.broker.workers import ThreadWorkers, in_heavy_worker
from support.broker_bench import in_loop, turn
from support.workers import HeldWorkers


@pytest.mark.parametrize("pool", ["sync", "heavy"])
def test_task_runs_elsewhere_and_its_result_comes_back_here(pool: str) -> None:
    @in_loop
    async def body() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop(), 1, 1)
        done: asyncio.Future[tuple[object, object, int]] = asyncio.get_running_loop().create_future()
        getattr(workers, pool)(
            threading.get_ident,
            lambda result, error: done.set_result((result, error, threading.get_ident())),
        )
        result, error, thread = await done
        assert (result != thread, error, thread) == (True, None, threading.get_ident())
        workers.close()

    body()


@in_loop
async def test_exception_of_a_task_is_raised_where_it_is_awaited() -> None:
    workers = ThreadWorkers(asyncio.get_running_loop(), 1, 1)
    with pytest.raises(ZeroDivisionError):
        await in_heavy_worker(workers, lambda: 1 // 0)
    workers.close()


@in_loop
async def test_who_gave_up_waiting_is_not_told() -> None:
    workers = HeldWorkers()
    waiting = in_heavy_worker(workers, lambda: 1)
    waiting.cancel()
    await turn()
    workers.run_heavy()
    assert waiting.cancelled()
