"""Producer ids without a quorum: none twice, whatever crashes, and none at all if that is not certain."""

from random import Random

import pytest

from anabranch.broker.branch.own_producer_ids import BLOCK, OWN_IDS_FILE, OwnProducerIds
from anabranch.errors import StorageError
from anabranch.testing.fakes.disk import FakeDisk
from support.broker_bench import in_loop
from support.workers import InlineWorkers


def ids_of(disk: FakeDisk, slot: int | None) -> OwnProducerIds:
    return OwnProducerIds(disk, "data", InlineWorkers(), lambda: slot)


@in_loop
async def test_blocks_of_one_disk_and_of_others_do_not_overlap() -> None:
    disk = FakeDisk()
    disk.make_folder("data")
    blocks = [await ids_of(disk, slot).block() for slot in (3, 3, 4, 1023)]
    taken = [number for block in blocks if block is not None for number in range(block[0], sum(block))]
    assert len(set(taken)) == len(blocks) * BLOCK


@in_loop
async def test_a_power_cut_does_not_give_a_block_again() -> None:
    disk = FakeDisk()
    disk.make_folder("data")
    before = await ids_of(disk, 3).block()
    disk.crash(Random(1))
    assert await ids_of(disk, 3).block() != before


@in_loop
async def test_without_a_slot_there_is_no_block() -> None:
    assert await ids_of(FakeDisk(), None).block() is None


@in_loop
async def test_a_file_that_cannot_be_read_gives_no_block() -> None:
    disk = FakeDisk()
    disk.make_folder("data")
    disk.write(f"data/{OWN_IDS_FILE}", b"garbled", sync=True)
    with pytest.raises(StorageError):
        await ids_of(disk, 3).block()
