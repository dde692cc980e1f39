"""The fan-out: one load for all who want the same, within one budget, and nothing for those who left."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from anabranch.errors import BrokerRefusedError, NotOwnerError, RequestTimedOutError
from anabranch.gateway.read.chunks import Chunk, chunks_of
from anabranch.gateway.read.fan_out import AGE_MS_MAX, WAIT_MS, WOKEN_AT_ONCE, Stream
from anabranch.record.builder import BatchBuilder
from anabranch.wire.error_codes import ErrorCode
from support.fan_out_world import OTHER, STREAM, Arrivals, FanOutWorld, encoded, on_virtual_loop, turns


def played(scene: Callable[[FanOutWorld], Awaitable[None]], budget_bytes: int = 2**20) -> None:
    world = FanOutWorld(budget_bytes)

    async def play() -> None:
        await scene(world)
        await world.fan_out.close()

    on_virtual_loop(world.clock, play())


def test_all_who_wait_at_the_tail_share_one_load_and_one_chunk() -> None:
    async def scene(world: FanOutWorld) -> None:
        crowd = [Arrivals() for _ in range(1000)]
        for each in crowd:
            world.fan_out.wait(STREAM, 0, each)
        await turns()
        world.source.write(STREAM, b"one")
        await turns()
        assert world.source.loaded == [(STREAM, 0)]
        assert len({id(each.chunks[0]) for each in crowd}) == 1
        assert all(len(each.chunks) == 1 for each in crowd)

    played(scene)


def test_a_crowd_is_woken_over_several_turns() -> None:
    async def scene(world: FanOutWorld) -> None:
        crowd = [Arrivals() for _ in range(3 * WOKEN_AT_ONCE)]
        world.source.write(STREAM, b"one")
        for each in crowd:
            world.fan_out.wait(STREAM, 0, each)
        seen = set()
        for _ in range(30):
            await asyncio.sleep(0)
            seen.add(sum(bool(each.chunks) for each in crowd))
        assert {WOKEN_AT_ONCE, 2 * WOKEN_AT_ONCE, 3 * WOKEN_AT_ONCE} <= seen

    played(scene)


def test_a_load_goes_on_after_a_wait_without_records() -> None:
    async def scene(world: FanOutWorld) -> None:
        heard = Arrivals()
        world.fan_out.wait(STREAM, 0, heard)
        await asyncio.sleep(2.5 * WAIT_MS / 1000)
        assert len(world.source.loaded) == 3
        world.source.write(STREAM, b"late")
        await turns()
        assert len(heard.chunks) == 1

    played(scene)


def test_a_source_that_does_not_wait_is_not_asked_without_pause() -> None:
    async def scene(world: FanOutWorld) -> None:
        asked = 0

        async def load(*_: object) -> list[Chunk]:
            nonlocal asked
            asked += 1
            return []

        world.source.load = load  # type: ignore[method-assign]
        world.fan_out.wait(STREAM, 0, Arrivals())
        await asyncio.sleep(60)
        assert 60 <= asked <= 300

    played(scene)


def test_the_last_who_leaves_calls_the_load_off() -> None:
    async def scene(world: FanOutWorld) -> None:
        one, other = Arrivals(), Arrivals()
        waits = [world.fan_out.wait(STREAM, 0, each) for each in (one, other)]
        await turns()
        world.fan_out.leave(waits[0])
        await turns()
        assert world.source.waiting == 1
        world.fan_out.leave(waits[1])
        await turns()
        assert world.source.waiting == 0
        world.source.write(STREAM, b"one")
        await turns()
        assert one.chunks == other.chunks == []
        world.fan_out.leave(waits[1])

    played(scene)


def test_one_who_leaves_in_the_middle_of_the_crowd_hears_nothing() -> None:
    async def scene(world: FanOutWorld) -> None:
        last = Arrivals()
        waits = []

        def leave_last(*_: object) -> None:
            world.fan_out.leave(waits[-1])

        waits = [world.fan_out.wait(STREAM, 0, each) for each in (leave_last, last)]
        world.source.write(STREAM, b"one")
        await turns()
        assert last.chunks == []

    played(scene)


def test_a_chunk_is_at_hand_for_those_who_come_a_little_later_and_in_its_middle() -> None:
    async def scene(world: FanOutWorld) -> None:
        world.source.write(STREAM, b"0", b"1", b"2")
        heard = Arrivals()
        world.fan_out.wait(STREAM, 0, heard)
        await turns()
        assert world.fan_out.chunk_at(STREAM, 0) is heard.chunks[0]
        assert world.fan_out.chunk_at(STREAM, 2) is heard.chunks[0]
        assert world.fan_out.chunk_at(STREAM, 3) is None
        assert world.fan_out.chunk_at(OTHER, 0) is None
        assert world.fan_out.chunk_at(Stream("t", UUID(int=2), 0), 0) is None

    played(scene)


def test_a_position_between_records_is_asked_of_the_broker() -> None:
    builder = BatchBuilder(0)
    for offset in (0, 1, 5 << 32):
        builder = builder if offset < 2 else BatchBuilder(offset)
        builder.add(None, b"x", timestamp_ms=0, offset=offset)
        if offset == 1:
            first = builder.build()
    (chunk,) = chunks_of(first + builder.build(), 0, 0, encoded)
    assert chunk.next == (5 << 32) + 1
    assert [offset for offset in (0, 1, 2, 3 << 32, 5 << 32) if chunk.serves(offset)] == [0, 1, 5 << 32]


def test_what_is_old_is_not_at_hand_and_not_kept() -> None:
    async def scene(world: FanOutWorld) -> None:
        world.source.write(STREAM, b"0")
        world.fan_out.wait(STREAM, 0, Arrivals())
        await turns()
        world.clock.advance(AGE_MS_MAX + 1)
        assert world.fan_out.chunk_at(STREAM, 0) is None
        world.source.write(OTHER, b"0")
        world.fan_out.wait(OTHER, 0, Arrivals())
        await turns()
        assert world.fan_out.bytes_at_hand > 0
        await asyncio.sleep(3 * AGE_MS_MAX / 1000)
        assert world.fan_out.bytes_at_hand == 0

    played(scene)


def test_the_budget_holds_however_much_is_read() -> None:
    budget_bytes = 50_000

    async def scene(world: FanOutWorld) -> None:
        for offset in range(100):
            world.source.write(STREAM, b"x" * 5000)
            heard = Arrivals()
            world.fan_out.wait(STREAM, offset, heard)
            await turns(5)
            assert len(heard.chunks) == 1
            assert world.fan_out.bytes_at_hand <= budget_bytes
        assert world.fan_out.chunk_at(STREAM, 99) is not None
        assert world.fan_out.chunk_at(STREAM, 0) is None

    played(scene, budget_bytes)


@pytest.mark.parametrize(
    "error",
    [
        NotOwnerError("moved"),
        RequestTimedOutError("slow"),
        BrokerRefusedError("moved", ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_what_passes_is_waited_for(error: Exception) -> None:
    async def scene(world: FanOutWorld) -> None:
        world.source.write(STREAM, b"0")
        world.source.errors = [error, error, error]
        heard = Arrivals()
        world.fan_out.wait(STREAM, 0, heard)
        await asyncio.sleep(60)
        assert (len(heard.chunks), heard.errors) == (1, [None])

    played(scene)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OFFSET_OUT_OF_RANGE])
def test_what_does_not_pass_is_told_to_all_who_wait(code: ErrorCode) -> None:
    async def scene(world: FanOutWorld) -> None:
        error = BrokerRefusedError("no", code)
        world.source.errors = [error]
        crowd = [Arrivals(), Arrivals()]
        for each in crowd:
            world.fan_out.wait(STREAM, 0, each)
        await turns()
        assert [each.errors for each in crowd] == [[error], [error]]

    played(scene)


def test_a_defect_is_logged_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(world: FanOutWorld) -> None:
        world.source.errors = [ZeroDivisionError()]
        heard = Arrivals()
        world.fan_out.wait(STREAM, 0, heard)
        await turns()
        assert isinstance(heard.errors[0], BrokerRefusedError)

    with caplog.at_level(logging.ERROR):
        played(scene)
    assert "ZeroDivisionError" in caplog.text
