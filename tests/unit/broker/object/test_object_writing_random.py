"""Brokers that write the same partitions while the store, the quorum and the brokers themselves fail: what was
acknowledged is kept, once, in the order of its producer."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from anabranch.broker.object.holding import Holding
from anabranch.broker.object.writer_driver import ObjectWriting
from anabranch.errors import AnabranchError
from anabranch.modes.object.events import Event
from anabranch.modes.object.writer import ObjectWriter
from support.writing_world import TOPIC_ID, Producer, WritingBroker, WritingWorld, in_writing_world

BATCHES = 60


async def troubled(world: WritingWorld) -> None:
    chance = world.chance
    world.grow(3, partitions=3)
    world.store.refuses, world.store.hides = 0.1, 0.1
    world.loses = world.late = 0.1
    world.jumps = 0.02
    world.slow_ms_max = chance.choice((2, 20, 100))
    world.store.slow_ms_max = chance.choice((5, 100, 400))
    producers = [Producer(world, number, number % 3, BATCHES) for number in range(1, 7)]
    running = [world.loop.create_task(producer.run()) for producer in producers]
    faults = world.loop.create_task(make_trouble(world))
    await asyncio.wait(running, timeout=3000)
    faults.cancel()
    for task in running:
        assert task.done(), "somebody is never answered"
        task.result()
    for producer in producers:
        producer.check()
    await stop_all(world)


async def make_trouble(world: WritingWorld) -> None:
    chance = world.chance
    for _ in range(chance.randint(3, 10)):
        await asyncio.sleep(chance.random())
        broker = chance.choice(list(world.brokers.values()))
        match chance.choice(("crash", "fence", "anew", "away", "hang")):
            case "crash" if broker.is_alive:
                world.counts["crashes"] += 1
                broker.crash()
                await asyncio.sleep(chance.random())
                broker.boot()
            case "fence":
                world.counts["fences"] += 1
                world.fence(broker, is_fenced=True)
                await asyncio.sleep(chance.random())
                world.fence(broker, is_fenced=False)
            case "anew":
                world.counts["registered anew"] += 1
                await broker.register_anew()
            case "away":
                world.counts["away"] += 1
                world.store.is_away = True
                await asyncio.sleep(chance.choice((0.5, 5, 40)))
                world.store.is_away = False
            case "hang":
                world.counts["hangs"] += 1
                world.store.hangs = 0.3
                await asyncio.sleep(1)
                world.store.hangs = 0.0


async def stop_all(world: WritingWorld) -> None:
    for broker in world.brokers.values():
        await broker.writing.stop()
        assert broker.core.queue.bytes_held == 0, "bytes stay counted after everybody is answered"
        assert broker.writing.held_bytes == 0


def run_seeds(count: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in range(count):
        counts += in_writing_world(seed, troubled).counts
    return counts


def test_everything_is_kept_once_and_in_order_whatever_fails() -> None:
    counts = run_seeds(10)
    # It is no test if nothing happens in it.
    for kind in ("crashes", "fences", "registered anew", "away", "hangs", "jumps", "late", "acknowledged"):
        assert counts[kind] > 2, counts
    for kind in (
        "NotOwnerError",
        "RequestTimedOutError",
        "EarlierBatchRefusedError",
        "StoreUnavailableError",
    ):
        assert counts[kind] > 2, counts


# --- mutants: each of these must be noticed --------------------------------------------------------------------------


def proposes_before_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    def ready(self: ObjectWriter) -> list[tuple[int, int | None]]:
        return [(number, each.serial if each else None) for number, each in self._open.items()]

    monkeypatch.setattr(ObjectWriter, "_ready", ready)


def answers_when_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    store_one = ObjectWriting._try_put

    async def try_put(self: ObjectWriting, serial: int, holding: Holding) -> Event:
        event = await store_one(self, serial, holding)
        for job in holding.jobs():
            if not job.is_finished:
                job.place(self._table.objects.head((TOPIC_ID, job.partition.id.partition)).end)
                self._finish(job, None)
        return event

    monkeypatch.setattr(ObjectWriting, "_try_put", try_put)


def takes_any_object_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a start goes on with the registration of the life before."""

    async def is_ours(self: ObjectWriting, holding: Holding) -> bool:
        return True

    async def register(self: WritingBroker, life: int) -> None:
        known = self.world.truth().brokers.get(self.id)
        self.epoch = known.epoch if known is not None else self.world.agree(self.entry())

    monkeypatch.setattr(ObjectWriting, "_is_ours", is_ours)
    monkeypatch.setattr(WritingBroker, "_register", register)


@pytest.mark.parametrize(
    "mutate",
    [
        proposes_before_it_is_stored,
        answers_when_it_is_stored,
        takes_any_object_for_its_own,
    ],
)
def test_a_broker_that_breaks_a_rule_is_caught(
    monkeypatch: pytest.MonkeyPatch, mutate: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, AnabranchError)):
        run_seeds(10)


# --- and without trouble ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("brokers", [1, 3])
def test_without_trouble_nobody_is_told_an_error(brokers: int) -> None:
    async def calm(world: WritingWorld) -> None:
        world.grow(brokers, partitions=3)
        producers = [Producer(world, number, number % 3, BATCHES) for number in range(1, 7)]
        for producer in producers:
            producer.broker = world.brokers[1]
        await asyncio.gather(*(producer.run() for producer in producers))
        for producer in producers:
            producer.check()
        assert not [kind for kind in world.counts if kind.endswith("Error")], world.counts
        await stop_all(world)

    in_writing_world(1, calm)
