"""DescribeProducers, version 0: the idempotent producers a partition remembers."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import AnswerRoom, accepted, refused
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.turns import Rows
from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

PRODUCER_BYTES = 300
"""What one of them takes in memory until it is sent."""


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> Rows:
    room = AnswerRoom(broker)
    wanted: dict[
        str, dict[int, None]
    ] = {}  # Once each, or a small request would be answered at great length.
    for topic in request["topics"]:
        wanted.setdefault(topic["name"], {}).update(dict.fromkeys(topic["partition_indexes"]))
    topics = []
    for name, indexes in wanted.items():
        rows = []
        for index in indexes:
            rows.append(_row(broker, name, index, room))
            yield
        topics.append({"name": name, "partitions": rows})
    return {"topics": topics}


def _row(broker: "Broker", name: str, index: int, room: AnswerRoom) -> dict[str, Any]:
    try:
        broker.topics.check_name(name)
        partition = broker.topics.partition(name, index)
        partition.check_leader()
        room.take(len(partition.producers.producers) * PRODUCER_BYTES)
    except AnabranchError as error:
        return {**refused(error), "partition_index": index, "active_producers": []}
    return {
        **accepted(),
        "partition_index": index,
        "active_producers": [
            {
                "producer_id": producer_id,
                "producer_epoch": producer.epoch,
                "last_sequence": producer.batches[-1].last_sequence if producer.batches else -1,
                "last_timestamp": producer.timestamp_ms_last,
                "coordinator_epoch": -1,
            }
            for producer_id, producer in partition.producers.producers.items()
        ],
    }
