"""One partition: what is written together, who is answered when, and what a refusing disk leaves behind."""

import errno

import pytest

from anabranch.broker.topics.partition import Partition
from anabranch.errors import FencedLogError, NotOwnerError, OutOfOrderSequenceError, StorageError
from anabranch.record.batch import read_header
from support.broker_bench import Bench, batch_of, in_loop, turn
from support.workers import HeldWorkers, InlineWorkers


def sequenced(sequence: int, *values: bytes, epoch: int = 0) -> bytearray:
    return batch_of(*values, producer_id=7, producer_epoch=epoch, base_sequence=sequence)


async def syncing() -> tuple[Bench, Partition, HeldWorkers]:
    """A broker that answers after the sync, which waits for the test."""
    bench = Bench(flush="always")
    partition = await bench.topic("t")
    workers = HeldWorkers()
    bench.core.syncer._workers = workers
    return bench, partition, workers


@in_loop
async def test_jobs_of_one_turn_share_one_write_and_get_offsets_in_order() -> None:
    bench = Bench(flush="interval")
    partition = await bench.topic("t")
    before = bench.disk.operations
    first = bench.submit(partition, batch_of(b"a", b"b"))
    second = bench.submit(partition, batch_of(b"c"))
    await turn()
    assert bench.disk.operations == before + 1
    assert (first[0].base_offset, second[0].base_offset, partition.high_watermark) == (0, 2, 3)


@in_loop
async def test_batches_are_stamped_with_offset_and_generation() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    bench.submit(partition, batch_of(b"a", b"b"))
    bench.submit(partition, batch_of(b"c"))
    await turn()
    headers = list(partition.log.batch_headers(partition.log.start_offset))
    assert [(header.base_offset, header.generation) for header in headers] == [(0, 0), (2, 0)]


@in_loop
async def test_acks_one_is_answered_when_written_and_acks_all_when_synced() -> None:
    bench, partition, workers = await syncing()
    one = bench.submit(partition, wait_safe=False)
    every = bench.submit(partition)
    await turn()
    assert (len(one), len(every), partition.high_watermark) == (1, 0, 0)
    workers.run_sync()
    assert (len(every), every[0].base_offset, partition.high_watermark) == (1, 1, 2)


@in_loop
async def test_high_watermark_follows_the_sync_and_not_the_append() -> None:
    bench, partition, workers = await syncing()
    bench.submit(partition)
    await turn()
    bench.submit(partition)
    await turn()
    assert (partition.log.end_offset, partition.high_watermark) == (2, 0)
    workers.run_sync()  # It began when one record was there, but reads the end when it runs.
    assert partition.high_watermark == 2


@in_loop
async def test_repeat_is_answered_with_the_first_offset_and_not_written_again() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    bench.submit(partition, sequenced(0, b"a"))
    bench.submit(partition, sequenced(1, b"b"))
    await turn()
    again = bench.submit(partition, sequenced(0, b"a"))
    await turn()
    assert (again[0].error, again[0].base_offset, partition.log.end_offset) == (None, 0, 2)


@in_loop
async def test_repeat_within_one_turn_is_written_once() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    first, again = bench.submit(partition, sequenced(0)), bench.submit(partition, sequenced(0))
    await turn()
    assert (first[0].base_offset, again[0].base_offset, partition.log.end_offset) == (0, 0, 1)


@in_loop
async def test_repeat_waits_until_its_original_is_safe() -> None:
    bench, partition, workers = await syncing()
    original = bench.submit(partition, sequenced(0))
    await turn()
    again = bench.submit(partition, sequenced(0))
    await turn()
    assert (original, again) == ([], [])
    workers.run_sync()
    assert (original[0].base_offset, again[0].base_offset) == (0, 0)


@in_loop
async def test_gap_fails_its_own_job_only() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    good = bench.submit(partition, sequenced(0))
    gap = bench.submit(partition, sequenced(5))
    plain = bench.submit(partition)
    await turn()
    assert isinstance(gap[0].error, OutOfOrderSequenceError)
    assert (good[0].base_offset, plain[0].base_offset, partition.log.end_offset) == (0, 1, 2)


@in_loop
async def test_refusing_disk_keeps_nothing_and_the_same_batches_may_come_again() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    bench.disk.fail_next("write", errno.ENOSPC, path_contains="t-0")
    failed = [
        bench.submit(partition, sequenced(0)),
        bench.submit(partition, sequenced(1)),
        bench.submit(partition),
    ]
    await turn()
    assert all(isinstance(answered[0].error, StorageError) for answered in failed)
    assert (partition.log.end_offset, partition.high_watermark, bench.core.queue.bytes_held) == (0, 0, 0)

    again = [bench.submit(partition, sequenced(0)), bench.submit(partition, sequenced(1))]
    await turn()
    assert [answered[0].base_offset for answered in again] == [0, 1]


@in_loop
async def test_repeat_of_a_batch_that_the_disk_refuses_fails_with_it() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    bench.disk.fail_next("write", path_contains="t-0")
    original, again = bench.submit(partition, sequenced(0)), bench.submit(partition, sequenced(0))
    await turn()
    assert isinstance(original[0].error, StorageError)
    assert isinstance(again[0].error, StorageError)


@in_loop
async def test_failed_sync_fails_who_waited_and_publishes_nothing() -> None:
    bench, partition, workers = await syncing()
    answered = bench.submit(partition)
    await turn()
    bench.disk.fail_next("sync", path_contains="t-0")
    workers.run_sync()
    assert isinstance(answered[0].error, FencedLogError)
    assert (partition.high_watermark, bench.core.queue.bytes_held) == (0, 0)
    with pytest.raises(FencedLogError):
        partition.check_writable()


async def syncing_here() -> tuple[Bench, Partition]:
    """A broker whose disk has proven to be fast, and whose workers never get to run."""
    bench, partition, workers = await syncing()
    while not bench.core.syncer.place.is_disk_fast:
        bench.submit(partition)
        await turn()
        workers.run_sync()
    return bench, partition


@in_loop
async def test_lone_producer_on_a_fast_disk_is_answered_in_the_turn_that_wrote_and_synced() -> None:
    bench, partition = await syncing_here()
    synced: list[int] = []
    bench.disk.wait_before("sync", lambda: synced.append(len(answered)))
    answered = bench.submit(partition)
    bench.core.turn()
    assert (synced, len(answered), answered[0].error) == ([0], 1, None)
    assert partition.log.synced_offset == partition.high_watermark == answered[0].end_offset


@in_loop
async def test_other_answers_leave_before_a_sync_holds_up_the_loop() -> None:
    bench, partition = await syncing_here()
    events: list[str] = []
    bench.core.send_answers = lambda: events.append("answers")
    bench.disk.wait_before("sync", lambda: events.append("sync"))
    bench.submit(partition)
    bench.core.turn()
    assert events == ["answers", "sync", "answers"]


@in_loop
async def test_worker_begins_to_sync_before_the_answers_leave() -> None:
    bench, partition, workers = await syncing()
    begun: list[int] = []
    bench.core.send_answers = lambda: begun.append(len(workers.syncs))
    bench.submit(partition)
    bench.core.turn()
    assert begun == [1]


@in_loop
async def test_sync_that_fails_on_the_loop_fails_who_waited_and_fences_the_log() -> None:
    bench, partition = await syncing_here()
    safe = partition.high_watermark
    bench.disk.fail_next("sync", path_contains="t-0")
    answered = [bench.submit(partition), bench.submit(partition)]
    bench.core.turn()
    assert all(isinstance(jobs[0].error, FencedLogError) for jobs in answered)
    assert (partition.high_watermark, bench.core.queue.bytes_held) == (safe, 0)
    with pytest.raises(FencedLogError):
        partition.check_writable()


@in_loop
async def test_acks_one_alone_is_synced_by_a_worker_even_on_a_fast_disk() -> None:
    bench, partition = await syncing_here()
    before = partition.log.synced_offset
    bench.submit(partition, wait_safe=False)
    bench.core.turn()
    assert (partition.log.synced_offset, bench.core.syncer.is_idle) == (before, False)


@in_loop
async def test_repeat_queued_before_a_failed_sync_is_refused_rather_than_kept_waiting() -> None:
    bench, partition, workers = await syncing()
    bench.submit(partition, sequenced(0))
    await turn()
    bench.disk.fail_next("sync", path_contains="t-0")
    again = bench.submit(partition, sequenced(0))
    workers.run_sync()
    await turn()
    assert isinstance(again[0].error, FencedLogError)


@in_loop
async def test_abandoned_partition_fails_who_waits_and_who_comes_later() -> None:
    bench, partition, workers = await syncing()
    waiting = bench.submit(partition)
    await turn()
    partition.abandon(NotOwnerError("gone"))
    assert isinstance(waiting[0].error, NotOwnerError)
    assert partition.is_gone
    later = bench.submit(partition)
    await turn()
    assert isinstance(later[0].error, NotOwnerError)
    workers.run_sync()  # A sync that ends after all is over answers nobody a second time.
    assert len(waiting) == 1


@in_loop
async def test_defect_in_the_log_undoes_producers_and_answers_every_job() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    other = await bench.topic("u")
    append = partition.log.append

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    partition.log.append = broken
    failed, fine = bench.submit(partition, sequenced(0)), bench.submit(other)
    await turn()
    assert isinstance(failed[0].error, StorageError)
    assert fine[0].error is None, "one partition's defect cost another one its answer"
    partition.log.append = append
    again = bench.submit(partition, sequenced(0))
    await turn()
    assert again[0].base_offset == 0


@in_loop
async def test_batch_is_let_go_once_it_is_written() -> None:
    bench, partition, _workers = await syncing()
    job, answered = bench.job(partition)
    bench.core.submit(job)
    await turn()
    assert job.batch is None
    assert not answered


@in_loop
async def test_producers_are_known_again_after_a_restart() -> None:
    bench = Bench(workers=InlineWorkers())
    partition = await bench.topic("t")
    bench.submit(partition, sequenced(0, b"a", b"b"))
    await turn()
    again = bench.again()
    repeat = again.submit(again.topics.partition("t", 0), sequenced(0, b"a", b"b"))
    await turn()
    assert (repeat[0].base_offset, read_header(sequenced(0, b"a", b"b")).last_sequence) == (0, 1)
    assert again.topics.partition("t", 0).log.end_offset == 2
