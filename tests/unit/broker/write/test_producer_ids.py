"""Producer ids: none twice, whatever crashes."""

import asyncio
import errno

import pytest

from anabranch.broker.write.producer_ids import BLOCK
from anabranch.errors import StorageError
from support.broker_bench import Bench, in_loop


@in_loop
async def test_ids_are_distinct_across_blocks_with_one_entry_per_block() -> None:
    bench = Bench()
    taken = [await bench.broker.producer_ids.take() for _ in range(BLOCK + 1)]
    assert len(set(taken)) == BLOCK + 1
    assert bench.broker.metadata.partition.log.end_offset == 2


@in_loop
async def test_many_at_once_share_a_block() -> None:
    bench = Bench()
    taken = await asyncio.gather(*(bench.broker.producer_ids.take() for _ in range(BLOCK + 10)))
    assert len(set(taken)) == BLOCK + 10
    assert bench.broker.metadata.partition.log.end_offset == 2


@in_loop
async def test_no_id_is_given_again_after_a_crash() -> None:
    bench = Bench()
    before = {await bench.broker.producer_ids.take() for _ in range(3)}
    again = bench.again()
    assert await again.broker.producer_ids.take() not in before


@in_loop
async def test_block_that_cannot_be_reserved_gives_no_id_and_the_next_try_may() -> None:
    bench = Bench()
    bench.disk.fail_next("write", errno.ENOSPC, path_contains="__cluster_metadata")
    with pytest.raises(StorageError):
        await bench.broker.producer_ids.take()
    assert await bench.broker.producer_ids.take() == 0
