"""A topic's configs reach its logs, and a start reads no more of the producers' history than it must."""

import errno

import pytest

from anabranch.broker.topics.partition import Partition
from anabranch.broker.topics.partition_opener import PRODUCERS_FILE
from anabranch.log.disk.checkpoint import read_checkpoint
from anabranch.record.batch import BatchHeader
from anabranch.record.producer_table import ProducerTable
from anabranch.values import Offset
from support.broker_bench import DATA, Bench, batch_of, in_loop, turn


@in_loop
async def test_segment_rolls_when_its_index_has_the_size_the_topic_allows() -> None:
    bench = Bench()
    partition = await bench.topic("t", index_interval_bytes="1", segment_index_bytes="24")
    for _ in range(10):
        bench.submit(partition)
        await turn()
    assert partition.log.end_offset == 10
    assert len(partition.log.segments) > 2


async def with_a_producer(bench: Bench) -> None:
    """A producer with an id, then two records of others that a checkpoint knows of."""
    partition = await bench.topic("t")
    await bench.core.append(partition, batch_of(producer_id=5, producer_epoch=0, base_sequence=0))
    await bench.broker.housekeeping.checkpoint()
    for _ in range(2):
        await bench.core.append(partition, batch_of())
    await bench.broker.housekeeping.checkpoint()


def headers_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> tuple[Partition, list[int]]:
    """The partition after a restart, and the offsets whose headers that has read."""
    read: list[int] = []
    replay = ProducerTable.replay

    def noted(table: ProducerTable, header: BatchHeader, now_ms: int) -> None:
        read.append(header.base_offset)
        replay(table, header, now_ms)

    monkeypatch.setattr(ProducerTable, "replay", noted)
    partition = bench.again().topics.partition("t", 0)
    return partition, read


@in_loop
async def test_headers_below_the_recovery_point_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    await with_a_producer(bench)
    await bench.core.append(bench.topics.partition("t", 0), batch_of())
    partition, read = headers_read(bench, monkeypatch)
    assert (list(partition.producers.producers), read) == ([5], [3])


@in_loop
async def test_a_snapshot_other_than_the_one_the_recovery_point_speaks_of_is_no_shortcut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    await with_a_producer(bench)
    bench.disk.unlink(f"{DATA}/t-0/{PRODUCERS_FILE}")
    partition, read = headers_read(bench, monkeypatch)
    assert (list(partition.producers.producers), read) == ([5], [0, 1, 2])


@in_loop
async def test_an_unreadable_snapshot_is_written_anew() -> None:
    bench = Bench()
    await with_a_producer(bench)
    bench.disk.write(f"{DATA}/t-0/{PRODUCERS_FILE}", b"garbled")
    again = bench.again()
    await again.broker.housekeeping.checkpoint()
    snapshot, _ = read_checkpoint(again.disk, f"{DATA}/t-0/{PRODUCERS_FILE}")
    assert [row[0] for row in snapshot["producers"]] == [5]


@in_loop
async def test_a_snapshot_older_than_the_start_of_the_log_holds_while_nobody_has_written_since() -> None:
    bench = Bench()
    await with_a_producer(bench)
    await bench.broker.kinds.of(bench.topics.partition("t", 0)).delete_before(
        bench.topics.partition("t", 0), Offset(2)
    )
    partition = bench.again().topics.partition("t", 0)
    assert (partition.log.start_offset, list(partition.producers.producers)) == (2, [5])


@in_loop
async def test_a_log_that_has_lost_its_end_goes_on_where_it_was_safe_and_the_loss_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    partition = await bench.topic("t")
    for _ in range(6):
        await bench.core.append(partition, batch_of())
    await bench.broker.housekeeping.checkpoint()
    path = partition.log.segments[-1].file.path
    bench.disk.write(path, bench.disk.read(path)[: partition.log.size_bytes // 2])
    again = bench.again()
    partition = again.topics.partition("t", 0)
    assert (partition.log.end_offset, partition.high_watermark) == (6, 6)
    assert again.broker.opener.losses_total > 0
    assert "ends at 3, and was safe up to 6" in caplog.text
    await again.core.append(partition, batch_of())
    assert partition.log.end_offset == 7


@in_loop
async def test_a_first_segment_that_is_gone_is_said_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    partition = await bench.topic("t")
    for _ in range(3):
        await bench.core.append(partition, batch_of())
        partition.log.roll()
    await bench.broker.kinds.of(partition).delete_before(partition, partition.log.segments[1].base_offset)
    log = partition.log
    log.delete_files(log.drop(log.segments[:1]))
    await bench.broker.housekeeping.checkpoint()
    second = bench.again()
    assert second.broker.opener.losses_total == 0
    log = second.topics.partition("t", 0).log
    second.disk.unlink(log.segments[0].file.path)
    begins = log.segments[1].base_offset
    assert second.again().broker.opener.losses_total == 1
    assert f"begins at {begins}, and began at {log.start_offset} before" in caplog.text


async def killed_before_a_sync(**settings: str) -> Bench:
    """A node in its second life, and nothing of what it found was ever synced."""
    bench = Bench(**settings)
    await bench.topic("t")
    bench.submit(bench.topics.partition("t", 0), wait_safe=False)
    bench.disk.fail_next("sync", errno.EIO, path_contains="t-0/")
    await turn()
    bench.disk.forget_faults()
    return bench.again()


@in_loop
async def test_what_recovery_found_is_synced_before_it_is_shown() -> None:
    bench = await killed_before_a_sync()
    assert bench.topics.partition("t", 0).log.is_synced


@in_loop
async def test_where_records_are_shown_before_a_sync_a_start_does_not_wait_for_it() -> None:
    bench = await killed_before_a_sync(flush="os")
    log = bench.topics.partition("t", 0).log
    assert (log.end_offset, log.is_synced) == (1, False)
    bench.broker.start()
    try:
        assert log.is_synced
    finally:
        await bench.broker.drain()


@in_loop
async def test_damage_in_what_is_replayed_costs_its_own_producers_and_not_the_start() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    ends = []
    for number in range(5):
        batch = batch_of(producer_id=number, producer_epoch=0, base_sequence=0)
        await bench.core.append(partition, batch)
        ends.append(partition.log.size_bytes)
    await bench.broker.housekeeping.checkpoint()
    bench.disk.unlink(f"{DATA}/t-0/{PRODUCERS_FILE}")
    bench.disk.flip_bit(f"{DATA}/t-0/{0:020d}.log", ends[1] + 16)
    partition = bench.again().topics.partition("t", 0)
    assert (partition.log.end_offset, sorted(partition.producers.producers)) == (5, [0, 1, 3, 4])
