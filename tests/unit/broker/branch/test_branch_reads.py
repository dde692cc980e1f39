"""What a broker holds of a lane is looked up on the loop, and only read by a worker."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.broker.branch.lanes.reads import LaneReading
from anabranch.log.log import Log
from anabranch.log.settings import LogConfig
from anabranch.modes.branch.lines import Span
from anabranch.modes.branch.rows import Lane
from anabranch.record.builder import BatchBuilder
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.values import Offset

NOW_MS = 1_700_000_000_000


class LateWorkers:
    """Takes tasks, and does them when told."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def heavy(self, task: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.tasks.append((task, done))


@pytest.mark.anyio
async def test_a_log_is_asked_on_the_loop_and_read_by_a_worker() -> None:
    log = Log.open(FakeDisk(), "data/t-0", LogConfig(), clean=False)
    builder = BatchBuilder(0, generation=3)
    builder.add(b"k", b"v", timestamp_ms=NOW_MS)
    batch = builder.build()
    log.append([(batch, Offset(0), Offset(0), NOW_MS)], NOW_MS)
    workers, asked = LateWorkers(), []
    slice_of = log.slice
    log.slice = lambda *args, **fields: asked.append(args) or slice_of(*args, **fields)  # type: ignore[method-assign]
    partition: Any = SimpleNamespace(lanes={Lane(0): log})
    reading = LaneReading(Any, workers, lambda: ())  # type: ignore[arg-type]
    answer = asyncio.ensure_future(reading.read(partition, Span(Lane(0), Offset(0), Offset(9))))
    await asyncio.sleep(0)
    assert asked == [(0, 4 * 2**20, 1)]
    ((task, done),) = workers.tasks
    done(await asyncio.to_thread(task), None)
    assert await answer == (bytes(batch), 1)
    assert len(asked) == 1
