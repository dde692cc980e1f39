"""A store that was away is back for everybody as soon as it answers anybody. By virtual time."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any

import pytest

from anabranch.errors import ObjectExistsError, ObjectGoneError, StoreRefusedError, StoreUnavailableError
from anabranch.objects.store import Buffer, StoredObject
from anabranch.objects.watched_store import OUTAGE_SECONDS_MIN, PROBE_NAME, SLOW_SECONDS, WatchedStore
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.loop import VirtualLoop


class Store:
    """Answers, refuses, or says nothing at all."""

    url = "test://store"

    def __init__(self) -> None:
        self.state = "up"
        self.put_seconds = 0.01
        self.probes = 0
        self.puts = 0

    async def _answer(self, seconds: float = 0.01) -> None:
        if self.state == "deaf":
            await asyncio.Event().wait()
        await asyncio.sleep(seconds)
        if self.state == "down":
            raise StoreUnavailableError("503")
        if self.state == "denied":
            raise StoreRefusedError("403")

    async def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        self.puts += 1
        await self._answer(self.put_seconds)
        if name == "taken":
            raise ObjectExistsError(name)

    async def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        await self._answer()
        return b"bytes"

    async def get_end(self, name: str, size: int) -> bytes:
        self.probes += name == PROBE_NAME
        await self._answer()
        raise ObjectGoneError(name)

    async def delete(self, names: Sequence[str]) -> None:
        await self._answer()

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        await self._answer()
        yield [StoredObject(prefix, 1, 1)]

    async def close(self) -> None:
        pass


class World:
    def __init__(self) -> None:
        self.loop = VirtualLoop(FakeClock(), lambda: False)
        self.inner = Store()
        self.store = WatchedStore(self.inner)
        self.backs: list[float] = []
        self.store.on_back.append(lambda: self.backs.append(self.loop.time()))

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def begin(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        return self.loop.create_task(work)

    def run(self, seconds: float) -> None:
        self.do(asyncio.sleep(seconds))


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.store.end_watch()
    for task in asyncio.all_tasks(world.loop):
        task.cancel()
    world.loop.run_for(0)
    world.loop.close()


async def listed(store: WatchedStore) -> list[str]:
    return [line.name async for page in store.list("a") for line in page]


def test_a_store_that_answers_is_asked_for_nothing_more(world: World) -> None:
    world.do(world.store.put("a", [b"x"]))
    assert world.do(world.store.get("a")) == b"bytes"
    assert world.do(listed(world.store)) == ["a"]
    with pytest.raises(ObjectExistsError):
        world.do(world.store.put("taken", [b"x"]))
    world.run(10)
    assert (world.inner.probes, world.store.is_away, world.backs) == (0, False, [])


@pytest.mark.parametrize("state", ["down", "deaf", "denied"])
def test_whoever_waits_is_woken_when_the_store_answers_a_probe(world: World, state: str) -> None:
    world.inner.state = state
    world.begin(world.store.get("a")).add_done_callback(lambda task: task.exception())
    world.run(60)
    assert world.store.is_away
    assert world.backs == []
    probes = world.inner.probes
    assert 30 < probes < 300
    world.inner.state = "up"
    healed = world.loop.time()
    world.run(5)
    assert len(world.backs) == 1
    assert world.backs[0] - healed < 1.5
    assert not world.store.is_away
    world.run(60)
    assert world.inner.probes <= probes + 2


def test_an_answer_to_anybody_wakes_all(world: World) -> None:
    world.inner.state = "down"
    with pytest.raises(StoreUnavailableError):
        world.do(world.store.put("a", [b"x"]))
    world.run(OUTAGE_SECONDS_MIN)
    assert world.store.is_away
    world.inner.state = "up"
    world.do(world.store.get("b"))
    assert len(world.backs) == 1


def test_nobody_is_woken_by_a_store_that_refuses_writes_and_answers_reads(world: World) -> None:
    """Or whoever writes would try again at once, fail at once, and never pause."""

    async def refuse(name: str, pieces: Sequence[Buffer]) -> None:
        raise StoreUnavailableError("503")

    world.inner.put = refuse  # type: ignore[method-assign]
    for _ in range(20):
        with pytest.raises(StoreUnavailableError):
            world.do(world.store.put("a", [b"x"]))
        world.run(1)
    assert world.backs == []
    assert world.inner.probes <= 20


def test_a_request_that_was_sent_into_an_outage_is_given_up_when_it_ends(world: World) -> None:
    world.inner.state = "deaf"
    hung = world.begin(world.store.put("a", [b"x"]))
    world.run(4)
    world.inner.state = "up"
    world.run(1.5)
    assert hung.done()
    assert isinstance(hung.exception(), StoreUnavailableError)
    world.do(world.store.put("a", [b"x"]))


def test_a_slow_request_is_not_given_up_while_the_store_answers_others(world: World) -> None:
    world.inner.put_seconds = 8 * SLOW_SECONDS
    slow = world.begin(world.store.put("a", [b"x"]))
    world.run(9 * SLOW_SECONDS)
    assert slow.done()
    assert slow.exception() is None
    assert world.inner.puts == 1


def test_a_request_after_the_outage_is_not_given_up_for_it(world: World) -> None:
    world.inner.state = "down"
    with pytest.raises(StoreUnavailableError):
        world.do(world.store.get("a"))
    world.run(3)
    world.inner.state, world.inner.put_seconds = "up", 5.0
    late = world.begin(world.store.put("a", [b"x"]))
    world.run(6)
    assert late.done()
    assert late.exception() is None


@pytest.mark.parametrize("name", ["taken", "a"])
def test_a_slow_answer_ends_the_outage_whatever_it_says(world: World, name: str) -> None:
    """The store answers this request alone: no probe before it."""
    world.inner.put_seconds = 5 * SLOW_SECONDS
    slow = world.begin(world.store.put(name, [b"x"]))
    world.run(2 * SLOW_SECONDS)
    world.inner.state = "deaf"
    other = world.begin(world.store.get("b"))
    world.run(3 * SLOW_SECONDS + 0.01)
    assert slow.done()
    error = slow.exception()
    assert isinstance(error, ObjectExistsError) if name == "taken" else error is None
    assert len(world.backs) == 1
    world.run(0.1)
    assert isinstance(other.exception(), StoreUnavailableError)


def test_whoever_fails_on_being_woken_fails_neither_the_request_nor_the_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("a defect of theirs")

    world.store.on_back.insert(0, fail)
    world.inner.state = "down"
    with pytest.raises(StoreUnavailableError):
        world.do(world.store.get("a"))
    world.run(2 * OUTAGE_SECONDS_MIN)
    world.inner.state = "up"
    assert world.do(world.store.get("a")) == b"bytes"
    assert len(world.backs) == 1
    assert "a defect of theirs" in caplog.text


def test_a_single_failure_gives_up_nobody_else(world: World) -> None:
    world.inner.put_seconds = 4.0
    slow = world.begin(world.store.put("a", [b"x"]))
    world.run(2)
    world.inner.state = "down"
    with pytest.raises(StoreUnavailableError):
        world.do(world.store.get("b"))
    world.inner.state = "up"
    world.run(4)
    assert slow.done()
    assert slow.exception() is None
