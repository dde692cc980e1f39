"""Small pieces that several handlers' answers share."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.requests.error_table import code_of
from anabranch.cluster.metadata.residence import KEPT
from anabranch.errors import AnabranchError, InvalidRequestError, RequestTimedOutError
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.topics.partition import Partition
    from anabranch.broker.topics.topics import TopicState
    from anabranch.cluster.metadata.rows import Topic

# Without ACLs everybody may do everything; the bits are Kafka's numbers of the operations a resource knows.
TOPIC_OPERATIONS = 3576
CLUSTER_OPERATIONS = 8096
GROUP_OPERATIONS = 3400
OPERATIONS_NOT_ASKED = -(2**31)

NOBODY = -1

MESSAGE_LENGTH_MAX = 1000
"""A message may quote what a client sent, and must still fit into a string of the protocol."""


ANSWER_BYTES_WHEN_SHORT = 256 * 1024
"""What one may have while readers leave too many answers lying in memory (`request.memory.bytes.max`)."""


class AnswerRoom:
    """How many bytes one answer may still grow by."""

    def __init__(self, broker: "Broker") -> None:
        self._bytes_max = broker.settings.request_answer_bytes_max
        if broker.are_answers_too_many:
            self._bytes_max = ANSWER_BYTES_WHEN_SHORT
        self._bytes_left = self._bytes_max

    def take(self, count: int) -> None:
        """Raises InvalidRequestError for a row that does not fit in any more."""
        if count > self._bytes_left:
            raise InvalidRequestError(
                f"The answer would be longer than {self._bytes_max} bytes (request.answer.bytes.max): ask for less at "
                "a time."
            )
        self._bytes_left -= count


PARTITIONS_PER_ROW = 10
"""How many partitions of one topic cost as much on the loop as a usual row: to describe, or to make, since the files of
new ones are made in a worker."""


class Deadline:
    """Until when a request's rows may be begun, by its `timeout_ms`; a row that has begun is finished.

    A client that sends 0 does not want to wait until other brokers know of the change. That is no reason to refuse it:
    no request waits for that here.
    """

    def __init__(self, broker: "Broker", timeout_ms: int) -> None:
        self._clock = broker.clock
        self._timeout_ms = timeout_ms
        self._ms_end = broker.clock.monotonic_ms() + timeout_ms

    def check(self) -> None:
        """Raises RequestTimedOutError for a row that comes too late."""
        if self._timeout_ms > 0 and self._clock.monotonic_ms() > self._ms_end:
            raise RequestTimedOutError(
                f"Not begun within timeout_ms ({self._timeout_ms}): ask again, for less or with more time."
            )


def accepted() -> dict[str, Any]:
    return {"error_code": ErrorCode.NONE, "error_message": None}


def refused(error: AnabranchError) -> dict[str, Any]:
    return {"error_code": code_of(error), "error_message": message_of(error)}


def message_of(error: AnabranchError) -> str | None:
    """What an answer says about a refusal."""
    return str(error)[:MESSAGE_LENGTH_MAX] or None


def partition_row(broker: "Broker", topic: "Topic", index: int) -> dict[str, Any]:
    """A partition as Metadata and DescribeTopicPartitions tell of it."""
    leader = broker.leaders.of(topic.topic_id, index)
    placed = broker.metadata.table.placement(topic, index).replicas
    replicas = placed if topic.form(index) == KEPT else leader.in_sync
    is_available = broker.orchestrator.is_available
    return {
        "error_code": ErrorCode.LEADER_NOT_AVAILABLE if leader.broker_id is None else ErrorCode.NONE,
        "partition_index": index,
        "leader_id": NOBODY if leader.broker_id is None else leader.broker_id,
        "leader_epoch": leader.generation,
        "replica_nodes": list(replicas),
        "isr_nodes": list(leader.in_sync),
        "offline_replicas": [each for each in replicas if not is_available(each)],
    }


def _row_of_one(broker: "Broker", index: int, partition: "Partition | None") -> dict[str, Any]:
    """Of a node without peers, which keeps and leads everything that it has opened."""
    return {
        "error_code": ErrorCode.NONE if partition is not None else ErrorCode.LEADER_NOT_AVAILABLE,
        "partition_index": index,
        "leader_id": broker.id if partition is not None else NOBODY,
        "leader_epoch": partition.generation if partition is not None else -1,
        "replica_nodes": [broker.id],
        "isr_nodes": [broker.id],
        "offline_replicas": [],
    }


def _row_of_view(broker: "Broker", index: int, partition: "Partition | None") -> dict[str, Any]:
    """Of a branch as a topic of its own, which is served by somebody who holds it."""
    from anabranch.broker.branch.views import BranchView

    row = _row_of_one(broker, index, partition)
    if isinstance(partition, BranchView) and broker.branches is not None:
        server = broker.branches.views.server_of(partition)
        row |= {"leader_id": server, "replica_nodes": [server], "isr_nodes": [server]}
    return row


def partition_count(broker: "Broker", state: "TopicState") -> int:
    """How many partitions `topic_row` tells of."""
    return len(state.partitions) if _is_by_state(broker, state) else state.topic.partition_count


def _is_by_state(broker: "Broker", state: "TopicState") -> bool:
    return broker.peers is None or state.topic.topic_id not in broker.metadata.table.topics_by_id


def topic_row(
    broker: "Broker", state: "TopicState", *, operations: bool, indexes: range | None = None
) -> dict[str, Any]:
    """A topic as Metadata and DescribeTopicPartitions tell of it; with these partitions, if not with all."""
    topic = state.topic
    if indexes is None:
        indexes = range(partition_count(broker, state))
    if _is_by_state(broker, state):
        row_of = _row_of_one if broker.peers is None else _row_of_view
        rows = [row_of(broker, index, state.partitions[index]) for index in indexes]
    else:
        rows = [partition_row(broker, topic, index) for index in indexes]
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": rows,
        "topic_authorized_operations": TOPIC_OPERATIONS if operations else OPERATIONS_NOT_ASKED,
    }


def controller_id(broker: "Broker") -> int:
    """Who leads the metadata quorum; who does not know names itself, since every broker takes what a leader does."""
    leader = broker.metadata.leader_id
    return leader if leader is not None and broker.orchestrator.is_available(leader) else broker.id
