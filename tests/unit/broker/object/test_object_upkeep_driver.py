"""Upkeep of an object store, on a loop whose time is virtual: what becomes of objects when everything goes well, when
the store is away, when the leadership is lost, and when the process ends at any moment."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from random import Random
from typing import Any

import pytest

from anabranch.broker.object.merges import MergedNames, MergeSettings
from anabranch.broker.object.upkeep import ObjectUpkeep, UpkeepSettings, keeping_of
from anabranch.cluster.metadata.entries import Entry
from anabranch.cluster.metadata.rows import Topic
from anabranch.cluster.objects.entries import Replacement, replace_entry, start_entry
from anabranch.config import NodeSettings, TopicSettings
from anabranch.errors import NotControllerError, StoreUnavailableError
from anabranch.objects.layout.merge import RowBytes, build_object, merged
from anabranch.objects.layout.names import ObjectId, ObjectKind
from anabranch.objects.memory_store import MemoryStore
from anabranch.objects.store import Buffer, StoredObject
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.loop import SimWorkers, VirtualLoop
from anabranch.testing.fakes.store import FakeBucket, FakeStore, StoreFaults, with_flipped_bit
from anabranch.values import Offset
from support.upkeep_world import BROKER, INCARNATION, ObjectWorld, a_batch

MERGE_BYTES = 1000
COLLECT_MS = 60_000
MINUTE = 60_000


class Stored:
    """The store as the world's dict of objects."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def __getitem__(self, name: str) -> bytes:
        return self._store.content(name)

    def __setitem__(self, name: str, data: bytes) -> None:
        self._store.put_now(name, [data])


class WatchedStore(MemoryStore):
    """Takes a while, counts, and does what the test says before and after each request."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        super().__init__(wall_ms)
        self.requests: list[tuple[str, str]] = []
        self.answer_seconds = 0.02
        self.before: Callable[[str, str], None] = lambda what, name: None
        self.after: Callable[[str, str], None] = lambda what, name: None

    async def _around(self, what: str, name: str, work: Coroutine[Any, Any, Any]) -> Any:
        self.requests.append((what, name))
        try:
            await asyncio.sleep(self.answer_seconds)
            self.before(what, name)
        except BaseException:
            work.close()
            raise
        result = await work
        self.after(what, name)
        return result

    async def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        await self._around("put", name, super().put(name, pieces))

    async def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        found: bytes = await self._around("get", name, super().get(name, start, end))
        return found

    async def delete(self, names: Sequence[str]) -> None:
        await self._around("delete", ",".join(names), super().delete(names))

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        self.requests.append(("list", prefix))
        self.before("list", prefix)
        async for page in super().list(prefix, after):
            yield page

    def count(self, what: str) -> int:
        return sum(each == what for each, _ in self.requests)


class FakeAgreement:
    """A quorum of one voter, whose leadership a test takes away."""

    def __init__(self, world: ObjectWorld) -> None:
        self._world = world
        self.is_leader = True
        self.term = 1
        self.before: Callable[[Entry], None] = lambda entry: None
        self.proposed: list[Entry] = []

    @property
    def table(self) -> Any:
        return self._world.table

    async def propose(self, entry: Entry) -> Offset:
        await asyncio.sleep(0.005)
        self.before(entry)
        if not self.is_leader:
            raise NotControllerError("This broker does not lead the metadata quorum.")
        self.proposed.append(entry)
        return self._world.apply(entry)


class Restorable:
    """What the store's snapshots need, as a test says."""

    def __init__(self) -> None:
        self.needed: set[str] = set()
        self.is_over = False
        self.hurries = 0

    def covers(self, object_id: ObjectId) -> bool:
        return object_id.name not in self.needed

    def hurry(self) -> None:
        self.hurries += 1

    async def may_delete(self) -> bool:
        await asyncio.sleep(0.01)
        return not self.is_over


class Driven:
    """A world with a broker's upkeep in it."""

    def __init__(
        self, partition_count: int = 1, overrides: dict[str, str] | None = None, keys_max: int = 1000
    ) -> None:
        self.clock = FakeClock()
        self.keys_max = keys_max
        self.store = WatchedStore(self.clock.wall_ms)
        self.world = ObjectWorld(partition_count, overrides)
        self.world.stored = Stored(self.store)  # type: ignore[assignment]
        self.loop = VirtualLoop(self.clock, lambda: False)
        self.workers = SimWorkers(self.loop, Random(1))
        self.agreement = FakeAgreement(self.world)
        self.names = MergedNames(BROKER)
        self.restorable = Restorable()
        self.upkeep = self.begin()

    def begin(self) -> ObjectUpkeep:
        settings = UpkeepSettings(
            MergeSettings(MERGE_BYTES, self.keys_max, records_bytes_max=2**20),
            COLLECT_MS,
            retention_check_ms=5000,
            compaction_check_ms=15_000,
            is_compacting=True,
            producer_expiration_ms=MINUTE,
            producer_idle_ms=MINUTE // 2,
            producers_max=1000,
        )
        with self.loop.running():
            upkeep = ObjectUpkeep(
                self.agreement,
                self.store,
                self.workers,
                self.clock,
                self.names,
                settings,
                _keeping,
                self.restorable,
            )
            upkeep.start()
        return upkeep

    def end(self) -> None:
        """As a crash does: nothing more is done from one moment to the next."""
        task = self.loop.create_task(self.upkeep.stop())
        self.loop.run_for(1)
        assert task.done()

    def close(self) -> None:
        self.end()
        self.loop.close()

    def restart(self) -> None:
        """A new process, registered anew."""
        self.world.register(BROKER)
        self.names = MergedNames(BROKER)
        self.upkeep = self.begin()

    def run(self, milliseconds: int) -> None:
        self.loop.run_for(milliseconds)

    def write(self, *pairs: tuple[int, bytes, bytes | None]) -> ObjectId:
        """One object with a batch for each (partition, key, value), of now."""
        now_ms = self.clock.wall_ms()
        world = self.world
        return world.write(
            [(world.key(number), a_batch([(key, value)], now_ms)) for number, key, value in pairs], now_ms
        )

    def write_small(self, count: int, partitions: int = 1) -> list[ObjectId]:
        return [
            self.write(*[(number, b"%d" % place, b"v" * 100) for number in range(partitions)])
            for place in range(count)
        ]

    def check_records(self) -> None:
        for partition in range(self.world.topic.partition_count):
            key = self.world.key(partition)
            assert self.world.read(key) == self.world.expected(key)

    @property
    def referenced(self) -> set[str]:
        return {each.name for each in self.world.objects.referenced()}


def _keeping(topic: Topic) -> Any:
    overrides = {name: value for name, value in topic.overrides.items() if name != "anabranch.mode"}
    return keeping_of(TopicSettings.from_overrides(NodeSettings(), overrides))


@pytest.fixture
def driven() -> Iterator[Driven]:
    made = Driven(partition_count=2)
    yield made
    made.close()


def with_overrides(**overrides: str) -> Driven:
    return Driven(1, {name.replace("_", "."): value for name, value in overrides.items()})


# --- when everything goes well ------------------------------------------------------------------------------------


def test_small_objects_become_large_ones_and_go_when_their_readers_have_had_their_time(
    driven: Driven,
) -> None:
    small = driven.write_small(3, partitions=2)
    driven.run(5000)
    assert driven.upkeep.merges.merges_total == 1
    assert [len(driven.world.rows(driven.world.key(number))) for number in (0, 1)] == [1, 1]
    driven.check_records()
    assert driven.store.count("get") == len(small), "every object is read once, whatever partitions it has"
    driven.run(COLLECT_MS - 5000)
    assert set(driven.store.names) == {each.name for each in small} | driven.referenced
    driven.run(3 * MINUTE)
    assert set(driven.store.names) == driven.referenced
    assert not driven.world.objects.tombstones
    driven.check_records()


def test_no_object_goes_before_its_tombstone_has_stood_for_the_collection_time(driven: Driven) -> None:
    driven.write_small(3, partitions=2)
    since: dict[str, int] = {}

    def note(entry: Entry) -> None:
        if entry["type"] == "objects-tombstone":
            since.update(dict.fromkeys(entry["objects"], driven.clock.wall_ms()))

    def check(what: str, names: str) -> None:
        if what == "delete":
            assert all(driven.clock.wall_ms() - since[name] >= COLLECT_MS for name in names.split(","))

    driven.agreement.before, driven.store.before = note, check
    driven.run(4 * MINUTE)
    assert driven.upkeep.objects_deleted_total == 3


def test_what_is_too_old_goes_and_its_objects_follow() -> None:
    driven = with_overrides(retention_ms="30000")
    old = driven.write((0, b"k", b"v"))
    driven.run(40_000)
    assert driven.world.objects.head(driven.world.key()).start == 1
    driven.write((0, b"k", b"w"))
    driven.run(3 * MINUTE // 2)
    assert old.name not in driven.store.names
    driven.run(MINUTE)
    assert driven.world.objects.head(driven.world.key()).start == 2
    driven.close()


def test_whoever_writes_faster_than_this_merges_does_not_keep_old_records_from_going() -> None:
    driven = with_overrides(retention_ms="30000")
    driven.write_small(20)

    def write_more(what: str, name: str) -> None:
        if what == "put":
            driven.write_small(20)

    driven.store.after = write_more
    driven.run(30_000)
    end = driven.world.objects.head(driven.world.key()).end
    assert driven.upkeep.merges.merges_total > 100, "there is always something to merge"
    driven.run(50_000)
    assert driven.world.objects.head(driven.world.key()).start >= end
    assert driven.world.objects.tombstones
    driven.close()


def test_compaction_keeps_the_latest_of_each_key_and_tombstones_for_their_time() -> None:
    driven = with_overrides(cleanup_policy="compact", delete_retention_ms="120000")
    key = driven.world.key()
    driven.write((0, b"a", b"1"))
    driven.write((0, b"b", b"2"))
    driven.write((0, b"a", None))
    driven.run(MINUTE)
    assert [(each.offset, each.key, each.value) for each in driven.world.read(key)] == [
        (1, b"b", b"2"),
        (2, b"a", None),
    ]
    assert all(row.is_compacted for row in driven.world.rows(key))
    driven.run(3 * MINUTE)
    driven.write((0, b"c", b"3"), (0, b"c", b"4"), (0, b"c", b"5"))
    driven.run(MINUTE)
    assert [(each.offset, each.key) for each in driven.world.read(key)] == [(1, b"b"), (5, b"c")]
    driven.run(3 * MINUTE)
    assert set(driven.store.names) == driven.referenced
    driven.close()


def test_a_partition_larger_than_one_object_is_compacted_group_by_group() -> None:
    driven = with_overrides(cleanup_policy="compact")
    for place in range(40):
        driven.write((0, b"%d" % (place % 25), b"v" * 100))
    driven.run(MINUTE)
    read = driven.world.read(driven.world.key())
    assert sorted(each.offset for each in read) == list(range(15, 40))
    rows = driven.world.rows(driven.world.key())
    assert len({row.object_id for row in rows}) > 1
    assert all(row.is_compacted for row in rows)
    driven.close()


@pytest.mark.parametrize("value_bytes", [1, 100], ids=["in one object", "in groups"])
def test_a_map_that_is_too_small_for_all_keys_needs_several_runs(value_bytes: int) -> None:
    overrides = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    driven = Driven(1, overrides, keys_max=4)
    for place in range(14):
        driven.write((0, b"%d" % (place % 7), b"v" * value_bytes))
    driven.run(10_000)
    assert not all(row.is_compacted for row in driven.world.rows(driven.world.key()))
    driven.run(5 * MINUTE)
    assert all(row.is_compacted for row in driven.world.rows(driven.world.key()))
    assert [each.offset for each in driven.world.read(driven.world.key())] == list(range(7, 14))
    driven.close()


def test_a_compaction_that_is_overtaken_ends_and_the_next_one_goes_on() -> None:
    driven = with_overrides(cleanup_policy="compact")
    key = driven.world.key()
    for place in range(40):
        driven.write((0, b"%d" % (place % 25), b"v" * 100))
    puts: list[str] = []

    def overtake(what: str, name: str) -> None:
        if what == "put":
            puts.append(name)
            if len(puts) == 2:
                driven.world.apply(start_entry({key: Offset(22)}))

    driven.store.after = overtake
    driven.run(5 * MINUTE)
    assert driven.upkeep.merges.refused_total >= 1
    assert sorted(each.offset for each in driven.world.read(key)) == list(range(22, 40))
    assert all(row.is_compacted for row in driven.world.rows(key))
    driven.close()


@pytest.mark.parametrize("value_bytes", [1, 100], ids=["in one object", "in groups"])
def test_damaged_bytes_are_not_compacted(value_bytes: int) -> None:
    driven = with_overrides(cleanup_policy="compact")
    key = driven.world.key()
    objects = [driven.write((0, b"%d" % (place % 5), b"v" * value_bytes)) for place in range(14)]
    content = with_flipped_bit(driven.store.content(objects[3].name), 65, 0)
    driven.store.delete_now([objects[3].name])
    driven.store.put_now(objects[3].name, [content])
    driven.run(5 * MINUTE)
    assert driven.upkeep.merges.damaged == {key}
    assert driven.world.objects.references(objects[3])
    assert not any(row.is_compacted for row in driven.world.rows(key))
    driven.close()


def test_compact_and_delete_do_both() -> None:
    driven = with_overrides(cleanup_policy="compact,delete", retention_ms="120000")
    driven.write((0, b"a", b"1"))
    driven.write((0, b"a", b"2"))
    driven.run(MINUTE)
    assert [each.offset for each in driven.world.read(driven.world.key())] == [1]
    driven.run(2 * MINUTE)
    assert driven.world.objects.head(driven.world.key()).start == 2
    driven.close()


def test_objects_of_a_deleted_topic_go(driven: Driven) -> None:
    driven.write_small(3, partitions=2)
    driven.run(2000)
    driven.world.apply({"type": "topic-removed", "name": "orders"})
    driven.run(3 * MINUTE)
    assert list(driven.store.names) == []


def test_silent_producers_are_forgotten(driven: Driven) -> None:
    driven.write((0, b"k", b"v"))
    producers = driven.world.objects.producers(driven.world.key()).producers
    from anabranch.record.producer_table import Producer

    producers[7] = Producer(0, driven.clock.wall_ms())
    driven.run(MINUTE - 10_000)
    assert 7 in producers
    driven.run(20_000)
    assert 7 not in producers


def test_with_nothing_to_do_the_store_is_left_in_peace(driven: Driven) -> None:
    driven.write_small(2)
    driven.run(20 * MINUTE)
    kinds = {what for what, _ in driven.store.requests}
    assert kinds == {"list"}
    assert driven.upkeep.listings_total <= 1 + 20 * MINUTE // (COLLECT_MS // 2)
    assert driven.agreement.proposed == []


def test_who_does_not_lead_does_nothing(driven: Driven) -> None:
    driven.agreement.is_leader = False
    driven.write_small(20)
    driven.run(10 * MINUTE)
    assert driven.store.requests == []


def test_an_object_that_a_snapshot_still_needs_stays_until_there_is_a_newer_one(driven: Driven) -> None:
    small = driven.write_small(3, partitions=2)
    driven.restorable.needed = {small[1].name}
    driven.run(5 * COLLECT_MS)
    assert set(driven.store.names) == {small[1].name} | driven.referenced
    driven.restorable.needed = set()
    driven.run(COLLECT_MS)
    assert set(driven.store.names) == driven.referenced


def test_what_belongs_to_nothing_stays_too_until_the_snapshots_know(driven: Driven) -> None:
    """A copy without records has no row: only snapshots of later know its offsets."""
    left = driven.world.object_id(5).name
    driven.world.register(BROKER)
    driven.store.put_now(left, [b"x"])
    driven.restorable.needed = {left}
    driven.run(5 * COLLECT_MS)
    assert left in driven.store.names
    assert driven.restorable.hurries > 0
    driven.restorable.needed = set()
    driven.run(COLLECT_MS)
    assert left not in driven.store.names


def test_a_cluster_that_was_brought_back_as_another_deletes_nothing(driven: Driven) -> None:
    driven.write_small(3, partitions=2)
    left = driven.world.object_id(7)._replace(epoch=99)
    driven.store.put_now(left.name, [b"x"])
    driven.restorable.is_over = True
    before = set(driven.store.names)
    driven.run(5 * COLLECT_MS)
    assert before <= set(driven.store.names)
    assert driven.store.count("delete") == 0


# --- what is not ours, and what is on its way ---------------------------------------------------------------------


def test_an_object_that_is_not_committed_yet_is_never_collected(driven: Driven) -> None:
    batches = [(driven.world.key(), a_batch([(b"k", b"v")]))]
    data, commit = driven.world.built(batches)
    name = driven.world.object_id(commit.number).name
    driven.store.put_now(name, [data])
    driven.run(10 * COLLECT_MS)
    assert name in driven.store.names
    driven.world.commit(batches, commit)
    driven.check_records()


def test_what_an_earlier_registration_left_goes_after_the_collection_time_and_not_before(
    driven: Driven,
) -> None:
    left = driven.world.object_id(5).name
    driven.world.register(BROKER)
    driven.store.put_now(left, [b"x"])
    driven.run(COLLECT_MS - 1)
    assert left in driven.store.names
    driven.run(COLLECT_MS // 2 + 5000)
    assert left not in driven.store.names
    assert driven.upkeep.orphans_total == 1


def test_foreign_objects_are_left_alone(driven: Driven) -> None:
    foreign = [
        "metadata/000000000000000a-7",
        "groups/000000000000000a-0-7",
        ObjectId(INCARNATION + 1, 0, 0).name,
        ObjectId(INCARNATION + 1, 0, 0, ObjectKind.MERGED).name,
        "merged/000000000000000a-backup",
        "segments/readme.txt",
    ]
    for name in foreign:
        driven.store.put_now(name, [b"x"])
    driven.run(10 * COLLECT_MS)
    assert sorted(driven.store.names) == sorted(foreign)


def test_a_job_that_comes_after_its_object_was_collected_replaces_nothing(driven: Driven) -> None:
    driven.write((0, b"k", b"v"))
    world, key = driven.world, driven.world.key(0)
    rows = world.rows(key)
    late = ObjectId(INCARNATION, world.table.brokers[BROKER].epoch, 5, ObjectKind.MERGED)
    pieces, new = build_object({key: merged([RowBytes(row, world.bytes_of(row)) for row in rows])}, late)
    driven.store.put_now(late.name, pieces)
    driven.run(2 * COLLECT_MS)
    assert late.name not in driven.store.names
    world.apply(replace_entry(BROKER, late.epoch, [Replacement(key, rows, new[key])]))
    assert world.rows(key) == rows
    driven.check_records()


# --- when something goes wrong ------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["get", "put", "delete", "list"])
def test_a_store_that_is_away_changes_nothing_and_is_tried_again(driven: Driven, what: str) -> None:
    driven.write_small(3, partitions=2)
    failures = iter(range(4))

    def refuse(kind: str, name: str) -> None:
        if kind == what and next(failures, None) is not None:
            raise StoreUnavailableError("The store is away.")

    driven.store.before = refuse
    for _ in range(300):
        driven.run(2000)
        driven.check_records()
    assert next(failures, None) is None, "it was away four times"
    assert set(driven.store.names) == driven.referenced
    assert driven.upkeep.merges.merges_total == 1


def test_a_put_that_was_done_though_it_failed_leaves_an_orphan_that_goes(driven: Driven) -> None:
    driven.write_small(3, partitions=2)
    lost: list[str] = []

    def time_out(what: str, name: str) -> None:
        if what == "put" and not lost:
            lost.append(name)
            raise StoreUnavailableError("Nothing was heard of it.")

    driven.store.after = time_out
    driven.run(10_000)
    assert driven.upkeep.merges.merges_total == 1
    assert lost[0] in driven.store.names
    assert lost[0] not in driven.referenced
    driven.run(COLLECT_MS - 12_000)
    assert lost[0] in driven.store.names, "it went before its time"
    driven.run(2 * COLLECT_MS)
    assert set(driven.store.names) == driven.referenced
    driven.check_records()


def test_a_name_that_is_taken_is_left_alone(driven: Driven) -> None:
    taken = ObjectId(INCARNATION, driven.world.table.brokers[BROKER].epoch, 0, ObjectKind.MERGED)
    driven.store.put_now(taken.name, [b"of an earlier process"])
    driven.write_small(3, partitions=2)
    driven.run(5000)
    assert taken.name not in driven.referenced
    assert driven.upkeep.merges.merges_total == 1
    driven.check_records()


def test_who_loses_the_leadership_between_put_and_agreement_replaces_nothing(driven: Driven) -> None:
    driven.write_small(3, partitions=2)

    def lose(what: str, name: str) -> None:
        if what == "put":
            driven.agreement.is_leader = False

    driven.store.after = lose
    driven.run(10_000)
    assert driven.agreement.proposed == []
    assert driven.store.count("put") == 1
    requests = len(driven.store.requests)
    driven.run(5 * MINUTE)
    assert len(driven.store.requests) == requests
    driven.store.after = lambda what, name: None
    driven.agreement.is_leader, driven.agreement.term = True, 3
    driven.run(5 * MINUTE)
    assert set(driven.store.names) == driven.referenced
    driven.check_records()


@pytest.mark.parametrize("end", ["loses the leadership", "stops"])
def test_a_long_request_is_given_up_when_the_broker(driven: Driven, end: str) -> None:
    driven.store.answer_seconds = 60.0
    driven.write_small(3, partitions=2)
    driven.run(90_000)
    assert driven.store.requests[-1][0] == "put", "it is in the middle of it"
    if end == "stops":
        driven.end()
    driven.agreement.is_leader = False
    driven.run(1000)
    driven.store.answer_seconds = 0.02
    requests = len(driven.store.requests)
    driven.run(5 * MINUTE)
    assert len(driven.store.requests) == requests
    assert not any(name.startswith("merged/") for name in driven.store.names)


def test_a_leadership_that_was_lost_and_won_again_is_another_one(driven: Driven) -> None:
    driven.write_small(3, partitions=2)

    def blink(what: str, name: str) -> None:
        if what == "put" and driven.agreement.term == 1:
            driven.agreement.term = 2

    driven.store.after = blink
    driven.run(1500)
    assert driven.agreement.proposed == []
    driven.run(5000)
    assert driven.upkeep.merges.merges_total == 1


def test_whoever_merges_first_wins_and_nothing_is_lost(driven: Driven) -> None:
    driven.write_small(3, partitions=2)
    world, key = driven.world, driven.world.key(0)

    def overtake(what: str, name: str) -> None:
        rows = world.rows(key)
        if what == "put" and len(rows) > 1:
            target = ObjectId(INCARNATION, world.table.brokers[BROKER].epoch, 77, ObjectKind.MERGED)
            parts = {key: merged([RowBytes(row, world.bytes_of(row)) for row in rows[:2]])}
            pieces, new = build_object(parts, target)
            driven.store.put_now(target.name, pieces)
            world.apply(replace_entry(BROKER, target.epoch, [Replacement(key, rows[:2], new[key])]))

    driven.store.after = overtake
    driven.run(5000)
    assert driven.upkeep.merges.refused_total == 1
    assert len(world.rows(world.key(1))) == 1, "the other partition's part counts all the same"
    driven.check_records()


def test_who_is_always_too_late_does_not_try_all_the_time(driven: Driven) -> None:
    driven.write_small(6, partitions=1)

    def overtake(entry: Entry) -> None:
        if entry["type"] == "objects-replace":
            head = driven.world.objects.head(driven.world.key())
            driven.world.apply(start_entry({driven.world.key(): Offset(head.start + 1)}))
            driven.write_small(1)

    driven.agreement.before = overtake
    driven.run(10 * MINUTE)
    assert driven.upkeep.merges.refused_total == driven.store.count("put")
    assert 5 <= driven.store.count("put") <= 11
    driven.check_records()


def test_damaged_bytes_are_not_copied_and_others_are_merged(
    driven: Driven, caplog: pytest.LogCaptureFixture
) -> None:
    small = driven.write_small(3, partitions=2)
    row = driven.world.rows(driven.world.key(0))[1]
    content = bytearray(driven.store.content(small[1].name))
    content[row.position + 70] ^= 1
    driven.store.delete_now([small[1].name])
    driven.store.put_now(small[1].name, [bytes(content)])
    with caplog.at_level(logging.WARNING):
        driven.run(5000)
        assert "is read again" in caplog.text
        assert [len(driven.world.rows(driven.world.key(number))) for number in (0, 1)] == [3, 1]
        driven.write_small(3, partitions=2)
        driven.run(5000)
    assert "is not merged any more" in caplog.text
    assert len(driven.world.rows(driven.world.key(0))) == 6
    driven.run(5 * MINUTE)
    assert small[1].name in driven.store.names


def test_bytes_that_were_damaged_on_their_way_are_read_again(driven: Driven) -> None:
    driven.write_small(3, partitions=2)
    get, damaged = driven.store.get, []

    async def damaging(name: str, start: int = 0, end: int | None = None) -> bytes:
        data = await get(name, start, end)
        if damaged:
            return data
        damaged.append(name)
        return with_flipped_bit(data, 70, 0)

    driven.store.get = damaging  # type: ignore[method-assign]
    driven.run(10_000)
    assert damaged
    driven.write_small(3, partitions=2)
    driven.run(10_000)
    assert not driven.upkeep.merges.damaged
    assert driven.world.rows(driven.world.key(0))[0].is_stamped
    driven.check_records()


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_the_process_may_end_at_any_moment(policy: str) -> None:
    """Ends it after the first request to the store or the quorum, then after the second, and so on."""
    for limit in range(1, 200):
        driven = Driven(partition_count=2, overrides={"cleanup.policy": policy})
        driven.write_small(6, partitions=2)
        seen = {key: records[:] for key, records in driven.world.written.items()}
        if not _is_ended_after(driven, limit):
            driven.close()
            break
        driven.end()
        driven.store.before = lambda what, name: None
        driven.agreement.before = lambda entry: None
        driven.restart()
        driven.run(4 * COLLECT_MS)
        for key, records in seen.items():
            assert driven.world.read(key) == records, "every key is written once, so nothing may go"
        assert set(driven.store.names) == driven.referenced
        driven.close()
    assert 10 < limit < 199


def _is_ended_after(driven: Driven, limit: int) -> bool:
    left = limit

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            driven.loop.stop()
            raise asyncio.CancelledError

    driven.store.before = driven.agreement.before = count
    driven.run(5 * COLLECT_MS // 2)
    return left <= 0


# --- whatever the store does --------------------------------------------------------------------------------------

FAULTS = StoreFaults(
    refused=0.1, slow=0.1, lost=0.05, silent=0.1, late=0.1, timeout_ms=3000, late_ms_max=20_000
)


class BucketStored:
    """A bucket as the world's dict of objects."""

    def __init__(self, bucket: FakeBucket) -> None:
        self._bucket = bucket

    def __getitem__(self, name: str) -> bytes:
        return self._bucket.content(name)

    def __setitem__(self, name: str, data: bytes) -> None:
        self._bucket.objects.put_now(name, [data])


class Beset(Driven):
    """The same with a store that fails by chance."""

    def __init__(self, seed: int) -> None:
        super().__init__(partition_count=3)
        self.end()
        self.rng = Random(seed)
        self.bucket = FakeBucket(self.clock)
        self.store = FakeStore(self.bucket, self.rng, FAULTS)  # type: ignore[assignment]
        self.world.stored = BucketStored(self.bucket)  # type: ignore[assignment]
        self.upkeep = self.begin()

    def step(self) -> None:
        match self.rng.choice(["write", "write", "write", "wait", "start", "blink", "restart"]):
            case "write":
                for _ in range(self.rng.randint(1, 5)):
                    partitions = self.rng.sample(range(3), self.rng.randint(1, 3))
                    self.write(*[(each, b"k", b"v" * self.rng.randint(0, 400)) for each in partitions])
            case "wait":
                self.run(self.rng.randint(1, MINUTE))
            case "start":
                key = self.world.key(self.rng.randrange(3))
                head = self.world.objects.head(key)
                start = Offset(self.rng.randint(head.start, head.end))
                self.world.apply(start_entry({key: start}))
            case "blink":
                self.agreement.is_leader = not self.agreement.is_leader
                self.agreement.term += 1
            case "restart":
                self.end()
                self.restart()
        self.run(self.rng.randint(1, 5000))


@pytest.mark.parametrize("seed", range(25))
def test_no_record_is_lost_and_nothing_is_left_behind_whatever_the_store_does(seed: int) -> None:
    beset = Beset(seed)
    for _ in range(40):
        beset.step()
        beset.check_records()
    beset.store.faults = StoreFaults()  # type: ignore[attr-defined]
    beset.agreement.is_leader = True
    beset.run(10 * COLLECT_MS)
    beset.check_records()
    assert set(beset.bucket.names()) == beset.referenced
    beset.close()


def test_the_same_seed_does_the_same() -> None:
    def requests(seed: int) -> tuple[list[str], list[str]]:
        beset = Beset(seed)
        for _ in range(15):
            beset.step()
        beset.close()
        return [entry["type"] for entry in beset.agreement.proposed], beset.bucket.names()

    assert requests(3) == requests(3)
    assert requests(3) != requests(4)
