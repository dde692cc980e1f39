"""Small pieces that several handlers' answers share."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.error_table import code_of
from anabranch.errors import AnabranchError
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.partition import Partition
    from anabranch.broker.topics import TopicState

# Without ACLs everybody may do everything; the bits are Kafka's numbers of the operations a resource knows.
TOPIC_OPERATIONS = 3576
CLUSTER_OPERATIONS = 8096
GROUP_OPERATIONS = 3400
OPERATIONS_NOT_ASKED = -(2**31)

MESSAGE_LENGTH_MAX = 1000
"""A message may quote what a client sent, and must still fit into a string of the protocol."""


def accepted() -> dict[str, Any]:
    return {"error_code": ErrorCode.NONE, "error_message": None}


def refused(error: AnabranchError) -> dict[str, Any]:
    return {"error_code": code_of(error), "error_message": message_of(error)}


def message_of(error: AnabranchError) -> str | None:
    """What an answer says about a refusal."""
    return str(error)[:MESSAGE_LENGTH_MAX] or None


def partition_row(partition: "Partition", broker_id: int) -> dict[str, Any]:
    """A partition as Metadata and DescribeTopicPartitions tell of it."""
    return {
        "error_code": ErrorCode.NONE,
        "partition_index": partition.id.partition,
        "leader_id": broker_id,
        "leader_epoch": partition.generation,
        "replica_nodes": [broker_id],
        "isr_nodes": [broker_id],
        "offline_replicas": [],
    }


def topic_row(state: "TopicState", broker_id: int, *, operations: bool) -> dict[str, Any]:
    """A topic as Metadata and DescribeTopicPartitions tell of it."""
    return {
        "error_code": ErrorCode.NONE,
        "name": state.topic.name,
        "topic_id": state.topic.topic_id,
        "is_internal": state.topic.is_internal,
        "partitions": [partition_row(each, broker_id) for each in state.partitions if each is not None],
        "topic_authorized_operations": TOPIC_OPERATIONS if operations else OPERATIONS_NOT_ASKED,
    }
