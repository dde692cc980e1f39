"""Lookups by time in the object store, as Kafka makes them: the first record that is not earlier, and the newest."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.object.log import LOOKUP_MS_MAX
from anabranch.errors import CorruptDataError, OffsetNotAvailableError, StoreUnavailableError
from anabranch.record.builder import BatchBuilder
from anabranch.testing.fakes.clock import FakeClock
from anabranch.values import Offset
from support.broker_bench import in_loop
from support.object_world import ObjectWorld, batch, on_virtual_loop


@in_loop
async def test_the_first_record_of_a_time_is_found_inside_its_batch() -> None:
    world = ObjectWorld()
    world.write({0: [batch(b"a", b"b", time=100, step=10), batch(b"c", b"d", time=200, step=10)]})
    world.write({0: [batch(b"e", b"f", time=300, step=10)]})
    found = [await world.log().offset_for_time(time) for time in (0, 100, 101, 110, 111, 205, 300, 310, 311)]
    assert found == [(0, 100), (0, 100), (1, 110), (1, 110), (2, 200), (3, 210), (4, 300), (5, 310), None]
    assert await world.log().max_timestamp() == (5, 310)


@in_loop
async def test_times_that_go_back_are_found_at_the_first_record_that_reaches_them() -> None:
    world = ObjectWorld()
    world.write({0: [batch(b"a", time=500)]})
    world.write({0: [batch(b"b", time=100), batch(b"c", time=900), batch(b"d", time=900)]})
    world.write({0: [batch(b"e", time=600)]})
    assert await world.log().offset_for_time(200) == (0, 500)
    assert await world.log().offset_for_time(501) == (2, 900)
    assert await world.log().max_timestamp() == (2, 900)


@in_loop
async def test_what_lies_before_the_start_is_not_found() -> None:
    world = ObjectWorld()
    world.write({0: [batch(b"a", b"b", time=500, step=-10), batch(b"c", time=100)]})
    world.write({0: [batch(b"d", time=490)]})
    assert await world.log().offset_for_time(495) == (0, 500)
    world.rows.starts[world.key()] = Offset(1)
    assert await world.log().offset_for_time(480) == (1, 490)
    assert await world.log().offset_for_time(495) is None
    world.rows.starts[world.key()] = Offset(2)
    assert await world.log().offset_for_time(480) == (3, 490)


@in_loop
async def test_merged_rows_with_gaps_are_searched_too() -> None:
    world = ObjectWorld()
    world.write_merged([(3, batch(b"a", time=100)), (10, batch(b"b", b"c", time=200, step=50))], 20)
    assert await world.log().offset_for_time(50) == (3, 100)
    assert await world.log().offset_for_time(101) == (10, 200)
    assert await world.log().offset_for_time(201) == (11, 250)
    assert await world.log().max_timestamp() == (11, 250)


@in_loop
async def test_an_empty_partition_has_no_times() -> None:
    world = ObjectWorld()
    assert await world.log().offset_for_time(0) is None
    assert await world.log().max_timestamp() is None


@in_loop
async def test_a_row_without_times_has_no_newest_record() -> None:
    world = ObjectWorld()
    world.write({0: [batch(b"a", time=-1)]})
    assert await world.log().max_timestamp() is None


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=3), min_size=1, max_size=3), max_size=4
    )
)
def test_any_times_are_found_as_a_reader_of_everything_would(objects: list[list[list[int]]]) -> None:
    @in_loop
    async def run() -> None:
        world = ObjectWorld()
        times: list[int] = []
        for each in objects:
            world.write({0: [timed(*one) for one in each]})
            times += [time for one in each for time in one]
        for wanted in range(22):
            expected = next(((at, time) for at, time in enumerate(times) if time >= wanted), None)
            assert await world.log().offset_for_time(wanted) == expected
        newest = await world.log().max_timestamp()
        assert newest == ((times.index(max(times)), max(times)) if times else None)
        assert len(world.store.gets) <= len(world.store.objects)

    run()


def timed(*times: int) -> bytes:
    builder = BatchBuilder()
    for time in times:
        builder.add(None, b"v", timestamp_ms=time)
    return bytes(builder.build())


@on_virtual_loop
async def test_a_store_that_is_away_makes_the_offset_unavailable_after_a_while(clock: FakeClock) -> None:
    world = ObjectWorld(clock=clock)
    world.write({0: [batch(b"a", time=100)]})
    world.store.is_away = StoreUnavailableError("no answer")
    before = clock.monotonic_ms()
    with pytest.raises(OffsetNotAvailableError, match="object store did not answer"):
        await world.log().offset_for_time(50)
    assert LOOKUP_MS_MAX <= clock.monotonic_ms() - before <= LOOKUP_MS_MAX + 10
    world.store.is_away = None
    await asyncio.sleep(10)
    assert await world.log().offset_for_time(50) == (0, 100)


@in_loop
async def test_damage_is_said() -> None:
    world = ObjectWorld()
    world.write({0: [batch(b"a", time=100)]})
    world.store.damage = lambda data: data[:64] + b"?" + data[65:]
    with pytest.raises(CorruptDataError):
        await world.log().offset_for_time(50)
