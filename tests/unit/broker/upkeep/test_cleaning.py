"""Compaction in the background: one log at a time, and none holds up the others."""

import asyncio
import errno

from dirty_topic import dirty, offsets_of

from anabranch.log.disk.checkpoint import read_offsets
from support.broker_bench import DATA, Bench, in_loop, turn, worked_off
from support.workers import HeldWorkers


@in_loop
async def test_older_values_of_a_key_go_and_the_newest_stays() -> None:
    bench = Bench()
    partition = await dirty(bench)
    await bench.broker.housekeeping.cleaning.clean_all()
    assert offsets_of(partition)[-1] == 5
    assert len(offsets_of(partition)) < 6
    assert bench.broker.housekeeping.cleaning.runs_total == 1
    left = offsets_of(partition)
    assert offsets_of(bench.again().topics.partition("t", 0)) == left


@in_loop
async def test_how_far_a_log_is_clean_is_remembered() -> None:
    bench = Bench()
    partition = await dirty(bench)
    await bench.broker.housekeeping.cleaning.clean_all()
    kept, _ = read_offsets(bench.disk, f"{DATA}/cleaner-offsets")
    assert kept[bench.broker.key_of(partition)] > 0
    runs = bench.broker.housekeeping.cleaning.runs_total
    await bench.broker.housekeeping.cleaning.clean_all()
    assert bench.broker.housekeeping.cleaning.runs_total == runs


@in_loop
async def test_what_may_still_be_withdrawn_takes_the_place_of_nothing() -> None:
    bench = Bench()
    partition = await dirty(bench)
    partition.high_watermark = 1
    await bench.broker.housekeeping.cleaning.clean_all()
    assert len(offsets_of(partition)) == 6
    partition.high_watermark = partition.log.end_offset
    await bench.broker.housekeeping.cleaning.clean_all()
    assert len(offsets_of(partition)) < 6


@in_loop
async def test_topic_that_is_not_compacted_is_left_alone() -> None:
    bench = Bench()
    partition = await dirty(bench)
    await bench.topics.alter("t", lambda state: {"segment.bytes": "1024"})
    await bench.broker.housekeeping.cleaning.clean_all()
    assert len(offsets_of(partition)) == 6


@in_loop
async def test_full_disk_holds_up_one_log_and_not_the_others() -> None:
    bench = Bench()
    full, fine = await dirty(bench, "a", rounds=8), await dirty(bench, "b")
    bench.disk.fail_next("create", errno.ENOSPC, path_contains="a-0")
    await bench.broker.housekeeping.cleaning.clean_all()
    assert (len(offsets_of(full)), len(offsets_of(fine)) < 6) == (8, True)
    await bench.broker.housekeeping.cleaning.clean_all()
    assert len(offsets_of(full)) < 8


@in_loop
async def test_log_with_a_bad_batch_is_left_alone_and_reported_once() -> None:
    bench = Bench()
    await dirty(bench)
    await bench.broker.close()
    bench.disk.flip_bit(f"{DATA}/t-0/{1:020}.log", 500)
    again = bench.again()
    for _ in range(2):
        await again.broker.housekeeping.cleaning.clean_all()
    assert again.broker.corrupt_reads_total == 1
    assert again.broker.housekeeping.cleaning.runs_total == 0


@in_loop
async def test_topic_deleted_and_made_again_while_it_is_cleaned_keeps_its_new_files() -> None:
    bench = Bench()
    await dirty(bench)
    workers = HeldWorkers()
    bench.broker.workers = workers
    cleaning = asyncio.create_task(bench.broker.housekeeping.cleaning.clean_all())
    await turn()  # Keys are being mapped.
    await bench.topics.delete("t")
    again = await dirty(bench, rounds=2)
    files = bench.disk.list(f"{DATA}/t-0")
    await worked_off(cleaning, workers)
    assert bench.disk.list(f"{DATA}/t-0") == files
    assert offsets_of(again) == [0, 1]


@in_loop
async def test_stop_ends_cleaning_between_two_steps() -> None:
    bench = Bench()
    partition = await dirty(bench)
    workers = HeldWorkers()
    bench.broker.workers = workers
    housekeeping = bench.broker.housekeeping
    cleaning = asyncio.create_task(housekeeping.cleaning.clean_all())
    await turn()
    await housekeeping.stop()
    await worked_off(cleaning, workers)
    assert len(offsets_of(partition)) == 6


@in_loop
async def test_scrubbing_finds_what_has_rotted_and_says_it_once() -> None:
    bench = Bench(scrub_bytes_per_second=10_000_000)
    await dirty(bench)
    await bench.broker.close()
    bench.disk.flip_bit(f"{DATA}/t-0/{1:020}.log", 500)
    again = bench.again()
    for _ in range(30):
        again.clock.advance(1000)
        await again.broker.housekeeping.scrubbing.scrub()
    assert again.broker.housekeeping.scrubbing.damaged_total == 1
    assert again.broker.housekeeping.scrubbing.bytes_total > 3000


@in_loop
async def test_topic_that_goes_while_it_is_scrubbed_is_no_damage() -> None:
    bench = Bench(scrub_bytes_per_second=10_000_000)
    await dirty(bench, "a")
    await dirty(bench, "b")
    workers = HeldWorkers()
    bench.broker.workers = workers
    bench.clock.advance(1000)
    scrubbing = asyncio.create_task(bench.broker.housekeeping.scrubbing.scrub())
    await turn()
    await bench.topics.delete("a")
    await bench.topics.delete("b")
    await worked_off(scrubbing, workers)
    assert bench.broker.housekeeping.scrubbing.damaged_total == 0
