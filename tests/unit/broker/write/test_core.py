"""The single writer: bytes are counted until they are answered, and nobody's defect hangs another."""

import asyncio

import pytest

from anabranch.broker.write.append_queue import AppendJob, AppendQueue
from anabranch.errors import StorageError
from anabranch.record.batch import read_header
from anabranch.testing.in_process_client import InProcessClient
from anabranch.wire.api_keys import ApiKey
from support.broker_bench import Bench, batch_of, in_loop, turn


@in_loop
async def test_internal_append_says_the_base_offset() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    assert [await bench.core.append(partition, batch_of(b"a", b"b")) for _ in range(2)] == [0, 2]


@in_loop
async def test_internal_append_raises_what_the_disk_says() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    bench.disk.fail_next("write", path_contains="t-0")
    with pytest.raises(StorageError):
        await bench.core.append(partition, batch_of())


@in_loop
async def test_cancelled_internal_append_is_written_and_told_to_nobody() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    bench.core.append(partition, batch_of()).cancel()
    await turn()
    assert (partition.log.end_offset, bench.core.queue.bytes_held) == (1, 0)


@in_loop
async def test_turn_that_a_socket_begins_takes_the_place_of_one_that_is_due() -> None:
    bench = Bench()
    core, turns = bench.core, 0

    def send_answers() -> None:
        nonlocal turns
        turns += 1
        if turns < 20:
            core.another_turn()

    core.send_answers = send_answers
    core.another_turn()
    for _ in range(3):
        core.turn()
    assert turns == 3
    await asyncio.sleep(0)
    assert turns == 4, "one turn in each round of the loop, or sockets wait for many"


@in_loop
async def test_turns_that_nobody_outside_began_are_not_counted() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    before = bench.core.syncer.place.turns
    bench.submit(partition)
    await turn()
    assert bench.core.syncer.place.turns == before
    bench.core.turn()
    assert bench.core.syncer.place.turns == before + 1


@in_loop
async def test_loop_is_awaited_while_a_request_is_answered_by_a_coroutine() -> None:
    bench = Bench()
    await bench.topic("t")
    assert not bench.core.is_loop_awaited
    body = {"topics": [{"name": "t"}], "allow_auto_topic_creation": False}
    pending = InProcessClient(bench.broker).send(ApiKey.METADATA, 9, body)
    assert not pending.is_settled
    assert bench.core.is_loop_awaited
    await turn()
    assert pending.is_settled
    assert not bench.core.is_loop_awaited


@in_loop
async def test_counts_only_bytes_that_were_kept() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    before, batches = bench.core.bytes_in_total, bench.core.batches_total
    batch = batch_of(b"x")
    bench.submit(partition, bytearray(batch))
    await turn()
    bench.disk.fail_next("write", path_contains="t-0")
    bench.submit(partition, bytearray(batch))
    await turn()
    assert bench.core.bytes_in_total - before == len(batch)
    assert bench.core.batches_total - batches == 2


@in_loop
async def test_stalled_are_called_once_when_the_queue_is_half_empty() -> None:
    bench = Bench(append_queue_bytes_max=2**20)
    partition = await bench.topic("t")
    calls: list[int] = []

    def resume() -> None:
        calls.append(bench.core.queue.bytes_held)

    for _ in range(3):
        bench.submit(partition, batch_of(b"x" * 400_000))
    assert bench.core.queue.is_full
    bench.core.when_relaxed(resume)
    bench.core.when_relaxed(resume)
    await turn()
    assert calls == [0]


@in_loop
async def test_who_cannot_be_answered_does_not_keep_others_from_their_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    partition = await bench.topic("t")

    def broken(job: AppendJob) -> None:
        raise ZeroDivisionError

    batch = batch_of()
    bench.core.submit(AppendJob(partition, batch, read_header(batch), broken, wait_safe=True))
    answered = bench.submit(partition)
    await turn()
    assert answered[0].base_offset == 1
    assert bench.core.queue.bytes_held == 0
    assert "could not be answered" in caplog.text


@in_loop
async def test_job_is_answered_once_only() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    job, _ = bench.job(partition)
    bench.core.submit(job)
    await turn()
    with pytest.raises(AssertionError, match="answered twice"):
        bench.core.finish(job)


@in_loop
async def test_unsynced_partitions_are_synced_once_asked_and_then_rest() -> None:
    bench = Bench(flush="interval")
    partition = await bench.topic("t")
    await bench.core.append(partition, batch_of())
    assert partition.log.synced_offset == 0
    bench.core.sync_unsynced()
    assert partition.log.synced_offset == 1
    syncs = bench.core.syncer.syncs_total
    bench.core.sync_unsynced()
    assert bench.core.syncer.syncs_total == syncs


@in_loop
async def test_deleted_partition_is_not_synced_any_more() -> None:
    bench = Bench(flush="interval")
    partition = await bench.topic("t")
    await bench.core.append(partition, batch_of())
    await bench.topics.delete("t")
    bench.submit(partition)
    await turn()
    syncs = bench.core.syncer.syncs_total
    bench.core.sync_unsynced()
    assert bench.core.syncer.syncs_total == syncs


@in_loop
async def test_readers_of_a_published_partition_are_woken_once_per_turn() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    woken: list[bool] = []

    def retry(final: bool) -> bool:
        woken.append(final)
        return len(woken) == 2

    bench.core.fetch_waits.wait(retry, [partition], 60_000)
    bench.submit(partition)
    bench.submit(partition)
    await turn()
    assert woken == [False]
    assert partition.waiting_fetches
    bench.submit(partition)
    await turn()
    assert woken == [False, False]
    assert not partition.waiting_fetches


def test_queue_counts_bytes_from_put_to_release() -> None:
    @in_loop
    async def body() -> None:
        bench = Bench()
        partition = await bench.topic("t")
        batch = batch_of(b"x" * 100)
        queue = AppendQueue(2 * len(batch))
        jobs = [bench.job(partition, bytearray(batch))[0] for _ in range(2)]
        assert not queue
        queue.put(jobs[0])
        assert (queue.is_full, queue.is_relaxed) == (False, True)
        queue.put(jobs[1])
        assert (bool(queue), queue.is_full, queue.is_relaxed) == (True, True, False)
        assert queue.take_all() == {partition: jobs}
        assert (bool(queue), queue.is_full) == (False, True)
        queue.release(jobs[0].size)
        assert (queue.is_full, queue.is_relaxed) == (False, True)
        queue.release(jobs[1].size)
        with pytest.raises(AssertionError, match="released twice"):
            queue.release(jobs[1].size)

    body()


def test_queue_groups_jobs_by_partition_in_order_of_arrival() -> None:
    @in_loop
    async def body() -> None:
        bench = Bench()
        first = await bench.topic("t", 2)
        second = bench.topics.partition("t", 1)
        queue = AppendQueue(1000)
        jobs = [bench.job(each)[0] for each in (second, first, second)]
        for job in jobs:
            queue.put(job)
        assert list(queue.take_all().items()) == [(second, [jobs[0], jobs[2]]), (first, [jobs[1]])]

    body()
