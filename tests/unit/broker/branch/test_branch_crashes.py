"""A branch on one node, when the power goes at any step of a start, a write, a removal or a stop."""

import contextlib
from random import Random
from typing import Any

import pytest

from anabranch.broker.branch.partition import BranchPartition
from anabranch.errors import AnabranchError
from anabranch.record.batch import batch_spans, read_header
from anabranch.testing.fakes.disk import FakeDisk, PowerLoss
from anabranch.values import Offset
from support.broker_bench import Bench, batch_of, in_loop, turn

STEPS_BETWEEN = 3
"""Every so many operations of the disk the power goes, in one of the runs."""


def found(bench: Bench) -> BranchPartition:
    partition = bench.topics.partition("t", 0)
    assert isinstance(partition, BranchPartition)
    return partition


async def write(bench: Bench, value: bytes) -> int | None:
    """The offset of a record that is safe; None: nobody was told so."""
    answered = bench.submit(found(bench), batch_of(value))
    await turn()
    return answered[0].base_offset if answered and answered[0].error is None else None


def read(partition: BranchPartition) -> list[int]:
    """The offsets of all records, by somebody who reads from the start to the end."""
    offsets: list[int] = []
    position = partition.log.start_offset
    while (part := partition.log.slice(Offset(position), 1, partition.high_watermark)).count:
        part.verify()
        data = part.read()
        for first, _ in batch_spans(data):
            header = read_header(data, first)
            offsets += range(header.base_offset, header.next_offset)
        position = Offset(offsets[-1] + 1)
    return offsets


async def prepared() -> tuple[FakeDisk, list[int]]:
    """Two lanes with records, one after a clean stop and one after a crash."""
    bench = Bench(flush="always")
    await bench.topic(anabranch_mode="branch")
    kept = [await write(bench, b"%d" % number) for number in range(3)]
    await bench.broker.drain()
    await bench.broker.close()
    bench = bench.again()
    kept += [await write(bench, b"%d" % number) for number in range(3, 6)]
    bench.disk.kill()
    return bench.disk, [offset for offset in kept if offset is not None]


async def life(disk: FakeDisk, kept: list[int]) -> None:
    """Everything that changes the disk; offsets of what was acknowledged enter `kept`."""
    bench = Bench(disk, flush="always")
    for value in (b"a", b"b"):
        offset = await write(bench, value)
        if offset is not None:
            kept.append(offset)
    await bench.broker.housekeeping.checkpoint()
    if disk.is_dark:
        return
    await bench.broker.kinds.of(found(bench)).delete_before(found(bench), Offset(2))
    del kept[:2]
    await bench.broker.housekeeping.retain()
    await bench.broker.drain()
    await bench.broker.close()


@in_loop
async def test_the_power_may_go_at_any_step() -> None:
    base, before = await prepared()
    whole = base.copy()
    await life(whole, list(before))
    steps = whole.operations - base.operations
    assert steps > 50
    for step in range(1, steps, STEPS_BETWEEN):
        disk, kept = base.copy(), list(before)
        disk.crash_at = disk.operations + step
        with contextlib.suppress(PowerLoss, AnabranchError):
            await life(disk, kept)
        assert disk.is_dark
        disk.crash(Random(step))
        again = Bench(disk, flush="always")
        offsets = read(found(again))
        assert offsets == sorted(set(offsets))
        missing = set(kept) - set(offsets)
        assert missing <= {0, 1}, f"step {step}: {missing}"
        assert not missing or offsets[0] == 2, "they go together"
        assert await write(again, b"c") is not None, f"step {step}: nothing can be written"
        assert read(found(again))[:-1] == offsets


@pytest.mark.parametrize("seed", range(20))
def test_an_offset_never_names_two_records_whatever_was_lost(seed: int) -> None:
    """Under flush=os a power cut takes records that were acknowledged. Their offsets are not given again, and nobody
    who reads hangs where they were."""

    @in_loop
    async def body() -> None:
        random = Random(seed)
        bench = Bench(flush="os")
        await bench.topic(anabranch_mode="branch")
        given: dict[int, bytes] = {}
        for life in range(6):
            for number in range(random.randrange(8)):
                value = b"%d-%d" % (life, number)
                offset = await write(bench, value)
                assert offset is not None
                assert offset not in given
                given[offset] = value
            if random.random() < 0.3:
                await bench.broker.housekeeping.checkpoint()
            if random.random() < 0.7:
                bench.disk.crash(random)
            bench = again(bench)
            offsets = read(found(bench))
            assert set(offsets) <= set(given)
            assert await write(bench, b"last") == max(found(bench).log.end_offset - 1, 0)
            given[found(bench).log.end_offset - 1] = b"last"
            assert read(found(bench))[-1] == found(bench).log.end_offset - 1, "a reader hangs"

    body()


def again(bench: Bench, **settings: Any) -> Bench:
    bench.disk.kill()
    return Bench(bench.disk, flush="os", **settings)
