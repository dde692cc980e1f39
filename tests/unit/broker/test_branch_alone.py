"""A topic in mode branch on one node: each start is a reign in a lane of its own, and readers notice nothing."""

from typing import Any

import pytest

from anabranch.broker.branch_partition import BranchPartition
from anabranch.errors import NotOwnerError
from anabranch.replication.branch_rows import RowKind, first_offset
from anabranch.values import Offset
from support.broker_bench import Bench, batch_of, in_loop, turn

SECOND = first_offset(1024)  # type: ignore[arg-type]
"""Where the second reign of the only broker begins."""


async def made(**settings: Any) -> tuple[Bench, BranchPartition]:
    bench = Bench(flush="always", **settings)
    partition = await bench.topic(anabranch_mode="branch")
    assert isinstance(partition, BranchPartition)
    return bench, partition


def found(bench: Bench) -> BranchPartition:
    partition = bench.topics.partition("t", 0)
    assert isinstance(partition, BranchPartition)
    return partition


async def write(bench: Bench, *values: bytes, **fields: Any) -> int:
    """The base offset of a batch that was written, and is safe."""
    answered = bench.submit(found(bench), batch_of(*values, **fields))
    await turn()
    assert len(answered) == 1, "not answered"
    if answered[0].error is not None:
        raise answered[0].error
    return answered[0].base_offset


async def stopped(bench: Bench) -> Bench:
    await bench.broker.drain()
    await bench.broker.close()
    return bench.again()


def values(partition: BranchPartition, start: int = 0) -> list[tuple[int, bytes | None]]:
    """What a reader gets who begins at `start` and goes on where each answer ends."""
    from anabranch.record.batch import batch_spans
    from anabranch.record.records import records_of

    read: list[tuple[int, bytes | None]] = []
    position = start
    while True:
        part = partition.log.slice(Offset(position), 1, partition.high_watermark)
        if not part.count:
            return read
        if not part.verified:
            part.verify()
        data = part.read()
        for first, last in batch_spans(data):
            records = [each for each in records_of(data[first:last]) if each.offset >= position]
            read += [(each.offset, each.value) for each in records]
            position = records[-1].offset + 1


@in_loop
async def test_the_first_reign_gives_offsets_from_0_on() -> None:
    bench, partition = await made()
    assert await write(bench, b"a", b"b") == 0
    assert await write(bench, b"c") == 2
    assert partition.reign == 0
    assert partition.high_watermark == 3
    assert values(partition) == [(0, b"a"), (1, b"b"), (2, b"c")]


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_start_is_a_reign_in_a_lane_of_its_own_behind_the_line_of_before(is_clean: bool) -> None:
    @in_loop
    async def body() -> None:
        bench, _ = await made()
        await write(bench, b"a", b"b")
        again = await stopped(bench) if is_clean else bench.again()
        assert await write(again, b"c") == SECOND
        third = await stopped(again) if is_clean else again.again()
        partition = found(third)
        assert partition.reign == 2048
        assert [value for _, value in values(partition)] == [b"a", b"b", b"c"]
        rows = [row for row in partition.tube.rows if row.kind is RowKind.OPENED]
        assert [(row.old, row.old_end, row.new) for row in rows] == [
            (-1, 0, 0),
            (0, 2, 1024),
            (1024, SECOND + 1, 2048),
        ]

    body()


@in_loop
async def test_a_crash_before_the_row_leaves_the_line_as_it_was() -> None:
    bench, partition = await made()
    await write(bench, b"a")
    await partition.end_reign(NotOwnerError("another reigns"))
    row = bench.broker.branches.next_row(partition)  # type: ignore[union-attr]
    partition.prepare_reign(row)
    again = found(bench.again())
    assert again.line[0].end == 1
    assert again.tip.lane != row.new, "a lane that was begun once is not begun again"
    assert values(again) == [(0, b"a")]


@in_loop
async def test_a_crash_behind_the_row_has_switched() -> None:
    bench, partition = await made()
    await write(bench, b"a")
    await partition.end_reign(NotOwnerError("another reigns"))
    row = bench.broker.branches.next_row(partition)  # type: ignore[union-attr]
    partition.prepare_reign(row)
    await partition.tube.add([row])
    again = found(bench.again())
    assert [span.lane for span in again.line] == [0, 1024, 2048]
