"""What a broker writes to the object store for a cluster to come back from."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from anabranch.broker.coordination.offsets_topic import java_hash
from anabranch.broker.object import snapshots as object_snapshots
from anabranch.broker.object.snapshots import ObjectSnapshots
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.cluster.objects.entries import incarnation_entry, removed_entry, tombstone_entry
from anabranch.coordination.groups.messages import CommitRequest, PartitionCommit
from anabranch.coordination.groups.stored_offsets import groups_of
from anabranch.errors import StoreUnavailableError
from anabranch.objects.layout.names import ObjectId
from anabranch.objects.layout.snapshots import FenceId, MetadataId, unpack_snapshot
from anabranch.objects.memory_store import MemoryStore
from anabranch.objects.store import Buffer
from anabranch.values import Offset
from support.broker_bench import Bench, in_loop, turn

LIFE = 0x1234


class Store(MemoryStore):
    """One that can be away, and says when something was put."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        super().__init__(wall_ms)
        self.is_away = False
        self.is_spoiling = False
        self.refused: str | None = None
        """How names begin that are not taken."""
        self.has_put = asyncio.Event()

    async def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        if self.is_away:
            raise StoreUnavailableError("It is away.")
        if self.refused is not None and name.startswith(self.refused):
            raise StoreUnavailableError(f"503 to {name}.")
        await super().put(name, [b"spoiled"] if self.is_spoiling else pieces)
        self.has_put.set()

    async def until_put(self) -> None:
        async with asyncio.timeout(10):
            await self.has_put.wait()


class World:
    def __init__(self) -> None:
        self.bench = Bench()
        self.broker = self.bench.broker
        self.store = Store(self.bench.clock.wall_ms)
        self.snapshots = ObjectSnapshots(self.broker, self.store)

    async def begin(self) -> "World":
        self.broker.start()
        await self.agree(incarnation_entry(LIFE))
        await turn()
        return self

    async def end(self) -> None:
        await self.snapshots.stop()
        await self.broker.drain()
        await self.broker.close()

    async def agree(self, entry: Mapping[str, Any]) -> None:
        async with self.broker.metadata.lock:
            await self.broker.metadata.commit(entry)

    async def commit(self, group_id: str, offset: int) -> None:
        await self.broker.groups.commit(CommitRequest(group_id, (PartitionCommit("orders", 0, offset),)))

    def names(self, prefix: str) -> list[str]:
        return [name for name in self.store.names if name.startswith(prefix)]

    async def stored(self, name: str) -> dict[str, Any]:
        return unpack_snapshot(await self.store.get(name))


# --- what was agreed on ----------------------------------------------------------------------------------------------


@in_loop
async def test_a_snapshot_holds_the_whole_table() -> None:
    world = await World().begin()
    await world.bench.topic("orders", 3)
    await world.snapshots.take()
    end = world.broker.metadata.applied_end
    value = await world.stored(MetadataId(LIFE, end).name)
    table = MetadataTable()
    table.restore(value["table"])
    assert table.topics["orders"].partition_count == 3
    assert table.objects.incarnation == LIFE
    assert value["time_ms"] == world.bench.clock.wall_ms()
    settings = world.broker.settings
    assert settings.producer_id_idle_ms < settings.producer_id_expiration_ms
    assert value["producer_silence_ms"] == settings.producer_id_idle_ms
    await world.end()


@in_loop
async def test_without_a_change_nothing_is_written() -> None:
    world = await World().begin()
    await world.snapshots.take()
    before = list(world.store.names)
    await world.snapshots.take()
    assert list(world.store.names) == before
    await world.end()


@in_loop
async def test_the_newest_few_are_kept() -> None:
    world = await World().begin()
    ends = []
    for number in range(12):
        await world.bench.topic(f"t{number}")
        await world.snapshots.take()
        ends.append(world.broker.metadata.applied_end)
    assert sorted(world.names("metadata/")) == sorted(MetadataId(LIFE, end).name for end in ends[-3:])
    await world.end()


@in_loop
async def test_nothing_is_written_before_there_is_an_incarnation() -> None:
    world = World()
    world.broker.start()
    await turn()
    await world.snapshots.take()
    assert list(world.store.names) == []
    await world.end()


@in_loop
async def test_a_new_topic_is_written_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_snapshots, "GATHER_SECONDS", 0)
    world = await World().begin()
    world.snapshots.start()
    await world.store.until_put()
    before = world.names("metadata/")
    await world.agree(tombstone_entry([], 0))
    await turn()
    assert world.names("metadata/") == before, "what is not urgent waits for its time"
    world.store.has_put.clear()
    await world.bench.topic("orders")
    await world.store.until_put()
    await world.end()


@in_loop
async def test_whoever_makes_a_topic_waits_for_the_store_to_know_it_but_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_snapshots, "SETTLE_SECONDS_MAX", 0.01)
    world = await World().begin()
    await world.bench.topic("orders")
    await world.snapshots.settle()
    assert MetadataId(LIFE, world.broker.metadata.applied_end).name in world.store.names
    await world.bench.topic("more")
    monkeypatch.setattr(world.store, "put", lambda name, pieces: asyncio.sleep(60))
    await world.snapshots.settle()
    assert MetadataId(LIFE, world.broker.metadata.applied_end).name not in world.store.names
    monkeypatch.undo()
    await world.end()


@in_loop
async def test_a_stop_leaves_a_last_snapshot() -> None:
    world = await World().begin()
    world.snapshots.start()
    await turn()
    await world.agree(tombstone_entry([], 0))
    await world.snapshots.stop()
    assert MetadataId(LIFE, world.broker.metadata.applied_end).name in world.store.names
    await world.end()


@in_loop
async def test_a_store_that_is_away_is_said_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(object_snapshots, "RETRY_SECONDS", 0.001)
    world = await World().begin()
    world.store.is_away = True
    with caplog.at_level(logging.WARNING):
        world.snapshots.start()
        await asyncio.sleep(0.05)
    assert [record.message for record in caplog.records] == [
        "no snapshot can be written to the object store: It is away."
    ]
    world.store.is_away = False
    await world.store.until_put()
    await world.end()


# --- whoever deletes objects -----------------------------------------------------------------------------------------


@in_loop
async def test_an_object_is_covered_once_two_snapshots_know_that_it_is_given_up() -> None:
    world = await World().begin()
    orphan = ObjectId(LIFE, 999_999, 0)
    await world.snapshots.take()
    await world.agree(tombstone_entry([orphan], 5))
    assert not world.snapshots.covers(orphan)
    world.store.is_away = True
    with pytest.raises(StoreUnavailableError):
        await world.snapshots.take()
    assert not world.snapshots.covers(orphan)
    world.store.is_away = False
    await world.snapshots.take()
    assert not world.snapshots.covers(orphan), "the one before it does not know of it"
    await world.bench.topic("orders")
    await world.snapshots.take()
    assert world.snapshots.covers(orphan)
    await world.agree(removed_entry([orphan]))
    await world.end()


@in_loop
async def test_what_was_verified_in_another_term_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who led in between may have deleted those snapshots."""
    world = await World().begin()
    orphan = ObjectId(LIFE, 999_999, 0)
    await world.agree(tombstone_entry([orphan], 5))
    for number in range(2):
        await world.bench.topic(f"t{number}")
        await world.snapshots.take()
    assert world.snapshots.covers(orphan)
    term = world.broker.metadata.term + 2
    monkeypatch.setattr(type(world.broker.metadata), "term", term)
    assert not world.snapshots.covers(orphan)
    await world.snapshots.take()
    assert not world.snapshots.covers(orphan), "there is one of this term"
    world.snapshots.hurry()
    await world.snapshots.take()
    assert world.snapshots.covers(orphan)
    monkeypatch.undo()
    await world.end()


@in_loop
async def test_who_waits_for_another_snapshot_gets_it_even_if_nothing_changes() -> None:
    world = await World().begin()
    orphan = ObjectId(LIFE, 999_999, 0)
    await world.agree(tombstone_entry([orphan], 5))
    for _ in range(2):
        assert not world.snapshots.covers(orphan)
        world.snapshots.hurry()
        await world.snapshots.take()
    assert world.snapshots.covers(orphan)
    assert len(world.names("metadata/")) == 2
    await world.end()


@in_loop
async def test_a_snapshot_that_is_not_whole_does_not_count_and_is_written_again() -> None:
    world = await World().begin()
    orphan = ObjectId(LIFE, 999_999, 0)
    await world.agree(tombstone_entry([orphan], 5))
    await world.snapshots.take()
    world.snapshots.hurry()
    world.store.is_spoiling = True
    with pytest.raises(StoreUnavailableError, match="other bytes"):
        await world.snapshots.take()
    assert not world.snapshots.covers(orphan)
    assert len(world.names("metadata/")) == 1, "it was removed"
    world.store.is_spoiling = False
    await world.snapshots.take()
    assert world.snapshots.covers(orphan)
    for name in world.names("metadata/"):
        await world.stored(name)
    await world.end()


@in_loop
async def test_the_newest_verified_snapshots_stay_whatever_came_later() -> None:
    world = await World().begin()
    verified = []
    for number in range(2):
        await world.bench.topic(f"t{number}")
        await world.snapshots.take()
        verified.append(MetadataId(LIFE, world.broker.metadata.applied_end).name)
    end = world.broker.metadata.applied_end
    for number in range(5):  # What somebody wrote whom nobody believes.
        await world.bench.topic(f"unverified{number}")
        world.store.put_now(MetadataId(LIFE, Offset(end + 1 + number)).name, [b"half"])
    await world.bench.topic("more")
    await world.snapshots.take()
    assert set(verified) < set(world.names("metadata/"))
    assert len(world.names("metadata/")) == 3
    await world.end()


@in_loop
async def test_who_has_lost_the_leadership_unawares_removes_no_snapshot_of_who_leads_now() -> None:
    world = await World().begin()
    for number in range(2):
        await world.bench.topic(f"t{number}")
        await world.snapshots.take()
    theirs = [MetadataId(LIFE, Offset(world.broker.metadata.applied_end + ahead)).name for ahead in (50, 60)]
    for name in theirs:  # While a request of ours waited for its answer.
        world.store.put_now(name, [b"verified by another"])
    await world.bench.topic("more")
    await world.snapshots.take()
    assert set(theirs) < set(world.names("metadata/"))
    await world.end()


@in_loop
async def test_whoever_was_brought_back_as_another_deletes_nothing_and_writes_no_snapshot(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await World().begin()
    await world.snapshots.take()
    assert await world.snapshots.may_delete()
    world.store.put_now(FenceId(LIFE, 77).name, [b""])
    assert not await world.snapshots.may_delete()
    await world.bench.topic("while-it-is-only-announced")
    await world.snapshots.take()
    assert world.broker.metadata.table.objects.successor is None
    world.store.put_now(MetadataId(77, 1).name, [b""])
    await world.bench.topic("orders")
    before = world.names("metadata/")
    await world.snapshots.take()
    await world.snapshots.take()
    assert world.broker.metadata.table.objects.successor == 77
    assert world.names("metadata/") == before
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    await world.end()


# --- groups ----------------------------------------------------------------------------------------------------------


def partition_of(group_id: str) -> int:
    return abs(java_hash(group_id)) % 16


@in_loop
async def test_committed_offsets_are_written_by_partition() -> None:
    world = await World().begin()
    await world.commit("billing", 5)
    await world.commit("audit", 7)
    await world.snapshots.take()
    for group_id, offset in (("billing", 5), ("audit", 7)):
        (name,) = world.names(f"groups/{LIFE:016x}-{partition_of(group_id)}-")
        (found,) = groups_of(await world.stored(name)).offsets
        assert (found.group_id, found.topic, found.committed.offset) == (group_id, "orders", offset)
    assert len(world.names("groups/")) == 2
    await world.end()


@in_loop
async def test_committed_offsets_are_written_while_the_store_refuses_snapshots_of_the_metadata() -> None:
    world = await World().begin()
    world.store.refused = "metadata/"
    await world.commit("billing", 5)
    with pytest.raises(StoreUnavailableError, match="metadata/"):
        await world.snapshots.take()
    (name,) = world.names("groups/")
    assert groups_of(await world.stored(name)).offsets[0].committed.offset == 5
    world.store.refused = None
    await world.end()


@in_loop
async def test_only_what_has_changed_is_written_again_and_the_newest_few_are_kept() -> None:
    world = await World().begin()
    await world.commit("audit", 1)
    for offset in range(12):
        await world.commit("billing", offset)
        await world.snapshots.take()
    names = world.names(f"groups/{LIFE:016x}-{partition_of('billing')}-")
    assert sorted(int(name.rpartition("-")[2]) for name in names) == [9, 10, 11]
    assert len(world.names(f"groups/{LIFE:016x}-{partition_of('audit')}-")) == 1
    await world.end()


@in_loop
async def test_a_group_that_is_deleted_is_gone_from_the_next_snapshot() -> None:
    world = await World().begin()
    await world.commit("billing", 5)
    await world.snapshots.take()
    await world.broker.groups.delete_group("billing")
    await world.snapshots.take()
    newest = max(world.names("groups/"))
    assert groups_of(await world.stored(newest)).offsets == []
    await world.end()


@in_loop
async def test_numbers_go_on_after_a_restart() -> None:
    world = await World().begin()
    await world.commit("billing", 5)
    await world.snapshots.take()
    again = ObjectSnapshots(world.broker, world.store)
    await again.take()
    assert len(world.names("groups/")) == 2
    await world.end()
