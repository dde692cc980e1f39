"""Upkeep in the background: one partition's trouble is its own, and a clean stop waits for what is under way."""

import asyncio
import errno

import pytest

from anabranch.broker.topics.partition import Partition
from anabranch.broker.upkeep import housekeeping
from anabranch.broker.upkeep.housekeeping import Housekeeping
from anabranch.errors import StorageError
from anabranch.log.disk.checkpoint import read_checkpoint, read_offsets
from anabranch.values import Offset
from support.broker_bench import DATA, Bench, batch_of, in_loop, turn, worked_off
from support.workers import HeldWorkers

HOUR_MS = 3_600_000
POINTS = f"{DATA}/recovery-points"
STARTS = f"{DATA}/log-start-offsets"


async def filled(bench: Bench, name: str = "t", batches: int = 4, **overrides: str) -> Partition:
    """A topic whose every batch has a segment of its own."""
    partition = await bench.topic(name, segment_bytes="1024", **overrides)
    for _ in range(batches):
        await bench.core.append(partition, batch_of(b"x" * 1000))
    return partition


async def written_by_a_producer(bench: Bench, name: str = "t", batches: int = 4) -> Partition:
    """The same, by a producer with an id: there is something to keep of it."""
    partition = await filled(bench, name, 0)
    for sequence in range(batches):
        batch = batch_of(b"x" * 1000, producer_id=5, producer_epoch=0, base_sequence=sequence)
        await bench.core.append(partition, batch)
    return partition


def points_of(bench: Bench, partition: Partition) -> object:
    value, _ = read_checkpoint(bench.disk, POINTS)
    return value["points"].get(bench.broker.key_of(partition)) if value else None


@in_loop
async def test_checkpoint_writes_recovery_points_and_producers() -> None:
    bench = Bench()
    partition = await written_by_a_producer(bench)
    await bench.broker.housekeeping.checkpoint()
    assert points_of(bench, partition) == [4, 4, 4, 4]
    snapshot, _ = read_checkpoint(bench.disk, f"{DATA}/t-0/producers")
    assert snapshot["offset"] == 4


@in_loop
async def test_snapshot_of_producers_is_written_only_when_one_of_them_has_written() -> None:
    bench = Bench()
    partition = await filled(bench)
    await bench.broker.housekeeping.checkpoint()
    assert points_of(bench, partition) == [4, 4, 0, 4]
    assert not bench.disk.exists(f"{DATA}/t-0/producers")

    await bench.core.append(partition, batch_of(producer_id=5, producer_epoch=0, base_sequence=0))
    await bench.broker.housekeeping.checkpoint()
    snapshot = bench.disk.read(f"{DATA}/t-0/producers")
    await bench.core.append(partition, batch_of())
    await bench.broker.housekeeping.checkpoint()

    assert points_of(bench, partition) == [6, 6, 5, 6]
    assert bench.disk.read(f"{DATA}/t-0/producers") == snapshot


@in_loop
async def test_producers_that_expired_are_not_brought_back_by_the_snapshot() -> None:
    bench = Bench(producer_id_expiration_ms=1000)
    partition = await written_by_a_producer(bench)
    await bench.broker.housekeeping.checkpoint()
    bench.clock.advance(HOUR_MS)
    await bench.broker.housekeeping.retain()
    assert partition.producers.producers == {}
    await bench.broker.housekeeping.checkpoint()
    assert bench.again().topics.partition("t", 0).producers.producers == {}


@in_loop
async def test_much_that_was_written_is_checkpointed_before_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(housekeeping, "CHECKPOINT_BYTES", 3000)
    monkeypatch.setattr(housekeeping, "CHECKPOINT_BYTES_PER_PARTITION", 1)
    bench = Bench()
    upkeep = bench.broker.housekeeping
    await upkeep._checkpoint_if_due()  # A start that follows no clean stop begins with one.
    partition = await filled(bench, batches=2)
    await upkeep._checkpoint_if_due()
    assert points_of(bench, partition) is None
    for _ in range(2):
        await bench.core.append(partition, batch_of(b"x" * 1000))
    await upkeep._checkpoint_if_due()
    assert points_of(bench, partition) == [4, 4, 0, 4]


@in_loop
async def test_little_that_was_written_is_checkpointed_after_a_while() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    upkeep = bench.broker.housekeeping
    await upkeep._checkpoint_if_due()
    assert points_of(bench, partition) == [0, 0, 0, 0]
    await bench.core.append(partition, batch_of())
    for _ in range(housekeeping.CHECKPOINT_LOOKS_PER_TURN - 1):
        await upkeep._checkpoint_if_due()
    assert points_of(bench, partition) == [0, 0, 0, 0]
    await upkeep._checkpoint_if_due()
    assert points_of(bench, partition) == [1, 1, 0, 1]


@in_loop
async def test_points_of_lost_records_are_corrected_before_the_first_request() -> None:
    """Of records that were written and not synced yet: those that were safe keep their offsets."""
    bench = Bench(flush="os")
    partition = await bench.topic("t")
    for _ in range(3):
        bench.submit(partition, wait_safe=False)
        await turn()
    await bench.broker.housekeeping.checkpoint()
    assert points_of(bench, partition) == [0, 3, 0, 3]
    path = f"{DATA}/t-0/{0:020}.log"
    bench.disk.write(path, bench.disk.read(path)[:-1])

    again = bench.again()
    partition = again.topics.partition("t", 0)
    assert partition.log.end_offset == 2
    again.broker.start()
    try:
        assert points_of(again, partition) == [0, 2, 0, 2]
    finally:
        await again.broker.drain()


@in_loop
async def test_a_walk_over_many_partitions_lets_others_have_their_turn() -> None:
    bench = Bench()
    await bench.topic("t", partitions=3 * housekeeping.PARTITIONS_PER_TURN)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    for work in (bench.broker.housekeeping.checkpoint, bench.broker.housekeeping.retain):
        turns = 0
        await work()
        assert turns >= 3
    counting.cancel()


@in_loop
async def test_checkpoint_writes_nothing_when_nothing_has_grown() -> None:
    bench = Bench()
    await filled(bench)
    await bench.broker.housekeeping.checkpoint()
    before = bench.disk.operations
    await bench.broker.housekeeping.checkpoint()
    assert bench.disk.operations == before


@in_loop
async def test_checkpoint_of_others_goes_on_when_one_partition_cannot_be_saved() -> None:
    bench = Bench()
    bad, good = await written_by_a_producer(bench, "a"), await written_by_a_producer(bench, "b")
    bench.disk.fail_next("write", errno.ENOSPC, path_contains="a-0/producers", times=1)
    await bench.broker.housekeeping.checkpoint()
    assert points_of(bench, good) == [4, 4, 4, 4]
    assert bench.disk.exists(f"{DATA}/b-0/producers")
    assert not bench.disk.exists(f"{DATA}/a-0/producers")

    await bench.broker.housekeeping.checkpoint()  # Tried again, though the log did not grow.

    assert bad.snapshot_offset == 4


@in_loop
async def test_what_grows_while_a_checkpoint_is_written_is_in_the_next_one() -> None:
    bench = Bench()
    partition = await written_by_a_producer(bench)
    workers = bench.hold_upkeep()
    writing = asyncio.create_task(bench.broker.housekeeping.checkpoint())
    await turn()
    batch = batch_of(producer_id=5, producer_epoch=0, base_sequence=4)
    await bench.core.append(partition, batch)
    await worked_off(writing, workers)
    bench.broker.workers = bench.workers
    await bench.broker.housekeeping.checkpoint()
    assert points_of(bench, partition) == [5, 5, 5, 5]
    assert partition.snapshot_offset == 5


@in_loop
async def test_checkpoint_syncs_in_workers_only() -> None:
    bench = Bench()
    await filled(bench)
    workers = bench.hold_upkeep()
    syncs: list[str] = []
    sync_inode = bench.disk.sync_inode

    def noted(inode: object, path: str) -> None:
        syncs.append(path)
        sync_inode(inode, path)

    bench.disk.sync_inode = noted
    writing = asyncio.create_task(bench.broker.housekeeping.checkpoint())
    await turn()
    assert (syncs, len(workers.heavies)) == ([], 1)
    await worked_off(writing, workers)
    assert syncs


@in_loop
async def test_retention_drops_old_segments_with_their_files_and_keeps_the_start() -> None:
    bench = Bench()
    partition = await filled(bench, retention_ms="1000")
    bench.clock.advance(HOUR_MS)
    await bench.broker.housekeeping.retain()
    assert partition.log.start_offset == 4
    assert read_offsets(bench.disk, STARTS)[0][bench.broker.key_of(partition)] == 4
    assert [name for name in bench.disk.list(f"{DATA}/t-0") if name.endswith(".log")] == [f"{4:020}.log"]
    assert bench.again().topics.partition("t", 0).log.start_offset == 4


@in_loop
async def test_retention_leaves_what_is_young_alone() -> None:
    bench = Bench()
    partition = await filled(bench)
    await bench.broker.housekeeping.retain()
    assert (partition.log.start_offset, len(partition.log.segments)) == (0, 4)


@in_loop
async def test_retention_never_drops_what_is_not_safe_yet() -> None:
    bench = Bench(flush="always")
    partition = await filled(bench, retention_ms="1000")
    partition.high_watermark = Offset(2)
    bench.clock.advance(HOUR_MS)
    await bench.broker.housekeeping.retain()
    assert partition.log.start_offset == 2


@in_loop
async def test_retention_of_others_goes_on_when_one_log_is_fenced() -> None:
    bench = Bench(log_roll_ms=1000)
    fenced = await filled(bench, "a", retention_ms="1000")
    good = await filled(bench, "b", retention_ms="1000")
    bench.submit(fenced)
    bench.disk.fail_next("sync", path_contains="a-0")
    await turn()
    assert fenced.log.fenced
    bench.clock.advance(HOUR_MS)
    await bench.broker.housekeeping.retain()
    assert good.log.start_offset == 4


@in_loop
async def test_retention_of_others_goes_on_when_one_start_cannot_be_kept() -> None:
    bench = Bench()
    kept, good = await filled(bench, "a", retention_ms="1000"), await filled(bench, "b", retention_ms="1000")
    bench.clock.advance(HOUR_MS)
    bench.disk.fail_next("write", errno.ENOSPC, path_contains="log-start-offsets")
    await bench.broker.housekeeping.retain()
    assert (kept.log.start_offset, good.log.start_offset) == (0, 4)


@in_loop
async def test_retention_touches_no_file_of_a_topic_that_was_deleted_and_made_again() -> None:
    bench = Bench()
    await filled(bench, "a", retention_ms="1000")
    await filled(bench, "b", retention_ms="1000")
    workers = bench.hold_upkeep()
    bench.clock.advance(HOUR_MS)
    retaining = asyncio.create_task(bench.broker.housekeeping.retain())
    await turn()  # The start of `a` is being kept; the turn of `b` has yet to come.
    await bench.topics.delete("b")
    again = await bench.topic("b", segment_bytes="1024")
    await bench.core.append(again, batch_of(b"new"))
    files = bench.disk.list(f"{DATA}/b-0")
    await worked_off(retaining, workers)
    assert bench.disk.list(f"{DATA}/b-0") == files


@in_loop
async def test_deletion_waits_while_retention_deletes_files_of_the_topic() -> None:
    bench = Bench()
    await filled(bench, retention_ms="1000")
    workers = bench.hold_upkeep()
    bench.clock.advance(HOUR_MS)
    retaining = asyncio.create_task(bench.broker.housekeeping.retain())
    await turn()
    workers.run_heavy()  # The new start is durable; the files' turn comes.
    await turn()
    deleting = asyncio.create_task(bench.topics.delete("t"))
    await turn()
    assert not deleting.done()
    workers.run_heavy()
    await asyncio.gather(retaining, deleting)


@in_loop
async def test_partition_that_is_being_cleaned_has_its_turn_later() -> None:
    bench = Bench()
    partition = await filled(bench, retention_ms="1000")
    bench.clock.advance(HOUR_MS)
    async with partition.upkeep:
        await bench.broker.housekeeping.retain()
        assert partition.log.start_offset == 0
    await bench.broker.housekeeping.retain()
    assert partition.log.start_offset == 4


@in_loop
async def test_silent_producers_are_forgotten() -> None:
    bench = Bench(producer_id_expiration_ms=1000)
    partition = await bench.topic("t")
    await bench.core.append(partition, batch_of(producer_id=5, producer_epoch=0, base_sequence=0))
    bench.clock.advance(2000)
    await bench.broker.housekeeping.retain()
    assert not partition.producers.producers


@in_loop
async def test_deleted_records_stay_deleted_after_a_crash() -> None:
    bench = Bench()
    partition = await filled(bench)
    await bench.broker.kinds.of(partition).delete_before(partition, Offset(3))
    assert partition.log.start_offset == 3
    assert bench.again().topics.partition("t", 0).log.start_offset == 3


@in_loop
async def test_start_that_cannot_be_kept_does_not_move() -> None:
    bench = Bench()
    partition = await filled(bench)
    bench.disk.fail_next("write", errno.ENOSPC, path_contains="log-start-offsets")
    with pytest.raises(StorageError):
        await bench.broker.kinds.of(partition).delete_before(partition, Offset(3))
    assert partition.log.start_offset == 0


@in_loop
async def test_start_never_moves_back() -> None:
    bench = Bench()
    partition = await filled(bench)
    await bench.broker.kinds.of(partition).delete_before(partition, Offset(3))
    await bench.broker.kinds.of(partition).delete_before(partition, Offset(1))
    assert partition.log.start_offset == 3
    await bench.broker.start_offsets.keep(partition, Offset(1))
    assert read_offsets(bench.disk, STARTS)[0][bench.broker.key_of(partition)] == 3


@in_loop
async def test_starts_of_deleted_topics_are_not_kept() -> None:
    bench = Bench()
    gone, other = await filled(bench, "a"), await filled(bench, "b")
    await bench.broker.kinds.of(gone).delete_before(gone, Offset(1))
    await bench.topics.delete("a")
    await bench.broker.kinds.of(other).delete_before(other, Offset(1))
    assert list(read_offsets(bench.disk, STARTS)[0]) == [bench.broker.key_of(other)]


@in_loop
async def test_stop_waits_for_work_that_has_begun() -> None:
    bench = Bench()
    await filled(bench)
    housekeeping = bench.broker.housekeeping
    workers = bench.hold_upkeep()
    housekeeping._every(0, housekeeping.checkpoint)
    while not workers.heavies:
        await turn()
    stopping = asyncio.create_task(housekeeping.stop())
    await turn()
    assert not stopping.done()
    await worked_off(stopping, workers)
    assert read_checkpoint(bench.disk, POINTS).value is not None


@in_loop
async def test_work_that_fails_is_logged_and_its_next_turn_comes(caplog: pytest.LogCaptureFixture) -> None:
    housekeeping: Housekeeping = Bench().broker.housekeeping
    outcomes: list[Exception] = [OSError("disk"), ZeroDivisionError("defect")]
    enough = asyncio.Event()

    async def work() -> None:
        if outcomes:
            raise outcomes.pop(0)
        enough.set()

    housekeeping._every(0, work)
    await enough.wait()
    await housekeeping.stop()
    assert "will try again: disk" in caplog.text
    assert "this is a defect" in caplog.text


@in_loop
async def test_clean_stop_leaves_a_mark_that_the_next_start_takes_away() -> None:
    bench = Bench()
    await filled(bench)
    await bench.broker.close()
    assert bench.disk.exists(f"{DATA}/clean-shutdown")
    again = bench.again()
    assert again.broker.state.was_clean
    assert not bench.disk.exists(f"{DATA}/clean-shutdown")


@in_loop
async def test_log_that_cannot_be_closed_leaves_no_mark() -> None:
    bench = Bench()
    await filled(bench)
    bench.disk.fail_next("sync", path_contains="t-0")
    bench.submit(bench.topics.partition("t", 0))
    await turn()
    await bench.broker.close()
    assert not bench.disk.exists(f"{DATA}/clean-shutdown")


@in_loop
async def test_stop_fails_a_producer_whose_sync_never_came() -> None:
    bench = Bench(flush="always")
    partition = await filled(bench)
    bench.core.syncer._workers = HeldWorkers()
    answered = bench.submit(partition)
    await turn()
    partition.abandon(StorageError("The node stops."))
    assert isinstance(answered[0].error, StorageError)
