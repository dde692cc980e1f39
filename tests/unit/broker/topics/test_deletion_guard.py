"""Nothing is deleted that a cluster needs to come back from its bucket, or that another one has come back with."""

from collections.abc import Iterator

import pytest

from anabranch.cluster.objects.entries import start_entry
from anabranch.objects.layout.names import ObjectId
from anabranch.values import Offset
from unit.broker.object.test_object_upkeep_driver import COLLECT_MS, Driven

LONG_MS = 2 * COLLECT_MS + 60_000


class Guard:
    def __init__(self) -> None:
        self.covered: set[ObjectId] = set()
        self.is_over = False
        self.hurries = 0

    def covers(self, object_id: ObjectId) -> bool:
        return object_id in self.covered

    def hurry(self) -> None:
        self.hurries += 1

    async def may_delete(self) -> bool:
        return not self.is_over


@pytest.fixture
def driven() -> Iterator[Driven]:
    made = Driven()
    yield made
    made.close()


def given_up(driven: Driven) -> ObjectId:
    """An object that no row names any more."""
    object_id = driven.write((0, b"k", b"v"))
    driven.write((0, b"k", b"w"))
    driven.world.apply(start_entry({driven.world.key(0): Offset(1)}))
    return object_id


def test_a_tombstoned_object_waits_until_the_newest_snapshot_knows_of_it(driven: Driven) -> None:
    guard = driven.upkeep.guard = Guard()
    object_id = given_up(driven)
    driven.run(LONG_MS)
    assert driven.world.objects.is_tombstoned(object_id)
    assert object_id.name in driven.store.names
    assert guard.hurries
    guard.covered.add(object_id)
    driven.run(LONG_MS)
    assert object_id.name not in driven.store.names


def test_an_orphan_waits_for_snapshots_too(driven: Driven) -> None:
    guard = driven.upkeep.guard = Guard()
    orphan = ObjectId(driven.world.objects.incarnation or 0, 123_456, 0)
    driven.store.put_now(orphan.name, [b"never committed"])
    driven.run(LONG_MS)
    assert driven.world.objects.is_tombstoned(orphan)
    assert orphan.name in driven.store.names
    guard.covered.add(orphan)
    driven.run(LONG_MS)
    assert orphan.name not in driven.store.names


def test_a_cluster_that_was_brought_back_as_another_deletes_nothing(driven: Driven) -> None:
    guard = driven.upkeep.guard = Guard()
    object_id = given_up(driven)
    orphan = ObjectId(driven.world.objects.incarnation or 0, 123_456, 0)
    driven.store.put_now(orphan.name, [b"never committed"])
    guard.covered.update((object_id, orphan))
    guard.is_over = True
    driven.run(LONG_MS)
    assert {object_id.name, orphan.name} <= set(driven.store.names)
    guard.is_over = False
    driven.run(LONG_MS)
    assert not {object_id.name, orphan.name} & set(driven.store.names)
