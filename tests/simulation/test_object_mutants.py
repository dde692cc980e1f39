"""Schedules of whole brokers with an object store, and the rules they see broken.

| what is broken | who notices |
| --- | --- |
| proposed before it is stored | a writer that dies before the store has it |
| commits of one broker out of order | a first object that is slower than the second |
| collection without tombstone | a commit that is late |
| log cut before coordinate files are synced | a power cut after a snapshot |
"""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from anabranch.broker.object.upkeep import ObjectUpkeep
from anabranch.cluster.objects.entries import PackedCommit
from anabranch.cluster.objects.table import ObjectTable, Result
from anabranch.cluster.objects.upkeep import own_prefixes
from anabranch.errors import AnabranchError
from anabranch.log.coordinates import FileCoordinates
from anabranch.modes.object.events import Applied, Effect
from anabranch.modes.object.writer import ObjectWriter
from anabranch.objects.layout.names import object_id_of
from anabranch.objects.store import Buffer
from anabranch.testing.simulation.cluster_simulator import ClusterSimulator
from anabranch.testing.simulation.object_workload import SMALL_STORE
from anabranch.testing.simulation.simulator import (
    Producer,
    SimulationError,
    fetch_request,
    produced,
    records_from,
)
from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.schedule import PLACE, Schedule

Patch = pytest.MonkeyPatch
FIRST: Producer = (1000, 0, 0)
"""The first batch of an idempotent producer."""


class ObjectSchedule(Schedule):
    """Three brokers, of which the first leads the quorum, and one topic in the store."""

    def __init__(self, seed: int = 1, entries_per_snapshot: int = 1000, **settings: object) -> None:
        sim = ClusterSimulator(
            seed,
            3,
            settings={**SMALL_STORE, **{name.replace("_", "."): value for name, value in settings.items()}},
            has_store=True,
            entries_per_snapshot=entries_per_snapshot,
        )
        mode = [{"name": "anabranch.mode", "value": "object"}]
        super().__init__(sim, {"num_partitions": 1, "replication_factor": -1, "configs": mode})
        self.sim.run_until(self.sim.is_whole)
        assert self.sim.broker(1).metadata.is_leader, "the schedules count on it"

    def values(self, broker_id: int) -> list[bytes | None]:
        found: list[bytes | None] = []
        while True:
            wanted = {**fetch_request(*PLACE, len(found)), "max_wait_ms": 200}
            answer = self.ask(broker_id, ApiKey.FETCH, 12, wanted)["responses"][0]["partitions"][0]
            assert answer["error_code"] == ErrorCode.NONE, ErrorCode(answer["error_code"])
            more = [value for _, value in records_from(answer["records"], len(found))]
            if not more:
                assert answer["high_watermark"] == len(found), "not everything can be read"
                return found
            found += more

    def all_show(self, *expected: bytes) -> None:
        self.sim.run_until(self.sim.is_whole)
        for number in self.sim.lives:
            assert self.values(number) == list(expected)

    def stuck_after_put(self, broker_id: int, folder: str) -> Callable[[], bool]:
        """Let no PUT into that folder return at this broker, though it is done; the rest says whether there was one."""
        store = self.sim.lives[broker_id].store
        assert store is not None
        put, done = store.put, []

        async def stuck(name: str, pieces: Sequence[Buffer]) -> None:
            await put(name, pieces)
            if name.startswith(folder):
                done.append(name)
                await asyncio.Event().wait()

        store.put = stuck  # type: ignore[method-assign]
        return lambda: bool(done)

    def nothing_is_left_over(self) -> None:
        """The store has what is named, after a while nothing else, and always that."""
        objects = self.sim.broker(2).metadata.table.objects
        self.sim.run_until(lambda: self.stored() == {each.name for each in objects.referenced()}, 120_000)

    def stored(self) -> set[str]:
        assert self.sim.bucket is not None
        incarnation = self.sim.broker(2).metadata.table.objects.incarnation
        assert incarnation is not None
        return {name for prefix in own_prefixes(incarnation) for name in self.sim.bucket.names(prefix)}

    def end_at(self, broker_id: int) -> int:
        objects = self.sim.broker(broker_id).metadata.table.objects
        keys = objects.keys()
        return sum(objects.head(key).end for key in keys)


# --- deaths --------------------------------------------------------------------------------------------------------


def test_a_writer_dies_between_put_and_commit() -> None:
    with ObjectSchedule() as world:
        is_stored = world.stuck_after_put(2, "segments/")
        lost = world.send(2, b"a", FIRST)
        world.sim.run_until(is_stored)
        world.sim.kill(2)
        world.sim.run(10)
        assert produced(lost) is None
        assert world.write(3, b"a", FIRST) == 0
        world.sim.start(2)
        world.all_show(b"a")
        world.nothing_is_left_over()
        world.all_show(b"a")


def test_a_writer_dies_between_commit_and_answer() -> None:
    with ObjectSchedule(3) as world:
        lost = world.send(2, b"a", FIRST)
        while not world.end_at(1):
            world.sim.run(1)
        assert not lost.is_settled, "the schedule is not what it should be"
        world.sim.kill(2)
        world.sim.run(10)
        assert produced(lost) is None
        assert world.write(3, b"a", FIRST) == 0
        assert world.write(1, b"b", (1000, 0, 1)) == 1
        world.sim.start(2)
        world.all_show(b"a", b"b")
        world.nothing_is_left_over()


@pytest.mark.parametrize("is_power_cut", [False, True])
def test_a_merger_dies_between_put_and_replacement(is_power_cut: bool) -> None:
    with ObjectSchedule() as world:
        is_merged = world.stuck_after_put(1, "merged/")
        values = [(b"%d" % number).ljust(400) for number in range(12)]
        for number, value in enumerate(values):
            world.write(1 + number % 3, value, (1000, 0, number))
        world.sim.run_until(is_merged)
        (world.sim.crash if is_power_cut else world.sim.kill)(1)
        merged = {name for name in world.stored() if name.startswith("merged/")}
        world.sim.run_until(
            lambda: world.sim.broker(2).metadata.is_leader or world.sim.broker(3).metadata.is_leader
        )
        world.sim.start(1)
        world.all_show(*values)
        world.nothing_is_left_over()
        assert not merged & world.stored(), "an orphan has stayed"
        world.all_show(*values)


def test_every_broker_but_a_majority_of_voters_loses_its_disk_again_and_again() -> None:
    with ObjectSchedule() as world:
        for number in (1, 2, 3):
            world.write(number, b"%d" % number)
            world.sim.kill(number)
            world.sim.wipe(number)
            world.sim.start(number)
            world.sim.run_until(world.sim.is_whole)
        world.all_show(b"1", b"2", b"3")


# --- rules ---------------------------------------------------------------------------------------------------------


def a_writer_dies_before_the_store_has_it() -> None:
    with ObjectSchedule() as world:
        store = world.sim.lives[2].store
        assert store is not None
        store.is_cut = True
        pending = world.send(2, b"a", FIRST)
        world.sim.run(1000)
        world.sim.kill(2)
        world.sim.start(2)
        world.sim.run_until(world.sim.is_whole)
        assert produced(pending) is None
        world.write(3, b"a", FIRST)
        world.all_show(b"a")


def proposed_before_it_is_stored(patch: Patch) -> None:
    def ready(self: ObjectWriter) -> list[tuple[int, int | None]]:
        return [(number, each.serial if each is not None else None) for number, each in self._open.items()]

    patch.setattr(ObjectWriter, "_ready", ready)


def the_first_object_is_slower() -> None:
    with ObjectSchedule() as world:
        store = world.sim.lives[2].store
        assert store is not None
        store.is_cut = True
        first = world.send(2, b"a")
        world.sim.run(2000)  # The longer the store was away, the longer is the pause before the next try.
        store.is_cut = False
        second = world.send(2, b"b")
        world.sim.run_until(lambda: first.is_settled and second.is_settled)
        assert produced(first) == (ErrorCode.NONE, 0)
        assert produced(second) == (ErrorCode.NONE, 1)
        world.all_show(b"a", b"b")


def commits_out_of_order(patch: Patch) -> None:
    commit_one, applied = ObjectTable._commit_one, ObjectWriter._applied

    def ready(self: ObjectWriter) -> list[tuple[int, int | None]]:
        return [
            (number, each.serial)
            for number, each in self._open.items()
            if each is not None and each.is_stored
        ]

    def any_number(
        self: ObjectTable, broker: BrokerId, epoch: int, commit: PackedCommit, now_ms: int
    ) -> Sequence[Result]:
        self._numbers[broker] = epoch, commit.number - 1
        return commit_one(self, broker, epoch, commit, now_ms)

    def in_any_order(self: ObjectWriter, event: Applied, effects: list[Effect]) -> None:
        if event.number in self._open:
            self._open = {event.number: self._open[event.number], **self._open}
        applied(self, event, effects)

    patch.setattr(ObjectWriter, "_ready", ready)
    patch.setattr(ObjectWriter, "_applied", in_any_order)
    patch.setattr(ObjectTable, "_commit_one", any_number)


def a_commit_is_late() -> None:
    """The store has had the object for longer than orphans stay when its commit comes."""
    with ObjectSchedule(3, object_collect_ms=300) as world:
        world.sim.net.cut(BrokerId(2), BrokerId(1))
        is_stored = len(world.stored())
        pending = world.send(2, b"a")
        world.sim.run_until(lambda: len(world.stored()) > is_stored)
        world.sim.run(1300)
        world.sim.net.heal()
        world.sim.run_until(lambda: pending.is_settled)
        if produced(pending) != (ErrorCode.NONE, 0):
            raise SimulationError(f"the schedule is not what it should be: {produced(pending)}")
        for number in (1, 3):
            world.sim.kill(number)  # What it has written is in its memory; others have to ask the store.
        world.sim.kill(2)
        for number in world.sim.machines:
            world.sim.start(number)
        world.all_show(b"a")


def collected_without_tombstone(patch: Patch) -> None:
    async def collect_orphans(self: ObjectUpkeep) -> None:
        before_ms = self._clock.wall_ms() - self._settings.collect_ms
        for prefix in own_prefixes(self._objects.incarnation or 0):
            async for page in self._store.list(prefix):
                found = [object_id_of(each.name) for each in page if each.modified_ms <= before_ms]
                gone = [
                    each.name for each in found if each is not None and not self._objects.references(each)
                ]
                await self._store.delete(gone)

    patch.setattr(ObjectUpkeep, "collect_orphans", collect_orphans)


def the_power_goes_after_a_snapshot() -> None:
    for seed in range(3):
        with ObjectSchedule(seed + 1, entries_per_snapshot=10) as world:
            values = [b"%d" % number for number in range(25)]
            for number, value in enumerate(values):
                world.write(1 + number % 3, value)
            assert all(life.broker.metadata.quorum.log.start > 10 for life in world.sim.lives.values())
            for number in world.sim.machines:
                world.sim.crash(number)
            for number in world.sim.machines:
                world.sim.start(number)
            world.all_show(*values)


def cut_before_coordinates_are_synced(patch: Patch) -> None:
    patch.setattr(FileCoordinates, "sync", lambda self: self._unsynced.clear())


SCHEDULES: list[tuple[Callable[[], None], Callable[[Patch], None]]] = [
    (a_writer_dies_before_the_store_has_it, proposed_before_it_is_stored),
    (the_first_object_is_slower, commits_out_of_order),
    (a_commit_is_late, collected_without_tombstone),
    (the_power_goes_after_a_snapshot, cut_before_coordinates_are_synced),
]


@pytest.mark.parametrize("happens", [each for each, _ in SCHEDULES], ids=lambda each: each.__name__)
def test_a_schedule_of_objects_loses_nothing(happens: Callable[[], None]) -> None:
    happens()


@pytest.mark.parametrize(
    ("happens", "mutant"), SCHEDULES, ids=lambda each: each.__name__ if callable(each) else None
)
def test_a_schedule_of_objects_catches(
    happens: Callable[[], None], mutant: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, AnabranchError)) as caught:
        happens()
    assert "the schedule is not" not in str(caught.value)


# --- what seeds have found -----------------------------------------------------------------------------------------


def test_who_is_refused_for_a_cut_that_came_meanwhile_hears_where_the_partition_begins() -> None:
    with ObjectSchedule() as world:
        for value in (b"a", b"b"):
            world.write(1, value)
        world.sim.run_until(world.sim.is_whole)
        store = world.sim.lives[3].store
        assert store is not None
        store.is_cut = True  # What it has not read before has to wait.
        wanted = {**fetch_request(*PLACE, 0), "max_wait_ms": 3000}
        waiting = world.sim.send(3, ApiKey.FETCH, 12, wanted)
        world.sim.run(100)
        cut = {"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}
        world.ask(1, ApiKey.DELETE_RECORDS, 2, {"timeout_ms": 2000, "topics": [cut]})
        world.sim.run_until(world.sim.is_whole)
        assert not waiting.is_settled, "the schedule is not what it should be"
        store.is_cut = False
        world.sim.run_until(lambda: waiting.is_settled)
        assert waiting.body is not None
        answer = waiting.body["responses"][0]["partitions"][0]
        assert (answer["error_code"], answer["log_start_offset"]) == (ErrorCode.OFFSET_OUT_OF_RANGE, 1)
