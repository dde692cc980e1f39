"""ObjectLog: what is read is what was written, wherever a reader begins and however much it takes."""

import asyncio
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.object.cache import blocks
from anabranch.broker.object.cache.block_cache import BAD_MS
from anabranch.broker.object.log import AHEAD_BLOCKS, CHECKED_AT_ONCE_BYTES, ROWS_PER_SLICE, ObjectLog
from anabranch.broker.object.slice import ObjectSlice
from anabranch.errors import CorruptDataError, OffsetOutOfRangeError, StorageError, StoreUnavailableError
from anabranch.record.batch import HEADER_BYTES, batch_spans, read_header, stamp
from anabranch.testing.fakes.clock import FakeClock
from anabranch.values import Generation, Offset
from support.broker_bench import in_loop, turn
from support.object_world import ObjectWorld, batch, offsets_in, on_virtual_loop
from support.workers import HeldWorkers

END = Offset(2**62)
MIB = 2**20


class Placed(NamedTuple):
    base: int
    next: int
    data: bytes


def placed(base: int, data: bytes, count: int) -> Placed:
    changed = bytearray(data)
    stamp(changed, 0, Offset(base), Generation(0))
    return Placed(base, base + count, bytes(changed))


async def all_from(log: ObjectLog, start: int, bytes_max: int = 2**20) -> bytes:
    """What a reader gets who goes on where each answer ended."""
    found, at = b"", start
    while at < log.end_offset:
        part = await log.loaded(Offset(at), bytes_max, END)
        if not part.count:
            break
        data = bytes(part.read())
        found += data
        at = next_after(data)
    return found


def next_after(data: bytes) -> int:
    last = 0
    for first, _ in batch_spans(data):
        last = first
    return read_header(data, last).next_offset


# --- any rows, any reader --------------------------------------------------------------------------------------


class Shape(NamedTuple):
    """One object: stamped with gaps, or as gathered, with so many records of such a size in each batch."""

    is_merged: bool
    batches: list[tuple[int, int]]
    gaps: list[int]
    padding: int


def shapes() -> st.SearchStrategy[list[Shape]]:
    batches = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 400)), min_size=1, max_size=6)
    gaps = st.lists(st.integers(0, 5), min_size=7, max_size=7)
    shape = st.builds(Shape, st.booleans(), batches, gaps, st.integers(0, 700))
    return st.lists(shape, min_size=1, max_size=5)


def build(world: ObjectWorld, wanted: list[Shape]) -> list[Placed]:
    expected: list[Placed] = []
    at = 0
    for shape in wanted:
        made = [batch(*[bytes([65 + at % 26]) * size] * count) for count, size in shape.batches]
        if not shape.is_merged:
            world.write({5: [batch(b"another partition's")], 0: made}, padding=shape.padding)
            for (count, _), data in zip(shape.batches, made, strict=True):
                expected.append(placed(at, data, count))
                at += count
            continue
        stamped = []
        for (count, _), gap, data in zip(shape.batches, shape.gaps, made, strict=False):
            at += gap
            stamped.append((at, data))
            expected.append(placed(at, data, count))
            at += count
        at += shape.gaps[-1]
        world.write_merged(stamped, at, padding=shape.padding)
    return expected


def fitting(expected: list[Placed], start: int, bytes_max: int) -> list[Placed]:
    """What a fetch is to get by Kafka's rules: whole batches, and the first one whatever its size."""
    taken: list[Placed] = []
    for each in expected:
        if each.next <= start:
            continue
        if taken and sum(len(one.data) for one in taken) + len(each.data) > bytes_max:
            break
        taken.append(each)
    return taken


@settings(max_examples=150, deadline=None)
@given(shapes(), st.integers(1, 3000), st.sampled_from([300, 700, 2**22]))
def test_any_reader_gets_what_was_written(wanted: list[Shape], bytes_max: int, block_bytes: int) -> None:
    @in_loop
    async def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocks, "BLOCK_BYTES", block_bytes)
            patch.setattr(blocks, "BLOCK_BYTES_GATHERED", 2 * block_bytes)
            world = ObjectWorld()
            expected = build(world, wanted)
            for start in range(world.log().end_offset + 1):
                fits = fitting(expected, start, bytes_max)
                part = await world.log().loaded(Offset(start), bytes_max, END)
                data = bytes(part.read())
                count = len(offsets_in(data))
                assert data == b"".join(each.data for each in fits[:count])
                assert bool(count) == bool(fits)
                # Everything of it is in the cache now, so a second look takes all that may be taken.
                for each in fits:
                    await world.log().loaded(Offset(each.base), 1, END)
                if block_bytes == 2**22:
                    again = await world.log().loaded(Offset(start), bytes_max, END)
                    assert bytes(again.read()) == b"".join(each.data for each in fits)
                    follows = [each for each in expected if fits and each.base >= fits[-1].next]
                    assert again.is_cut or not follows

    run()


@settings(max_examples=60, deadline=None)
@given(shapes(), st.integers(1, 500))
def test_a_reader_who_goes_on_reads_everything_once(wanted: list[Shape], bytes_max: int) -> None:
    @in_loop
    async def run() -> None:
        world = ObjectWorld()
        expected = build(world, wanted)
        assert await all_from(world.log(), 0, bytes_max) == b"".join(each.data for each in expected)
        assert len(world.store.gets) == len(world.store.objects), "one GET for an object"

    run()


# --- one by one ------------------------------------------------------------------------------------------------


@in_loop
async def test_a_slice_names_what_it_is_missing_and_is_ready_once_that_has_come() -> None:
    world = ObjectWorld()
    first = world.write({0: [batch(b"a", b"b"), batch(b"c")]})
    world.write({0: [batch(b"d")]})
    log = world.log()
    part = log.slice(Offset(0), 10_000, END)
    assert [key.object_id for key in part.missing] == [first]
    assert offsets_in((await log.loaded(Offset(0), 10_000, END)).read()) == [0, 2]
    assert offsets_in((await log.loaded(Offset(3), 10_000, END)).read()) == [3]
    assert offsets_in(log.slice(Offset(1), 10_000, END).read()) == [0, 2, 3], (
        "rows that are at hand come together"
    )


@in_loop
async def test_the_cache_keeps_bytes_as_they_are_stored() -> None:
    world = ObjectWorld()
    world.write({1: [batch(b"x")]})
    object_id = world.write({0: [batch(b"a"), batch(b"b")], 1: [batch(b"c")]})
    before = world.store.objects[object_id.name]
    (await world.log(1).loaded(Offset(1), 10_000, END)).read()
    (await world.log(0).loaded(Offset(0), 10_000, END)).read()
    block = world.cache.get(blocks.BlockKey(object_id, 0))
    assert block is not None
    assert block.data == before


@in_loop
async def test_limits_are_those_of_every_log() -> None:
    world = ObjectWorld()
    batches = [batch(b"x" * 100) for _ in range(4)]
    size = len(batches[0])
    world.write({0: batches}, keep=True)
    log = world.log()
    counts = {
        bytes_max: len(offsets_in(log.slice(Offset(0), bytes_max, END).read()))
        for bytes_max in (0, 1, size - 1, size, 2 * size - 1, 2 * size, 10 * size)
    }
    assert list(counts.values()) == [1, 1, 1, 1, 1, 2, 4]
    assert log.slice(Offset(0), size - 1, END, whole_first=False).count == 0
    assert log.slice(Offset(0), size, END, whole_first=False).count == size
    assert log.slice(Offset(0), 10 * size, Offset(2)).count == 2 * size
    assert log.slice(Offset(4), 10 * size, END).count == 0


@in_loop
async def test_a_batch_that_reaches_the_limit_of_offsets_is_left_out() -> None:
    world = ObjectWorld()
    world.write({0: [batch(b"a", b"b"), batch(b"c", b"d")]}, keep=True)
    log = world.log()
    assert offsets_in(log.slice(Offset(0), 10_000, Offset(3)).read()) == [0]
    assert log.slice(Offset(2), 10_000, Offset(3)).count == 0


@in_loop
async def test_offsets_outside_are_refused() -> None:
    world = ObjectWorld()
    world.write({0: [batch(b"a"), batch(b"b"), batch(b"c")]}, keep=True)
    world.rows.starts[world.key()] = Offset(1)
    for offset in (0, 4, 2**40):
        with pytest.raises(OffsetOutOfRangeError):
            world.log().slice(Offset(offset), 10_000, END)
    assert offsets_in(world.log().slice(Offset(1), 10_000, END).read()) == [1, 2]
    assert (world.log().start_offset, world.log().end_offset) == (1, 3)


@in_loop
async def test_a_partition_never_written_to_is_empty() -> None:
    world = ObjectWorld()
    log = world.log()
    assert (log.start_offset, log.end_offset, log.size_bytes) == (0, 0, 0)
    part = log.slice(Offset(0), 10_000, END)
    assert (part.count, part.missing, part.verified) == (0, (), True)


@in_loop
async def test_readers_of_many_partitions_share_the_get_of_an_object() -> None:
    world = ObjectWorld()
    world.write({number: [batch(b"x" * 50)] for number in range(500)})
    await asyncio.gather(*[world.log(number).loaded(Offset(0), 10_000, END) for number in range(500)])
    assert len(world.store.gets) == 1


@in_loop
async def test_a_long_row_is_looked_at_in_a_worker_once() -> None:
    workers = HeldWorkers()
    world = ObjectWorld(workers=workers)
    world.write({0: [batch(b"x" * 1000) for _ in range(CHECKED_AT_ONCE_BYTES // 1000)]})
    log = world.log()
    loading = asyncio.create_task(log.loaded(Offset(0), 10_000, END))
    await turn()
    assert not log.slice(Offset(0), 10_000, END).verified
    workers.run_heavy()
    part = await loading
    assert len(offsets_in(part.read())) == 9
    assert log.slice(Offset(200), 10_000, END).verified
    assert not workers.heavies


@on_virtual_loop
async def test_a_row_longer_than_memory_is_read_through(clock: FakeClock) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 4096)
        world = ObjectWorld(bytes_max=64 * 1024, clock=clock)
        batches = [(number, batch(bytes([number % 256]) * 700)) for number in range(500)]
        world.write_merged(batches, 500)
        expected = b"".join(placed(base, data, 1).data for base, data in batches)
        assert await all_from(world.log(), 0, 3000) == expected
        held = world.cache.bytes_held
        assert held <= 64 * 1024
        assert len(world.store.gets) <= len(expected) // 4096 + 2


@in_loop
async def test_a_batch_larger_than_a_block_is_read() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 4096)
        world = ObjectWorld()
        large = batch(bytes(20_000))
        world.write_merged([(0, batch(b"a")), (1, large), (2, batch(b"b"))], 3, padding=4000)
        assert offsets_in(await all_from(world.log(), 0)) == [0, 1, 2]
        assert (await world.log().loaded(Offset(1), 1, END)).count == len(large)


@on_virtual_loop
async def test_a_batch_larger_than_memory_is_read_by_many_at_once(clock: FakeClock) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 4096)
        world = ObjectWorld(bytes_max=40_000, clock=clock)
        for number in range(5):
            world.write_merged([(0, batch(b"a")), (1, batch(bytes(100_000)))], 2, partition=number)
        found = await asyncio.gather(
            *[world.log(number % 5).loaded(Offset(1), 1, END) for number in range(20)]
        )
        assert [offsets_in(part.read()) for part in found] == [[1]] * 20
        assert world.cache._lent == {}
        assert world.cache._loans == {}
        assert world.cache._lent_bytes == 0


@on_virtual_loop
async def test_a_jump_into_a_long_row_loads_what_lies_on_the_way_side_by_side(clock: FakeClock) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 4096)
        world = ObjectWorld(bytes_max=256 * MIB, clock=clock)
        world.write_merged([(number, batch(bytes(1000))) for number in range(100)], 100)
        part = await world.log().loaded(Offset(90), 1, END)
        assert offsets_in(part.read()) == [90]
        assert world.store.running_max > 1
        assert len(world.store.gets) == len(set(world.store.gets)) <= 26


# --- bytes that are wrong --------------------------------------------------------------------------------------


class Flip:
    """Damages what comes from the store, as often as told."""

    def __init__(self, position: int, times: int = 1) -> None:
        self.position = position
        self.times = times

    def __call__(self, data: bytes) -> bytes:
        if not self.times:
            return data
        self.times -= 1
        changed = bytearray(data)
        changed[self.position] ^= 1
        return bytes(changed)


@pytest.mark.parametrize("position", [8, 11, 16, 17, 25, HEADER_BYTES + 3])
@in_loop
async def test_damage_on_the_way_is_healed_by_a_second_get(position: int) -> None:
    world = ObjectWorld()
    world.write({0: [batch(b"a", b"b"), batch(b"c")]})
    world.store.damage = Flip(position)
    assert offsets_in(await all_from(world.log(), 0)) == [0, 2]
    assert len(world.store.gets) == 2


@in_loop
async def test_damage_of_a_long_row_is_found_in_the_worker_and_healed() -> None:
    world = ObjectWorld()
    world.write({0: [batch(b"x" * 1000) for _ in range(400)]})
    world.store.damage = Flip(200_000)
    assert offsets_in(await all_from(world.log(), 0)) == list(range(400))
    assert len(world.store.gets) == 2


@in_loop
async def test_damage_in_the_store_itself_is_said_and_not_asked_for_all_the_time() -> None:
    world = ObjectWorld()
    world.write({0: [batch(b"a"), batch(b"b")]})
    world.store.damage = Flip(65, times=2)
    for _ in range(5):
        with pytest.raises(CorruptDataError, match="segments/0000000000000007-1-0 is damaged at position 0"):
            await world.log().loaded(Offset(0), 10_000, END)
    assert len(world.store.gets) == 2
    world.clock.advance(BAD_MS + 1)
    assert offsets_in((await world.log().loaded(Offset(0), 10_000, END)).read()) == [0, 1]


@in_loop
async def test_an_object_that_is_shorter_than_its_rows_is_damaged() -> None:
    world = ObjectWorld()
    world.write({0: [batch(b"a"), batch(b"b" * 100)]})
    world.store.damage = lambda data: data[:-60]
    with pytest.raises(CorruptDataError, match="before records of t-0"):
        await world.log().loaded(Offset(0), 10_000, END)
    assert len(world.store.gets) == 2


@in_loop
async def test_rows_that_do_not_fit_their_batches_are_damage() -> None:
    world = ObjectWorld()
    world.write({0: [batch(b"a"), batch(b"b", b"c")]})
    rows = world.rows.by_key[world.key()]
    good = rows[0]
    for wrong in (
        good._replace(next_offset=Offset(4)),
        good._replace(next_offset=Offset(2)),
        good._replace(position=3),
        good._replace(length=good.length - 1),
    ):
        rows[0] = wrong
        with pytest.raises(CorruptDataError):
            await world.log().loaded(Offset(0), 10_000, END)
    rows[0] = good
    assert offsets_in((await world.log().loaded(Offset(0), 10_000, END)).read()) == [0, 1]


@in_loop
async def test_an_object_that_was_merged_meanwhile_is_found_where_it_is_now() -> None:
    world = ObjectWorld()
    old = world.write({0: [batch(b"a"), batch(b"b")]})
    world.store.open.clear()
    loading = asyncio.create_task(world.log().loaded(Offset(0), 10_000, END))
    await asyncio.sleep(0.01)
    world.rows.by_key[world.key()].clear()
    world.write_merged([(0, batch(b"a")), (1, batch(b"b"))], 2)
    del world.store.objects[old.name]
    world.store.open.set()
    assert offsets_in((await loading).read()) == [0, 1]


@in_loop
async def test_an_object_that_is_lost_is_a_storage_error() -> None:
    world = ObjectWorld()
    lost = world.write({0: [batch(b"a")]})
    del world.store.objects[lost.name]
    for _ in range(3):
        with pytest.raises(StorageError, match="Records of t-0 are lost: segments/0000000000000007-1-0"):
            await world.log().loaded(Offset(0), 10_000, END)
    assert len(world.store.gets) == 1


# --- reading ahead ---------------------------------------------------------------------------------------------


def objects_of_one_batch(world: ObjectWorld, count: int) -> None:
    for number in range(count):
        world.write({0: [batch(b"x" * 100)], 1: [batch(b"%d" % number)]})


@on_virtual_loop
async def test_a_reader_that_comes_once_causes_one_get(clock: FakeClock) -> None:
    world = ObjectWorld(clock=clock)
    objects_of_one_batch(world, 20)
    (await world.log().loaded(Offset(5), 10, END)).read()
    await asyncio.sleep(10)
    assert len(world.store.gets) == 1


@on_virtual_loop
async def test_a_reader_that_jumps_causes_one_get_each(clock: FakeClock) -> None:
    world = ObjectWorld(clock=clock)
    objects_of_one_batch(world, 60)
    for offset in (5, 50, 20, 40, 10):
        (await world.log().loaded(Offset(offset), 10, END)).read()
        await asyncio.sleep(10)
    assert len(world.store.gets) == 5


@on_virtual_loop
async def test_a_sequential_reader_finds_the_next_blocks_loaded_and_none_twice(clock: FakeClock) -> None:
    world = ObjectWorld(clock=clock)
    objects_of_one_batch(world, 60)
    at, missed = 0, 0
    while at < 60:
        missed += bool(world.log().slice(Offset(at), 10, END).missing)
        part = await world.log().loaded(Offset(at), 10, END)
        at = next_after(bytes(part.read()))
        await asyncio.sleep(1)
    assert missed <= 2
    assert len(world.store.gets) == 60


@on_virtual_loop
async def test_a_sequential_reader_that_stops_has_caused_few_gets(clock: FakeClock) -> None:
    world = ObjectWorld(clock=clock)
    objects_of_one_batch(world, 60)
    for at in range(3):
        (await world.log().loaded(Offset(at), 10, END)).read()
        await asyncio.sleep(1)
    assert len(world.store.gets) <= 3 + AHEAD_BLOCKS


@on_virtual_loop
async def test_no_more_rows_than_allowed_are_looked_at_for_one_slice(clock: FakeClock) -> None:
    world = ObjectWorld(clock=clock)
    for _ in range(ROWS_PER_SLICE + 10):
        world.write({0: [batch(b"x")]}, keep=True)
    part = world.log().slice(Offset(0), 2**20, END)
    assert len(offsets_in(part.read())) == ROWS_PER_SLICE
    assert part.is_cut


@on_virtual_loop
async def test_a_store_that_is_away_only_delays(clock: FakeClock) -> None:
    world = ObjectWorld(clock=clock)
    world.write({0: [batch(b"x")]})
    world.store.is_away = StoreUnavailableError("no answer")
    loading: asyncio.Task[ObjectSlice] = asyncio.create_task(world.log().loaded(Offset(0), 10, END))
    await asyncio.sleep(3600)
    assert not loading.done()
    world.store.is_away = None
    assert offsets_in((await loading).read()) == [0]
