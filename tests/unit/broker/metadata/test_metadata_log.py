"""The log behind the agreed table: committed entries survive, a snapshot shortens it, damage is said aloud."""

import errno
from random import Random

import pytest

from anabranch.broker.metadata import metadata_log, quorum_store
from anabranch.broker.metadata.metadata_log import read_records
from anabranch.cluster.metadata.entries import producer_ids_entry
from anabranch.errors import CorruptDataError, StorageError
from anabranch.record.builder import BatchBuilder
from anabranch.testing.fakes.disk import Operation, PowerLoss
from anabranch.values import Offset
from support.broker_bench import DATA, Bench, batch_of, in_loop

SNAPSHOT = f"{DATA}/metadata-snapshot"


@pytest.fixture
def three_per_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_log, "ENTRIES_PER_SNAPSHOT", 3)


async def commit(bench: Bench, number: int) -> None:
    async with bench.broker.metadata.lock:
        await bench.broker.metadata.commit(producer_ids_entry(number))


@in_loop
async def test_entry_counts_when_it_is_on_the_disk() -> None:
    bench = Bench(flush="os")
    await commit(bench, 7)
    assert bench.broker.metadata.partition.log.synced_offset == 1
    bench.disk.crash(Random(1))
    assert Bench(bench.disk).broker.metadata.table.producer_id_next == 7


@in_loop
async def test_entry_that_the_disk_refuses_changes_nothing() -> None:
    bench = Bench()
    await commit(bench, 7)
    bench.disk.fail_next("write", errno.ENOSPC)
    with pytest.raises(StorageError):
        await commit(bench, 8)
    assert bench.broker.metadata.table.producer_id_next == 7
    assert bench.again().broker.metadata.table.producer_id_next == 7


@in_loop
async def test_commit_without_the_lock_is_a_defect() -> None:
    with pytest.raises(AssertionError):
        await Bench().broker.metadata.commit(producer_ids_entry(1))


@in_loop
async def test_snapshot_is_taken_after_so_many_entries_and_the_log_below_goes(
    three_per_snapshot: None,
) -> None:
    bench = Bench()
    for number in range(1, 5):
        await commit(bench, number)
    log = bench.broker.metadata.partition.log
    assert (log.start_offset, log.end_offset) == (3, 4)
    assert bench.disk.exists(SNAPSHOT)
    again = bench.again().broker.metadata
    assert again.table.producer_id_next == 4
    assert (again.partition.log.start_offset, again.partition.log.end_offset) == (3, 4)


@pytest.mark.parametrize("path", ["metadata-snapshot", f"{3:020}.log"])
def test_snapshot_that_the_disk_refuses_does_not_undo_the_entry(three_per_snapshot: None, path: str) -> None:
    @in_loop
    async def body() -> None:
        bench = Bench()
        await commit(bench, 1)
        await commit(bench, 2)
        bench.disk.fail_next("write" if "snap" in path else "create", errno.ENOSPC, path_contains=path)
        await bench.topic("t")
        assert bench.topics.find("t") is not None
        assert bench.again().topics.find("t") is not None
        await commit(bench.again(), 9)  # The next entry takes the snapshot.
        assert bench.disk.exists(SNAPSHOT)

    body()


def test_power_cut_at_any_step_of_a_snapshot_loses_no_entry(three_per_snapshot: None) -> None:
    @in_loop
    async def body() -> None:
        steps, finished = 0, False
        while not finished:
            steps += 1
            bench = Bench()
            await bench.topic("t")
            await commit(bench, 2)
            bench.disk.crash_at = bench.disk.operations + steps
            committed = 2
            try:
                await commit(bench, 3)
                finished, committed = not bench.disk.is_dark, 3
            except (PowerLoss, StorageError):
                pass
            bench.disk.crash(Random(steps))
            again = Bench(bench.disk)
            assert again.topics.find("t") is not None, steps
            assert again.broker.metadata.table.producer_id_next in (committed, 3), steps
        assert steps > 5

    body()


@in_loop
async def test_lost_snapshot_is_refused_rather_than_started_from_half_a_table(
    three_per_snapshot: None,
) -> None:
    bench = Bench()
    for number in range(1, 5):
        await commit(bench, number)
    bench.disk.flip_bit(SNAPSHOT, 40)
    with pytest.raises(CorruptDataError, match="snapshot"):
        bench.again()


@in_loop
async def test_lost_log_is_refused_as_well(three_per_snapshot: None) -> None:
    bench = Bench()
    for number in range(1, 5):
        await commit(bench, number)
    for name in bench.disk.list(f"{DATA}/__cluster_metadata-0"):
        bench.disk.unlink(f"{DATA}/__cluster_metadata-0/{name}")
    with pytest.raises(CorruptDataError):
        bench.again()


@in_loop
async def test_entry_of_an_unknown_type_stops_the_start() -> None:
    bench = Bench()
    await bench.core.append(bench.broker.metadata.partition, batch_of(b'{"type":"newer"}'))
    with pytest.raises(CorruptDataError, match="newer version"):
        bench.again()


@in_loop
async def test_empty_entry_stops_the_start() -> None:
    bench = Bench()
    builder = BatchBuilder()
    builder.add(None, None, timestamp_ms=0)
    await bench.core.append(bench.broker.metadata.partition, builder.build())
    with pytest.raises(CorruptDataError, match="empty"):
        bench.again()


@in_loop
async def test_records_are_read_in_chunks_from_the_middle_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_store, "READ_BYTES", 100)
    bench = Bench()
    partition = await bench.topic("t")
    for number in range(5):
        await bench.core.append(partition, batch_of(b"%d" % number, b"x" * 50))
    found = [(record.offset, record.value) for record in read_records(partition.log, Offset(3))]
    assert [offset for offset, _ in found] == [3, 4, 5, 6, 7, 8, 9]
    assert found[1] == (4, b"2")


@pytest.mark.parametrize("operation", ["rename", "sync_folder"])
@pytest.mark.parametrize("entries", [4, 6, 7])
def test_segments_the_disk_would_not_let_go_do_not_spoil_what_follows(
    three_per_snapshot: None, operation: Operation, entries: int
) -> None:
    @in_loop
    async def body() -> None:
        bench = Bench()
        for number in (1, 2):
            await commit(bench, number)
        bench.disk.fail_next(operation, path_contains="__cluster_metadata")
        for number in range(3, entries + 1):
            await commit(bench, number)
        bench.disk.kill()
        again = Bench(bench.disk)
        assert again.broker.metadata.table.producer_id_next == entries
        assert again.broker.metadata.partition.log.quarantined == []

    body()


@in_loop
async def test_a_log_lost_below_its_snapshot_is_refused(three_per_snapshot: None) -> None:
    bench = Bench()
    for number in range(1, 5):
        await commit(bench, number)
    bench.disk.kill()
    for name in bench.disk.list(f"{DATA}/__cluster_metadata-0"):
        bench.disk.unlink(f"{DATA}/__cluster_metadata-0/{name}")
    with pytest.raises(CorruptDataError, match="does not reach its start at 3"):
        Bench(bench.disk)
