"""DescribeProducers, version 0: the idempotent producers a partition remembers."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.call import Call
from anabranch.broker.handlers.answers import accepted, refused
from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [_row(broker, topic["name"], index) for index in topic["partition_indexes"]],
            }
            for topic in request["topics"]
        ]
    }


def _row(broker: "Broker", name: str, index: int) -> dict[str, Any]:
    try:
        broker.topics.check_name(name)
        partition = broker.topics.partition(name, index)
        partition.check_leader()
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
