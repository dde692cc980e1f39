"""DescribeBranches, version 0, ours: how the branches of topics in mode branch came to be, and which line is served.

Any broker answers, from what it knows itself. A branch as a topic of its own, `orders@5`, may be asked for too; its
line is that of the branch.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from anabranch.broker.call import Call
from anabranch.broker.handlers.answers import accepted, refused
from anabranch.errors import AnabranchError, InvalidRequestError, UnknownTopicOrPartitionError
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.branch_partition import BranchPartition
    from anabranch.broker.branches import BranchTopics
    from anabranch.broker.broker import Broker
    from anabranch.broker.partition import Partition
    from anabranch.broker.topics import TopicState
    from anabranch.replication.branch_rows import BranchRow

    Rows = dict[tuple[UUID, int], list[BranchRow]]


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    if broker.branches is None and request["topics"] is None:
        return {"broker_id": broker.id, "brokers": [], "topics": []}
    asked = request["topics"]
    if asked is None:
        asked = [
            {"name": state.topic.name, "partitions": None} for state in broker.topics if state.topic.is_branch
        ]
    # Once each, or a small request that repeats itself would be answered at great length.
    distinct = {topic["name"]: topic for topic in asked}
    if broker.branches is not None:
        await broker.branches.gaps.find(_asked_for(broker, broker.branches, distinct))
    rows = _rows_by_partition(broker.branches) if request["include_rows"] else {}
    return {
        "broker_id": broker.id,
        "brokers": _brokers(broker),
        "topics": [_topic(broker, topic, rows) for topic in distinct.values()],
    }


def _asked_for(broker: "Broker", branches: "BranchTopics", names: Iterable[str]) -> "list[BranchPartition]":
    """Whose records are to be counted: those that have the named topics, or branches of them."""
    found = {state.topic.topic_id for name in names if (state := broker.topics.find(name.partition("@")[0]))}
    return [each for each in branches.partitions() if each.topic_id in found]


def _rows_by_partition(branches: "BranchTopics | None") -> "Rows":
    found: Rows = {}
    for row in branches.tube.rows if branches is not None else ():
        found.setdefault(row.key, []).append(row)
    return found


def _brokers(broker: "Broker") -> list[dict[str, Any]]:
    if broker.branches is None:
        return []
    from anabranch.broker.branch_report import brokers_seen  # For those who have such topics.

    return brokers_seen(broker)


def _topic(broker: "Broker", asked: dict[str, Any], known: "Rows") -> dict[str, Any]:
    name = asked["name"]
    try:
        state = broker.topics.readable(name)
        if not state.topic.is_branch or broker.branches is None:
            raise InvalidRequestError(f"Topic {name} is not in mode branch, and has no branches.")
        indexes = range(len(state.partitions)) if asked["partitions"] is None else asked["partitions"]
        rows = [_partition(broker, state, index, known) for index in dict.fromkeys(indexes)]
    except AnabranchError as error:
        return {**refused(error), "name": name, "partitions": []}
    return {**accepted(), "name": name, "topic_id": state.topic.topic_id, "partitions": rows}


def _partition(broker: "Broker", state: "TopicState", index: int, known: "Rows") -> dict[str, Any]:
    if not 0 <= index < state.topic.partition_count:
        raise UnknownTopicOrPartitionError(f"Topic {state.topic.name} has no partition {index}.")
    partition: Partition | None = state.partitions[index]
    from anabranch.broker.branch_partition import BranchPartition
    from anabranch.broker.branch_report import describe
    from anabranch.broker.branch_views import BranchView

    if not isinstance(partition, BranchPartition | BranchView):
        return {"partition_index": index, "error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}
    base = partition.base if isinstance(partition, BranchView) else partition
    assert broker.branches is not None, "its partitions were opened by it"
    return describe(broker, broker.branches.gaps, partition, known.get(base.key, ()))
