"""What a node gives back to the system of the memory it freed. By virtual time."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from anabranch.cli.node.memory import KEPT_BYTES_MAX, PAUSE_SECONDS_MAX, return_freed_memory
from anabranch.record.backend import COMPILED
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.loop import VirtualLoop

MIB = 2**20


class Process:
    """`used` and `freed` bytes; the freed ones stay until they are released."""

    def __init__(self) -> None:
        self.used = 50 * MIB
        self.freed = 0
        self.releases = 0
        self._loop = VirtualLoop(FakeClock(), lambda: False)
        self._task = self._loop.create_task(return_freed_memory(self.resident, self.release))
        self.run(0)

    def resident(self) -> int:
        return self.used + self.freed

    def release(self) -> None:
        self.releases += 1
        self.freed = 0

    def run(self, seconds: float) -> None:
        self._loop.run_until_complete(asyncio.sleep(seconds))

    def end(self) -> None:
        self._task.cancel()
        self._loop.run_for(0)
        self._loop.close()


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    async def at_once(task: Callable[[], None]) -> None:
        task()

    monkeypatch.setattr(asyncio, "to_thread", at_once)
    process = Process()
    yield process
    process.end()


def test_little_freed_memory_is_kept(process: Process) -> None:
    process.freed = KEPT_BYTES_MAX
    process.run(60)
    assert process.releases == 0


def test_much_freed_memory_is_given_back(process: Process) -> None:
    process.freed = KEPT_BYTES_MAX + 1
    process.run(2)
    assert process.freed == 0


def test_memory_that_was_used_at_first_is_given_back_once_it_is_freed(process: Process) -> None:
    process.used += 200 * MIB
    process.run(60)
    process.used, process.freed = 50 * MIB, 200 * MIB
    process.run(PAUSE_SECONDS_MAX + 1)
    assert process.freed == 0


def test_memory_that_stays_in_use_is_looked_at_less_and_less_often(process: Process) -> None:
    process.used += 200 * MIB
    process.run(100 * PAUSE_SECONDS_MAX)
    assert 100 <= process.releases <= 106


@pytest.mark.skipif(not COMPILED, reason="the pure form gives nothing back by itself")
def test_compiled_module_gives_freed_memory_back() -> None:
    from anabranch.cli.node.memory import release, resident_bytes

    kept = [bytes(100_000) for _ in range(2000)]
    taken = resident_bytes()
    del kept[:-1]  # Whatever lies behind what is kept cannot be given back by shrinking the heap.
    release()
    assert resident_bytes() < taken - 100 * MIB
