"""A topic with something to compact, and which of its records are left."""

from anabranch.broker.metadata.metadata_log import read_records
from anabranch.broker.topics.partition import Partition
from anabranch.record.builder import BatchBuilder
from support.broker_bench import Bench


async def dirty(bench: Bench, name: str = "t", rounds: int = 6) -> Partition:
    """A compacted topic in which one key is written again and again, each time into a segment of its own."""
    partition = await bench.topic(name, cleanup_policy="compact", segment_bytes="1024")
    for number in range(rounds):
        builder = BatchBuilder()
        builder.add(b"key", b"%d" % number + b"x" * 900, timestamp_ms=bench.clock.wall_ms())
        await bench.core.append(partition, builder.build())
    return partition


def offsets_of(partition: Partition) -> list[int]:
    return [record.offset for record in read_records(partition.log, partition.log.start_offset)]
