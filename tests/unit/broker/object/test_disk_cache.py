"""DiskCache: it gives back what it was given or nothing, whatever happens to its files."""

import asyncio
import errno
import logging
from random import Random

import pytest

from anabranch.broker.object.cache.block_cache import BlockCache
from anabranch.broker.object.cache.blocks import Block, BlockKey, Origin
from anabranch.broker.object.cache.disk_cache import FREE_BYTES_MIN, REFUSED_MS, WRITES_MAX, DiskCache
from anabranch.objects.layout.names import ObjectId
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.testing.fakes.loop import SimWorkers
from support.broker_bench import in_loop
from support.object_world import CountingStore, on_virtual_loop
from support.workers import HeldWorkers, InlineWorkers

FOLDER = "data/object-cache"
MIB = 2**20


def key(number: int) -> BlockKey:
    return BlockKey(ObjectId(7, 1, number), 0)


def block(number: int, size: int = 1000) -> Block:
    return Block(key(number), Random(number).randbytes(size), Origin.STORE)


def opened(
    disk: FakeDisk,
    bytes_max: int = MIB,
    workers: InlineWorkers | HeldWorkers | None = None,
    clock: FakeClock | None = None,
) -> DiskCache:
    cache = DiskCache(disk, FOLDER, clock or FakeClock(), workers or InlineWorkers(), bytes_max)
    cache.open()
    return cache


def files_of(disk: FakeDisk) -> list[str]:
    return [f"{FOLDER}/{name}" for name in disk.list(FOLDER)]


@in_loop
async def test_a_block_is_found_again_and_survives_a_restart() -> None:
    disk = FakeDisk()
    cache = opened(disk)
    cache.put(block(1))
    assert await cache.get(key(1)) == block(1).data
    assert await cache.get(key(2)) is None
    again = opened(disk)
    assert await again.get(key(1)) == block(1).data
    assert again.bytes_held == cache.bytes_held > 1000


@in_loop
async def test_no_more_bytes_than_allowed_are_on_the_disk_and_those_used_last_stay() -> None:
    disk = FakeDisk()
    cache = opened(disk, bytes_max=10_500)
    for number in range(30):
        cache.put(block(number))
        assert await cache.get(key(0)) is not None, "used all the time"
    assert len(files_of(disk)) == 10
    assert cache.bytes_held == sum(disk.size(path) for path in files_of(disk)) <= 10_500
    assert await cache.get(key(29)) is not None
    assert await cache.get(key(1)) is None


@in_loop
async def test_a_smaller_limit_counts_at_the_next_start() -> None:
    disk = FakeDisk()
    cache = opened(disk)
    for number in range(30):
        cache.put(block(number))
    again = opened(disk, bytes_max=5_500)
    assert len(files_of(disk)) == 5
    assert again.bytes_held <= 5_500


@in_loop
async def test_one_larger_than_the_limit_is_let_go() -> None:
    disk = FakeDisk()
    cache = opened(disk, bytes_max=900)
    cache.put(block(0))
    assert files_of(disk) == []


@pytest.mark.parametrize("position", [0, 5, 12, 16, 500, 1015])
@in_loop
async def test_a_damaged_file_is_a_block_that_is_not_there(position: int) -> None:
    disk = FakeDisk()
    cache = opened(disk)
    cache.put(block(1))
    (path,) = files_of(disk)
    disk.flip_bit(path, position)
    assert await cache.get(key(1)) is None
    assert (files_of(disk), cache.bytes_held) == ([], 0)
    cache.put(block(1))
    assert await cache.get(key(1)) == block(1).data


@in_loop
async def test_a_file_under_the_name_of_another_block_is_none() -> None:
    disk = FakeDisk()
    opened(disk).put(block(1))
    (path,) = files_of(disk)
    disk.rename(path, path.replace("-1-0", "-2-0"))
    assert await opened(disk).get(key(2)) is None


@in_loop
async def test_a_file_that_was_cut_short_is_none() -> None:
    disk = FakeDisk()
    for size in (0, 10, 16, 700):
        cache = opened(disk)
        cache.put(block(1))
        (path,) = files_of(disk)
        disk.open(path).truncate(size)
        assert await cache.get(key(1)) is None


@in_loop
async def test_everything_may_be_deleted_at_any_time() -> None:
    disk = FakeDisk()
    cache = opened(disk)
    for number in range(3):
        cache.put(block(number))
    for path in files_of(disk):
        disk.unlink(path)
    disk.remove_folder(FOLDER)
    assert [await cache.get(key(number)) for number in range(3)] == [None] * 3
    assert cache.bytes_held == 0
    cache.put(block(1))
    assert await cache.get(key(1)) == block(1).data


@in_loop
async def test_a_power_cut_leaves_whole_blocks_or_none() -> None:
    kept = 0
    for seed in range(50):
        disk = FakeDisk()
        disk.make_folder(FOLDER)
        cache = opened(disk, 20 * MIB)
        for number in range(5):
            cache.put(block(number, 5000))
        if seed % 2:
            disk.sync_folder(FOLDER)
        disk.crash(Random(seed))
        again = opened(disk, 20 * MIB)
        for number in range(5):
            found = await again.get(key(number))
            assert found in (None, block(number, 5000).data)
            kept += found is not None
            again.put(block(number, 5000))
            assert await again.get(key(number)) == block(number, 5000).data
    assert kept, "otherwise nothing was tested"


@in_loop
async def test_a_full_disk_is_left_alone_for_a_while_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    disk, clock = FakeDisk(), FakeClock()
    cache = opened(disk, clock=clock)
    disk.fail_next("write", errno.ENOSPC)
    with caplog.at_level(logging.WARNING):
        cache.put(block(0))
        cache.put(block(1))
    assert (files_of(disk), cache.bytes_held) == ([], 0)
    assert len(caplog.records) == 1
    assert "takes nothing for now" in caplog.text
    clock.advance(REFUSED_MS)
    cache.put(block(1))
    assert await cache.get(key(1)) is not None


@in_loop
async def test_room_that_logs_need_is_not_taken() -> None:
    disk = FakeDisk()
    cache = opened(disk)
    disk.capacity_bytes = FREE_BYTES_MIN + 500
    cache.put(block(0))
    assert (files_of(disk), cache.bytes_held) == ([], 0)


@in_loop
async def test_a_disk_that_cannot_be_read_costs_nothing_but_the_block() -> None:
    disk = FakeDisk()
    cache = opened(disk)
    cache.put(block(0))
    disk.fail_next("read")
    assert await cache.get(key(0)) is None
    cache.put(block(0))
    assert await cache.get(key(0)) == block(0).data


@in_loop
async def test_a_slow_disk_holds_few_blocks_in_memory() -> None:
    workers = HeldWorkers()
    cache = opened(FakeDisk(), workers=workers)
    for number in range(20):
        cache.put(block(number))
    assert len(workers.heavies) == WRITES_MAX
    while workers.heavies:
        workers.run_heavy()
    cache.put(block(19))
    assert len(workers.heavies) == 1


@on_virtual_loop
async def test_what_memory_has_no_room_for_comes_from_the_disk_instead_of_the_store(clock: FakeClock) -> None:
    loop = asyncio.get_running_loop()
    store = CountingStore()
    disk = DiskCache(FakeDisk(), FOLDER, clock, SimWorkers(loop, Random(1)), 100 * MIB)
    disk.open()
    cache = BlockCache(store, clock, 8 * MIB, disk=disk)
    for number in range(20):
        store.objects[key(number).object_id.name] = bytes([number]) * MIB
    for _ in range(3):
        for number in range(20):
            event = asyncio.Event()
            cache.want(key(number), event.set)
            await event.wait()
            found = cache.get(key(number))
            assert found is not None
            assert found.data == bytes([number]) * MIB
            await asyncio.sleep(1)
    assert len(store.gets) == 20
    assert cache.bytes_held <= 8 * MIB
