"""What is retained, compacted, collected: decided from rows, settings and the time alone."""

import pytest

from anabranch.cluster.metadata.entries import broker_fenced_entry
from anabranch.cluster.objects.entries import start_entry, tombstone_entry
from anabranch.cluster.objects.upkeep import (
    Crowd,
    deletable,
    is_in_flight,
    orphan_of,
    own_prefixes,
    retained_start,
    silent_producers,
)
from anabranch.objects.layout.names import ObjectId, ObjectKind
from anabranch.objects.layout.plans import Keeping
from anabranch.record.producer_table import Producer
from anabranch.values import BrokerId, Offset
from support.upkeep_world import BROKER, INCARNATION, ObjectWorld, a_batch

FOR_EVER = Keeping(is_deleted=True, retention_ms=-1, retention_bytes=-1, is_compacted=False)


def a_world(*timestamps_ms: int) -> ObjectWorld:
    """One object with one record for each time."""
    world = ObjectWorld()
    for timestamp_ms in timestamps_ms:
        world.write([(world.key(), a_batch([(b"k", b"v")], timestamp_ms))])
    return world


def row_bytes(world: ObjectWorld) -> int:
    return world.rows(world.key())[0].length


# --- retention ----------------------------------------------------------------------------------------------------


def test_rows_go_from_the_old_end_while_they_are_too_old() -> None:
    world = a_world(10, 20, 30, 15)
    keeping = FOR_EVER._replace(retention_ms=100)
    assert retained_start(world.objects, world.key(), keeping, now_ms=110) is None
    assert retained_start(world.objects, world.key(), keeping, now_ms=121) == 2
    assert retained_start(world.objects, world.key(), keeping, now_ms=1000) == 4


def test_rows_without_a_time_are_not_too_old() -> None:
    world = a_world(-1, 10)
    assert retained_start(world.objects, world.key(), FOR_EVER._replace(retention_ms=0), now_ms=10**6) is None


def test_rows_go_while_the_rest_still_holds_retention_bytes() -> None:
    world = a_world(1, 2, 3, 4)
    size = row_bytes(world)
    for limit, start in ((4 * size, None), (3 * size + 1, None), (3 * size, 1), (size, 3), (0, 4)):
        keeping = FOR_EVER._replace(retention_bytes=limit)
        assert retained_start(world.objects, world.key(), keeping, now_ms=0) == start


def test_without_cleanup_policy_delete_nothing_goes() -> None:
    world = a_world(1)
    keeping = Keeping(is_deleted=False, retention_ms=0, retention_bytes=0, is_compacted=True)
    assert retained_start(world.objects, world.key(), keeping, now_ms=10**6) is None


def test_more_rows_than_one_look_takes_go_in_several() -> None:
    world = a_world(*[1] * 5000)
    keeping = FOR_EVER._replace(retention_ms=0)
    first = retained_start(world.objects, world.key(), keeping, now_ms=10)
    assert first == 4096
    world.apply(start_entry({world.key(): first}))
    assert retained_start(world.objects, world.key(), keeping, now_ms=10) == 5000


# --- collection ---------------------------------------------------------------------------------------------------


def present(world: ObjectWorld) -> dict[int, BrokerId]:
    return {row.epoch: row.broker_id for row in world.table.brokers.values()}


def orphan(world: ObjectWorld, object_id: ObjectId, modified_ms: int = 0, before_ms: int = 10) -> bool:
    known = frozenset(world.objects.unreferenced())
    found = orphan_of(world.objects, object_id.name, modified_ms, present(world), known, before_ms)
    assert found in (None, object_id)
    return found is not None


def test_an_object_that_may_still_be_committed_is_in_flight_and_no_orphan() -> None:
    world = a_world(1)
    following = world.object_id(1)
    assert is_in_flight(world.objects, following, present(world))
    assert not orphan(world, following)
    world.register(BROKER)  # Anew: nothing of the registration before can be committed any more.
    assert orphan(world, following)


def test_a_fenced_broker_may_come_back_and_commit() -> None:
    world = a_world(1)
    world.apply(broker_fenced_entry(BROKER, world.table.brokers[BROKER].epoch, is_fenced=True))
    assert not orphan(world, world.object_id(1))


def test_what_is_referenced_tombstoned_or_known_is_no_orphan() -> None:
    world = a_world(1, 2)
    first, second = world.object_id(0), world.object_id(1)
    assert not orphan(world, first)
    world.apply(start_entry({world.key(): Offset(2)}))
    assert not orphan(world, first)
    world.apply(tombstone_entry([second], now_ms=7))
    assert not orphan(world, second)


def test_only_what_is_old_and_ours_is_an_orphan() -> None:
    world = ObjectWorld()
    left = ObjectId(INCARNATION, 12345, 3, ObjectKind.MERGED)
    assert orphan(world, left, modified_ms=10)
    assert not orphan(world, left, modified_ms=11)
    assert not orphan(world, left._replace(incarnation=INCARNATION + 1))
    for name in ("metadata/000000000000000a-5", "groups/000000000000000a-0-5", "merged/readme.txt"):
        assert orphan_of(world.objects, name, 0, present(world), (), 10) is None


def test_the_listing_asks_for_our_own_names_alone() -> None:
    assert own_prefixes(0xAB) == ["segments/00000000000000ab-", "merged/00000000000000ab-"]


def test_a_tombstoned_object_stays_for_its_time() -> None:
    first, second = ObjectId(1, 1, 1), ObjectId(1, 1, 2)
    assert deletable({second: 10, first: 5}, 4) == []
    assert deletable({second: 10, first: 5}, 5) == [first]
    assert deletable({second: 10, first: 5}, 10) == [first, second]


def test_silent_producers_are_named_by_partition() -> None:
    world = ObjectWorld(partition_count=2)
    seen = {world.key(0): {7: Producer(0, 10), 5: Producer(0, 9)}, world.key(1): {7: Producer(0, 11)}}
    few = Crowd(100, 10**9)
    assert silent_producers(seen, lambda key: seen[key], 10, few) == {world.key(0): [5]}
    assert silent_producers(seen, lambda key: seen[key], 9, few) == {}


@pytest.mark.parametrize(("idle_before_ms", "gone"), [(1000, [0, 1]), (1, [0]), (0, [])])
def test_of_many_producers_the_longest_silent_are_named_if_they_are_idle(
    idle_before_ms: int, gone: list[int]
) -> None:
    world = ObjectWorld(partition_count=1)
    key = world.key(0)
    seen = {each: Producer(0, each) for each in range(8)}
    found = silent_producers([key], lambda key: seen, -1, Crowd(8, idle_before_ms))
    assert found == ({key: gone} if gone else {})


def test_what_an_earlier_life_has_left_is_an_orphan_and_never_in_flight() -> None:
    world = a_world(1)
    late = world.object_id(1)
    assert not orphan(world, late)
    world.objects.begin_life(INCARNATION + 1)
    assert world.objects.lives == (INCARNATION, INCARNATION + 1)
    assert orphan(world, late)
    assert not orphan(world, world.object_id(0)), "what is named stays, whoever has stored it"
