"""Where clients are told that a branch topic ends, while nothing was written to its newest lane."""

from anabranch.broker.branch.partition import BranchPartition
from anabranch.modes.branch.rows import Lane, first_offset
from support.broker_bench import Bench, batch_of, in_loop, turn

SECOND = first_offset(Lane(1024))


async def made() -> tuple[Bench, BranchPartition]:
    bench = Bench(flush="always")
    partition = await bench.topic(anabranch_mode="branch")
    assert isinstance(partition, BranchPartition)
    return bench, partition


def found(bench: Bench) -> BranchPartition:
    partition = bench.topics.partition("t", 0)
    assert isinstance(partition, BranchPartition)
    return partition


@in_loop
async def test_whoever_has_read_everything_is_at_the_end_after_a_restart() -> None:
    """A client that reads until its position is the high watermark would wait for ever otherwise."""
    bench, partition = await made()
    bench.submit(partition, batch_of(b"a", b"b"))
    await turn()
    again = bench.again().again()
    assert found(again).reign == 2048
    assert found(again).readable_end == 2
    bench_answers = again.submit(found(again), batch_of(b"c"))
    await turn()
    assert bench_answers[0].base_offset == first_offset(Lane(2048))
    assert found(again).readable_end == first_offset(Lane(2048)) + 1


@in_loop
async def test_a_topic_without_records_begins_and_ends_at_the_same_offset_after_a_restart() -> None:
    bench, partition = await made()
    assert (partition.log.start_offset, partition.readable_end) == (0, 0)
    again = found(bench.again())
    assert (again.log.start_offset, again.readable_end) == (0, 0)


@in_loop
async def test_what_was_removed_up_to_the_end_leaves_nothing_to_read() -> None:
    bench, partition = await made()
    bench.submit(partition, batch_of(b"a", b"b"))
    await turn()
    await bench.broker.kinds.of(partition).delete_before(partition, partition.high_watermark)
    assert (partition.log.start_offset, partition.readable_end) == (2, 2)
    again = found(bench.again())
    assert (again.log.start_offset, again.readable_end) == (2, 2), "whoever stands at 2 is not sent elsewhere"
