"""FakeStore: its faults do what they say, in virtual time, and one seed is one run."""

from collections.abc import Coroutine
from random import Random

import pytest

from anabranch.errors import ObjectExistsError, ObjectGoneError, StoreUnavailableError
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.loop import VirtualLoop
from anabranch.testing.fakes.store import FakeBucket, FakeStore, StoreFaults


class World:
    def __init__(self, faults: StoreFaults | None = None, seed: int = 7) -> None:
        self.clock = FakeClock()
        self.loop = VirtualLoop(self.clock, lambda: False)
        self.bucket = FakeBucket(self.clock)
        self.store = FakeStore(self.bucket, Random(seed), faults or StoreFaults())

    def run(self, story: Coroutine[object, object, object]) -> object:
        task = self.loop.create_task(story)
        task.add_done_callback(lambda _: self.loop.stop())
        self.loop.run_for(3_600_000)
        return task.result()

    def close(self) -> None:
        self.loop.close()


@pytest.fixture
def world():
    made = World()
    yield made
    made.close()


def put(world: World, faults: StoreFaults) -> None:
    world.store.faults = faults
    try:
        world.run(world.store.put("segments/1", [b"con", b"tent"]))
    finally:
        world.store.faults = StoreFaults()


def test_refused_is_not_done(world):
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        put(world, StoreFaults(refused=1))
    world.clock.advance(1_000_000)
    assert world.bucket.names() == []


def test_slow_is_done_and_answered(world):
    put(world, StoreFaults(slow=1, slow_ms_max=5000))
    assert world.clock.monotonic_ms() > 20
    assert world.bucket.content("segments/1") == b"content"


def test_lost_is_not_done_and_costs_the_time_out(world):
    with pytest.raises(StoreUnavailableError, match="does not answer"):
        put(world, StoreFaults(lost=1))
    assert world.clock.monotonic_ms() >= 10_000
    world.clock.advance(1_000_000)
    assert world.bucket.names() == []


def test_silent_is_done_without_an_answer(world):
    with pytest.raises(StoreUnavailableError, match="does not answer"):
        put(world, StoreFaults(silent=1))
    assert world.bucket.names() == ["segments/1"]
    with pytest.raises(ObjectExistsError):
        put(world, StoreFaults())


def test_late_comes_true_after_its_writer_gave_up(world):
    with pytest.raises(StoreUnavailableError, match="does not answer"):
        put(world, StoreFaults(late=1, late_ms_max=60_000))
    assert world.bucket.names() == []
    world.clock.advance(60_000)
    assert world.bucket.names() == ["segments/1"]


def test_of_two_puts_under_one_name_the_first_to_arrive_wins(world):
    with pytest.raises(StoreUnavailableError):
        put(world, StoreFaults(late=1))
    world.run(world.store.put("segments/1", [b"second try"]))
    world.clock.advance(100_000)
    assert world.bucket.content("segments/1") == b"second try"


def test_what_was_sent_arrives_though_its_sender_died(world):
    world.store.faults = StoreFaults(slow=1, slow_ms_max=5000)
    task = world.loop.create_task(world.store.put("segments/1", [b"content"]))
    world.loop.run_for(0)
    task.cancel()
    world.loop.run_for(0)
    assert task.cancelled()
    world.clock.advance(5000)
    assert world.bucket.names() == ["segments/1"]


def test_cut_off_and_away_are_unavailable_until_they_end(world):
    put(world, StoreFaults())
    other = FakeStore(world.bucket, Random(1))
    world.store.is_cut = True
    with pytest.raises(StoreUnavailableError):
        world.run(world.store.get("segments/1"))
    assert world.run(other.get("segments/1")) == b"content"
    world.store.is_cut, world.bucket.is_away = False, True
    for store in (world.store, other):
        with pytest.raises(StoreUnavailableError):
            world.run(store.get("segments/1"))
    world.bucket.is_away = False
    assert world.run(world.store.get("segments/1")) == b"content"


def test_objects_are_lost_and_damaged_on_demand(world):
    put(world, StoreFaults())
    world.store.damage_next_gets = 1
    assert world.run(world.store.get("segments/1")) != b"content"
    assert world.run(world.store.get("segments/1")) == b"content"
    world.bucket.damage("segments/1", position=0)
    assert world.run(world.store.get("segments/1")) == b"bontent"
    world.bucket.lose("segments/1")
    with pytest.raises(ObjectGoneError):
        world.run(world.store.get("segments/1"))
    assert world.bucket.requests == {"put": 1, "get": 4}


def fates(seed: int) -> list[str]:
    world = World(StoreFaults(refused=0.2, slow=0.2, lost=0.1, silent=0.1, late=0.1), seed)
    seen = []
    for number in range(60):
        try:
            world.run(world.store.put(f"segments/{number}", [b"x"]))
            seen.append(f"done {world.clock.monotonic_ms()}")
        except StoreUnavailableError as error:
            seen.append(f"{error} {world.clock.monotonic_ms()}")
    seen += world.bucket.names()
    world.close()
    return seen


def test_one_seed_is_one_run():
    assert fates(3) == fates(3)
    assert fates(3) != fates(4)
    words = " ".join(fates(3))
    assert "done" in words
    assert "cannot be reached" in words
    assert "does not answer" in words
