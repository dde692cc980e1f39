"""Requests that fail in passing are repeated, as often and as long as it says, and nothing is done twice."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

from anabranch.errors import ObjectExistsError, ObjectGoneError, StoreRefusedError, StoreUnavailableError
from anabranch.objects.memory_store import MemoryStore
from anabranch.objects.retrying_store import Patience, RetryingStore
from anabranch.objects.store import Buffer, StoredObject
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.loop import VirtualLoop


class Flaky(MemoryStore):
    """Fails so many times before it does what it is asked."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        super().__init__(wall_ms)
        self.failures = 0
        self.is_done_all_the_same = False
        self.requests = 0
        self.page_objects_max = 2

    def _fail(self) -> None:
        self.requests += 1
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError("503.")

    async def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        if self.failures and self.is_done_all_the_same:
            self.put_now(name, pieces)
        self._fail()
        await super().put(name, pieces)

    async def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        self._fail()
        return await super().get(name, start, end)

    async def get_end(self, name: str, size: int) -> bytes:
        self._fail()
        return await super().get_end(name, size)

    async def delete(self, names: Sequence[str]) -> None:
        self._fail()
        await super().delete(names)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        while True:
            self._fail()
            page = self.page(prefix, after)[: self.page_objects_max]
            if not page:
                return
            yield page
            after = page[-1].name
            self.failures += 1


class World:
    def __init__(self, **patience: Any) -> None:
        self.clock = FakeClock()
        self.loop = VirtualLoop(self.clock, lambda: False)
        self.flaky = Flaky(self.clock.wall_ms)
        self.heard: list[StoreUnavailableError] = []
        self.store = RetryingStore(self.flaky, self.clock, Patience(**patience), self.heard.append)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)


@pytest.fixture
def worlds() -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(**patience: Any) -> World:
        made.append(World(**patience))
        return made[-1]

    yield make
    for world in made:
        world.loop.close()


@pytest.fixture
def world(worlds: Callable[..., World]) -> World:
    return worlds()


def test_repeats_what_fails_in_passing(world: World) -> None:
    world.flaky.failures = 3
    world.do(world.store.put("a", [b"bytes"]))
    world.flaky.failures = 5
    assert world.do(world.store.get("a", 1, 3)) == b"yt"
    world.flaky.failures = 2
    assert world.do(world.store.get_end("a", 2)) == b"es"
    world.flaky.failures = 1
    world.do(world.store.delete(["a"]))
    assert list(world.flaky.names) == []
    assert len(world.heard) == world.store.retries_total == 11


def test_pauses_grow(world: World) -> None:
    world.flaky.failures = 4
    world.do(world.store.put("a", [b""]))
    assert world.clock.monotonic_ms() >= 100 + 200 + 400 + 800


def test_gives_up_after_its_attempts_and_says_so(worlds: Callable[..., World]) -> None:
    world = worlds(attempts_max=4)
    world.flaky.failures = 100
    with pytest.raises(StoreUnavailableError, match=r"503\. Given up after 4 attempts"):
        world.do(world.store.get("a"))
    assert world.flaky.requests == 4


def test_gives_up_after_its_time(worlds: Callable[..., World]) -> None:
    world = worlds(attempts_max=10**6, seconds_max=60)
    world.flaky.failures = 10**6
    with pytest.raises(StoreUnavailableError, match="Given up"):
        world.do(world.store.get("a"))
    assert 60_000 <= world.clock.monotonic_ms() < 80_000


def test_a_put_that_was_done_without_an_answer_is_no_error(world: World) -> None:
    world.flaky.failures, world.flaky.is_done_all_the_same = 1, True
    world.do(world.store.put("a", [b"once"]))
    assert world.flaky.content("a") == b"once"
    with pytest.raises(ObjectExistsError):
        world.do(world.store.put("a", [b"twice"]))


def test_does_not_repeat_what_will_not_change(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ObjectGoneError):
        world.do(world.store.get("nothing"))

    async def refuse(name: str, start: int = 0, end: int | None = None) -> bytes:
        await asyncio.sleep(0)
        raise StoreRefusedError("credentials")

    monkeypatch.setattr(world.flaky, "get", refuse)
    with pytest.raises(StoreRefusedError):
        world.do(world.store.get("nothing"))
    assert world.heard == []


def test_a_listing_goes_on_where_it_was(world: World) -> None:
    """Each page of it fails once."""
    names = [f"a{number}" for number in range(7)]
    for name in names:
        world.flaky.put_now(name, [b""])

    async def listed() -> list[str]:
        return [each.name async for page in world.store.list("a") for each in page]

    assert world.do(listed()) == names
    assert len(world.heard) == 4
