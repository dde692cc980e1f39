"""OffsetForLeaderEpoch, versions 2 to 4: where a generation ended, so that a client can tell whether it read
something that is no longer there. A partition that one broker keeps has one generation. Only the leader answers.
"""

from typing import TYPE_CHECKING, Any

from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.broker.requests.turns import Rows
from anabranch.broker.topics.partition import Partition
from anabranch.errors import AnabranchError
from anabranch.values import Generation

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

NOTHING_CUT = 2**63 - 1
UNKNOWN = (-1, -1)


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> Rows:
    topics = []
    for topic in request["topics"]:
        rows = []
        for asked in topic["partitions"]:
            rows.append(_row(broker, topic["topic"], asked))
            yield
        topics.append({"topic": topic["topic"], "partitions": rows})
    return {"topics": topics}


def _row(broker: "Broker", name: str, asked: dict[str, Any]) -> dict[str, Any]:
    index = asked["partition"]
    try:
        partition = broker.topics.readable_partition(name, index)
        partition.check_leader()
        broker.check_generation(partition, asked["current_leader_epoch"])
    except AnabranchError as error:
        return {"partition": index, "error_code": code_of(error)}
    generation, end_offset = _end_of(partition, asked["leader_epoch"])
    if partition.is_branch and _is_of_before(broker, partition, asked["leader_epoch"]):
        generation, end_offset = asked["leader_epoch"], NOTHING_CUT
    return {"partition": index, "error_code": 0, "leader_epoch": generation, "end_offset": end_offset}


def _is_of_before(broker: "Broker", partition: Partition, generation: int) -> bool:
    """It was read before there were branches of this topic, and none of that was ever cut."""
    topic = broker.metadata.table.topics_by_id.get(partition.topic_id)
    known = broker.leaders.of(topic.topic_id, partition.id.partition).generation if topic is not None else -1
    return 0 <= generation <= known


def _end_of(partition: Partition, generation: int) -> tuple[int, int]:
    """Of a generation that is not known, the one before; nothing is known of one that is still to come."""
    if partition.ring is None:
        # Whatever was before it in the store, or has gone over to it, was never cut.
        is_ours = generation == partition.generation or (
            partition.is_object and 0 <= generation < partition.generation
        )
        return (generation, partition.high_watermark) if is_ours else UNKNOWN
    known = partition.generations
    if not 0 <= generation <= known.last:
        return UNKNOWN
    # Not the high watermark: that of a new leader may still lie below what the client has read.
    return known.end_of(Generation(generation), partition.log.end_offset)
