"""Coordinates of objects beside the metadata snapshot: no crash, no damage and no laggard makes a table differ."""

import asyncio
import errno
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from anabranch.broker.metadata import metadata_log
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.cluster.objects.entries import Commit, Item, Replacement, commit_entry, replace_entry
from anabranch.errors import CorruptDataError
from anabranch.objects.layout.names import ROW_BYTES
from anabranch.values import Offset
from support import metadata_world
from support.metadata_world import DATA, Node, in_world
from support.object_quorum_world import (
    PARTITIONS,
    TOPIC,
    WRITER,
    ObjectWorld,
    cut_the_log_first,
    digest,
    merged_row,
)

FOLDER = f"{DATA}/objects"
SNAPSHOT = f"{DATA}/metadata-snapshot"


@pytest.fixture(autouse=True)
def few_per_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_log, "ENTRIES_PER_SNAPSHOT", 8)


def in_object_world(
    monkeypatch: pytest.MonkeyPatch, seed: int, test: Callable[[ObjectWorld], Coroutine[Any, Any, None]]
) -> Counter[str]:
    monkeypatch.setattr(metadata_world, "World", ObjectWorld)
    return in_world(seed, test)  # type: ignore[arg-type]


def items(count: int) -> list[Item]:
    return [
        Item((TOPIC, place % PARTITIONS), place * 10, 10, 2, -1, -1, -1, 0, place, 0)
        for place in range(count)
    ]


async def commit_items(node: Node, count: int = 1) -> None:
    assert node.metadata is not None
    table = node.metadata.table
    epoch = table.brokers[WRITER].epoch
    number = table.objects.last_number(WRITER, epoch) + 1
    await node.metadata.propose(commit_entry(WRITER, epoch, 5, [Commit(number, items(count))]))


async def replace_some(node: Node) -> None:
    """So that the next snapshot needs a file of a new version."""
    assert node.metadata is not None
    table = node.metadata.table
    epoch, key = table.brokers[WRITER].epoch, (TOPIC, 0)
    old = table.objects.rows(key, Offset(0), 3)
    new = [merged_row(old, epoch, 0)]
    await node.metadata.propose(replace_entry(WRITER, epoch, [Replacement(key, old, new)]))
    assert table.objects.rows(key, Offset(0), 1) == new


async def kept(node: Node) -> None:
    assert node.metadata is not None
    await asyncio.sleep(1)
    await node.metadata.idle()


# --- crashes --------------------------------------------------------------------------------------------------


async def cut_power_at_every_step(world: ObjectWorld) -> None:
    """Each round goes on from where the last one's crash has left the disk, so files of all ages are met."""
    await world.grow(1)
    await world.begin()
    (node,) = world.nodes.values()
    steps, dark_in_a_row = 0, True
    while dark_in_a_row:
        steps += 1
        assert node.metadata is not None
        before = node.disk.size(SNAPSHOT) if node.disk.exists(SNAPSHOT) else 0
        node.disk.crash_at = node.disk.operations + steps
        for _ in range(12):
            world.client(node, world._try(node))
            await asyncio.sleep(0.3)
        dark_in_a_row = node.disk.is_dark
        node.disk.crash_at = None
        node.crash()
        node.boot()
        assert node.metadata is not None
        assert before == 0 or node.disk.exists(SNAPSHOT)
        await asyncio.sleep(1)
    assert steps > 40
    await world.calm()


@pytest.mark.parametrize("seed", range(4))
def test_power_cut_at_any_step_around_a_snapshot_leaves_the_same_table(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    in_object_world(monkeypatch, seed, cut_power_at_every_step)


def test_log_cut_before_the_coordinate_files_are_synced_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_the_log_first(monkeypatch.setattr)

    def all_seeds() -> None:
        for seed in range(4):
            in_object_world(monkeypatch, seed, cut_power_at_every_step)

    with pytest.raises((AssertionError, CorruptDataError), match=r"differs|backup"):
        all_seeds()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_tables_stay_equal_in_trouble(monkeypatch: pytest.MonkeyPatch, seed: int, count: int) -> None:
    async def test(world: ObjectWorld) -> None:
        await world.grow(count)
        await world.begin()
        world.loss = world.chance.choice([0, 0.02, 0.1])
        await world.trouble(300)
        await world.calm()

    counts = in_object_world(monkeypatch, 1000 * count + seed, test)
    assert counts["object entries"] > 20, counts
    assert counts["crashes"] > 2, counts


# --- files ----------------------------------------------------------------------------------------------------


async def with_two_snapshots(world: ObjectWorld) -> Node:
    await world.grow(1)
    await world.begin()
    (node,) = world.nodes.values()
    for _ in range(20):
        await commit_items(node, 4)
    await kept(node)
    return node


def row_files(node: Node) -> list[str]:
    return [f"{FOLDER}/{name}" for name in node.disk.list(FOLDER)]


def test_only_rows_since_the_snapshot_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: ObjectWorld) -> None:
        node = await with_two_snapshots(world)
        assert node.metadata is not None
        assert len(row_files(node)) == PARTITIONS
        objects = node.metadata.table.objects
        pieces = [piece for each in objects._partitions.values() for piece in each.rows.pieces]
        assert sum(len(piece) for piece in pieces if isinstance(piece, list)) <= 8 * 4
        assert sum(node.disk.size(path) for path in row_files(node)) >= 2 * 8 * PARTITIONS * ROW_BYTES
        data = node.metadata.quorum.log.snapshot.data
        assert isinstance(data, bytes)
        state = json.loads(data)
        assert len(state["objects"]) < 2000

    in_object_world(monkeypatch, 1, test)


@pytest.mark.parametrize("damage", ["shorter", "missing", "flipped"])
def test_coordinates_that_the_snapshot_does_not_mean_are_said_aloud(
    monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    async def test(world: ObjectWorld) -> None:
        node = await with_two_snapshots(world)
        path = row_files(node)[0]
        world.dead.append(node.metadata)
        node.metadata, node.life = None, node.life + 1
        match damage:
            case "shorter":
                node.disk.open(path).truncate(node.disk.size(path) - 1)
            case "missing":
                node.disk.unlink(path)
            case "flipped":
                node.disk.flip_bit(path, 30)
        with pytest.raises(CorruptDataError, match="same backup") as caught:
            node.boot()
        assert "objects" in str(caught.value)

    in_object_world(monkeypatch, 1, test)


def test_what_was_written_for_a_snapshot_that_never_came_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: ObjectWorld) -> None:
        node = await with_two_snapshots(world)
        assert node.metadata is not None
        state, path = digest(node.metadata.table), row_files(node)[0]
        size = node.disk.size(path)
        node.disk.write(path, b"x" * 100, size, sync=True)
        stray = path.replace(".rows", "7.rows")
        node.disk.write(stray, b"x" * 70, sync=True)
        node.disk.sync_folder(FOLDER)
        node.crash()
        node.boot()
        assert digest(node.metadata.table) == state
        assert not node.disk.exists(stray)
        assert node.disk.size(path) == size

    in_object_world(monkeypatch, 1, test)


def refuse_files(node: Node) -> None:
    node.disk.fail_next("sync", path_contains="/objects/")


def refuse_their_folder(node: Node) -> None:
    node.disk.fail_next("sync_folder", path_contains="/objects")


def refuse_the_snapshot(node: Node) -> None:
    node.disk.fail_next("write", errno.ENOSPC, path_contains="metadata-snapshot")


def refuse_to_say_whether_it_has_it(node: Node) -> None:
    """The snapshot has its name already; whether that is on the disk is not known."""
    real = node.disk.sync_folder

    def sync_folder(folder: str) -> None:
        if folder == DATA:
            del node.disk.sync_folder  # type: ignore[method-assign]
            raise OSError(errno.EIO, "injected")
        real(folder)

    node.disk.sync_folder = sync_folder  # type: ignore[method-assign]


REFUSALS = [refuse_files, refuse_their_folder, refuse_the_snapshot, refuse_to_say_whether_it_has_it]


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("refuse", REFUSALS)
def test_disk_that_refuses_a_snapshot_keeps_the_one_before_and_the_log(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refuse: Callable[[Node], None],
    goes_on: bool,
) -> None:
    async def test(world: ObjectWorld) -> None:
        node = await with_two_snapshots(world)
        assert node.metadata is not None
        before = node.metadata.partition.log.start_offset
        await replace_some(node)
        refuse(node)
        while "cannot be written" not in caplog.text:
            assert node.metadata.partition.log.start_offset == before
            await commit_items(node, 4)
            await kept(node)
        assert node.metadata.partition.log.start_offset == before
        if goes_on:
            await commit_items(node, 4)  # The next one tries again.
            await kept(node)
            assert node.metadata.partition.log.start_offset > before
            assert len(row_files(node)) == PARTITIONS
        state = digest(node.metadata.table)
        node.disk.kill()
        world.dead.append(node.metadata)
        node.metadata, node.life = None, node.life + 1
        node.boot()
        assert digest(node.metadata.table) == state
        assert len(row_files(node)) == PARTITIONS

    in_object_world(monkeypatch, 1, test)


def test_files_of_a_refused_snapshot_do_not_fill_the_disk(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: ObjectWorld) -> None:
        node = await with_two_snapshots(world)
        await replace_some(node)
        before = row_files(node)
        node.disk.fail_next("sync", path_contains="/objects/", times=3)
        while caplog.text.count("cannot be written") < 3:
            await commit_items(node, 4)
            await kept(node)
            if "cannot be written" in caplog.text:
                assert row_files(node) == before

    in_object_world(monkeypatch, 1, test)


def test_full_disk_is_not_asked_for_every_entry(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: ObjectWorld) -> None:
        node = await with_two_snapshots(world)
        monkeypatch.setattr(metadata_log, "ENTRIES_PER_SNAPSHOT", 50)
        node.disk.fail_next("sync", path_contains="/objects/", times=100)
        for _ in range(70):
            await commit_items(node)
            await kept(node)
        assert 2 <= caplog.text.count("cannot be written") <= 5

    in_object_world(monkeypatch, 1, test)


# --- other members --------------------------------------------------------------------------------------------


def test_laggard_with_older_files_takes_over_the_rows_of_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: ObjectWorld) -> None:
        await world.grow(3)
        await world.begin()
        leader = await world.leader()
        for _ in range(20):
            await commit_items(leader, 3)
        await asyncio.sleep(2)
        lost = next(node for node in world.nodes.values() if node is not leader)
        assert lost.metadata is not None
        older = row_files(lost)
        assert older
        world.split(set(world.nodes) - {lost.id}, {lost.id})
        leader = await world.leader()
        for _ in range(40):
            await world.commit(leader)
        await world.calm()
        assert world.counts["snapshots installed"]
        assert not set(older) & set(row_files(lost))
        data = lost.metadata.quorum.log.snapshot.data
        assert isinstance(data, bytes)
        table = MetadataTable()
        with pytest.raises(CorruptDataError):
            table.restore(json.loads(data))  # It names files, and has no rows.
        lost.crash()
        lost.boot()
        await world.calm()

    in_object_world(monkeypatch, 4, test)


def test_crash_at_any_step_of_taking_over_rows_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: ObjectWorld) -> None:
        await world.grow(3)
        await world.begin()
        leader = await world.leader()
        lost = next(node for node in world.nodes.values() if node is not leader)
        steps, dark = 0, True
        while dark:
            steps += 1
            world.split(set(world.nodes) - {lost.id}, {lost.id})
            leader = await world.leader()
            for _ in range(20):
                await world.commit(leader)
            before = world.counts["snapshots installed"]
            lost.disk.crash_at = lost.disk.operations + steps
            world.cut = set()
            await asyncio.sleep(6)
            dark = lost.disk.is_dark
            lost.crash()
            lost.boot()
            if not dark:
                assert world.counts["snapshots installed"] > before
        assert steps > 15
        await world.calm()

    in_object_world(monkeypatch, 5, test)


# --- when, and for whom ---------------------------------------------------------------------------------------


def test_large_entries_make_a_snapshot_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_log, "ENTRIES_PER_SNAPSHOT", 1000)
    monkeypatch.setattr(metadata_log, "BYTES_PER_SNAPSHOT", 20_000)

    async def test(world: ObjectWorld) -> None:
        await world.grow(1)
        await world.begin()
        (node,) = world.nodes.values()
        assert node.metadata is not None
        for _ in range(3):
            await commit_items(node, 10)
        await kept(node)
        assert node.metadata.partition.log.start_offset == 0
        for _ in range(3):
            await commit_items(node, 100)
        await kept(node)
        first = node.metadata.partition.log.start_offset
        assert first > 0
        await commit_items(node, 10)
        await kept(node)
        assert node.metadata.partition.log.start_offset == first, "the bytes before it count no more"

    in_object_world(monkeypatch, 1, test)


def test_commits_do_not_wait_for_a_snapshot_that_names_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: ObjectWorld) -> None:
        node = await with_two_snapshots(world)
        assert node.metadata is not None
        lock = node.metadata._writer._snapshot_lock
        await lock.acquire()  # As if one were being written for long.
        for _ in range(20):
            await commit_items(node)
        assert node.metadata.quorum.log.end - node.metadata.quorum.log.start > 8
        lock.release()
        await kept(node)
        assert node.metadata.quorum.log.end - node.metadata.quorum.log.start < 8

    in_object_world(monkeypatch, 1, test)
