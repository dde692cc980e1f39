"""One group's writes: in order, together where possible, and never lost to a neighbour."""

import asyncio

import pytest

from anabranch.broker.coordination.groups.append_lane import AppendLane
from anabranch.coordination.groups.messages import LogRecord
from anabranch.values import TopicPartition
from support.coordinator_bench import turn


def test_writes_end_in_order_and_large_ones_go_alone() -> None:
    sizes: list[int] = []
    ended: list[int] = []

    async def append(_: str, records: list[LogRecord]) -> None:
        sizes.append(len(records))
        await asyncio.sleep(0)

    async def scenario() -> None:
        lane = AppendLane("g", append)
        large = [(b"k", b"x" * 200_000)]
        for number, records in enumerate([[(b"k", b"v")], [(b"k", b"v")], [(b"k", b"v")], large, large]):
            lane.submit(records, lambda _, number=number: ended.append(number))
        await turn()
        assert lane.is_idle

    asyncio.run(scenario())
    assert ended == [0, 1, 2, 3, 4]
    assert sizes == [1, 3, 1]


def test_a_lane_knows_which_offsets_are_on_their_way() -> None:
    async def append(_: str, records: list[LogRecord]) -> None:
        await asyncio.sleep(0)

    async def scenario() -> None:
        lane = AppendLane("g", append)
        first, second = TopicPartition("t", 0), TopicPartition("t", 1)
        lane.submit([(b"k", b"v")], lambda _: None, [first])
        lane.submit([(b"k", b"v")], lambda _: None, [second])
        assert lane.in_flight() == {first, second}
        await turn()
        assert lane.is_idle
        assert lane.in_flight() == set()

    asyncio.run(scenario())


@pytest.mark.parametrize("records", [1, 3])
def test_a_defect_in_one_finish_keeps_nobody_else_waiting(records: int) -> None:
    ended: list[int] = []
    defects: list[object] = []

    def finish(number: int) -> None:
        if number == 0:
            raise ZeroDivisionError
        ended.append(number)

    async def append(_: str, records: list[LogRecord]) -> None:
        await asyncio.sleep(0)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: defects.append(context["exception"]))
        lane = AppendLane("g", append)
        for number in range(records + 1):
            lane.submit([(b"k", b"v")], lambda _, number=number: finish(number))
        await turn()
        assert lane.is_idle

    asyncio.run(scenario())
    assert ended == list(range(1, records + 1))
    assert [type(defect) for defect in defects] == [ZeroDivisionError]
