"""A whole broker on a disk in memory, without sockets and without threads."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, cast

from anabranch.broker.broker import Broker
from anabranch.broker.topics.partition import Partition
from anabranch.broker.write.append_queue import AppendJob
from anabranch.cluster.metadata.residence import KEPT
from anabranch.config import NodeSettings
from anabranch.record.batch import read_header
from anabranch.record.builder import BatchBuilder
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.disk import FakeDisk
from support.workers import HeldWorkers, InlineWorkers

DATA = "data"


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test inside a loop of its own; a callback that fails fails the test."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        failures: list[dict[str, Any]] = []

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
            await test(*args, **kwargs)

        asyncio.run(main())
        assert not failures, failures

    return run


async def turn(count: int = 20) -> None:
    """Let everything that can run, run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def worked_off(task: "asyncio.Task[None]", workers: HeldWorkers) -> None:
    """Let the heavy work that a task hands over run, piece by piece, until the task has ended."""
    while not task.done():
        if workers.heavies:
            workers.run_heavy()
        await turn()
    await task


def batch_of(*values: bytes, **fields: Any) -> bytearray:
    """One batch; `fields` are those of BatchBuilder."""
    builder = BatchBuilder(**fields)
    for value in values or (b"v",):
        builder.add(None, value, timestamp_ms=1_700_000_000_000)
    return builder.build()


class Bench:
    """One life of a broker; `again` is the next one on the same disk."""

    def __init__(
        self,
        disk: FakeDisk | None = None,
        workers: InlineWorkers | HeldWorkers | None = None,
        **settings: Any,
    ) -> None:
        self.disk = disk or FakeDisk()
        self.workers = workers or InlineWorkers()
        self.clock = FakeClock()
        self._settings = settings
        node = NodeSettings.load({name.replace("_", "."): str(value) for name, value in settings.items()})
        self.broker = Broker(node, self.clock, self.disk, self.workers, DATA, "boot")
        self.broker.open()
        self.core = self.broker.core
        self.topics = self.broker.topics

    def again(self) -> "Bench":
        """The process dies, the machine does not: open everything anew."""
        self.disk.kill()
        return Bench(self.disk, self.workers, **self._settings)

    def hold_upkeep(self) -> HeldWorkers:
        """Let what upkeep hands to workers wait from now on."""
        workers: Any = HeldWorkers()
        kept: Any = self.broker.kinds._kinds[KEPT]
        self.broker.workers = self.broker.start_offsets._workers = kept._workers = workers
        return cast(HeldWorkers, workers)

    async def topic(self, name: str = "t", partitions: int = 1, **overrides: str) -> Partition:
        wanted = {key.replace("_", "."): value for key, value in overrides.items()}
        await self.topics.create(self.topics.plan(name, partitions, wanted))
        return self.topics.partition(name, 0)

    def job(
        self, partition: Partition, batch: bytearray | None = None, *, wait_safe: bool = True
    ) -> "tuple[AppendJob, list[AppendJob]]":
        """A job and the list it enters when it is answered."""
        answered: list[AppendJob] = []
        data = batch if batch is not None else batch_of()
        return AppendJob(partition, data, read_header(data), answered.append, wait_safe=wait_safe), answered

    def submit(
        self, partition: Partition, batch: bytearray | None = None, *, wait_safe: bool = True
    ) -> list[AppendJob]:
        job, answered = self.job(partition, batch, wait_safe=wait_safe)
        self.core.submit(job)
        return answered
