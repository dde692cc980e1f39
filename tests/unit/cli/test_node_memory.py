"""What a node gives back to the system of the memory it freed, by virtual time; and how long it looks for garbage."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from anabranch.cli.node.memory import (
    KEPT_BYTES_MAX,
    LONG_COLLECTION_SECONDS,
    OLDEST,
    PAUSE_SECONDS_MAX,
    LongCollections,
    return_freed_memory,
)
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


class Heap:
    """Objects that a collection looks through, a microsecond each, and those that it leaves out."""

    def __init__(self) -> None:
        self.alive, self.frozen, self.now = 0, 100_000, 0.0
        self._long = LongCollections(self, lambda: self.now)

    def freeze(self) -> None:
        self.frozen, self.alive = self.frozen + self.alive, 0

    def unfreeze(self) -> None:
        self.frozen, self.alive = 0, self.frozen + self.alive

    def get_freeze_count(self) -> int:
        return self.frozen

    def collect(self, generation: int = OLDEST) -> float:
        info = {"generation": generation}
        self._long.on_gc("start", info)
        seconds = self.alive / 1e6
        self.now += seconds
        self._long.on_gc("stop", info)
        return seconds


def test_what_lives_through_a_long_collection_is_left_out_of_the_next() -> None:
    heap = Heap()
    heap.alive = 60_000
    assert heap.collect() > LONG_COLLECTION_SECONDS
    assert heap.collect() == 0


def test_what_lives_through_short_collections_or_those_of_young_objects_is_looked_through_again() -> None:
    heap = Heap()
    heap.alive = 40_000
    heap.collect()
    assert heap.alive == 40_000
    heap.alive = 60_000
    heap.collect(generation=1)
    assert heap.alive == 60_000


def test_everything_is_looked_through_once_twice_as_much_is_left_out() -> None:
    heap = Heap()
    for _ in range(2):
        heap.alive = 60_000
        heap.collect()
    assert heap.alive == 220_000, "the next collection looks through all"
    heap.alive = 150_000  # The rest was garbage.
    heap.collect()
    assert (heap.alive, heap.frozen) == (0, 150_000)
    heap.alive = 60_000
    heap.collect()
    assert heap.alive == 0, "twice as many as were left then are not left out yet"
