"""A topic's configs reach its logs."""

from support.broker_bench import Bench, in_loop, turn


@in_loop
async def test_segment_rolls_when_its_index_has_the_size_the_topic_allows() -> None:
    bench = Bench()
    partition = await bench.topic("t", index_interval_bytes="1", segment_index_bytes="24")
    for _ in range(10):
        bench.submit(partition)
        await turn()
    assert partition.log.end_offset == 10
    assert len(partition.log.segments) > 2
