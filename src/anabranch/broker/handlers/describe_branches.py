"""DescribeBranches, version 0, ours: how the branches of topics in mode branch came to be, and which line is served.

Any broker answers, from what it knows itself. A branch as a topic of its own, `orders@5`, may be asked for too; its
line is that of the branch. Of a partition that has left branches, with gaps between its records, whoever serves it says
where they are, to those who want to count them: it has no branches that anybody could look at.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from anabranch.broker.handlers.answers import accepted, refused
from anabranch.broker.requests.call import Call
from anabranch.cluster.metadata.residence import BRANCHED
from anabranch.errors import AnabranchError, InvalidRequestError, UnknownTopicOrPartitionError
from anabranch.modes.branch.rows import lane_of
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.branch.branches import BranchTopics
    from anabranch.broker.branch.partition import BranchPartition
    from anabranch.broker.broker import Broker
    from anabranch.broker.topics.partition import Partition
    from anabranch.broker.topics.topics import TopicState
    from anabranch.cluster.metadata.rows import Topic
    from anabranch.modes.branch.rows import BranchRow

    Rows = dict[tuple[UUID, int], list[BranchRow]]


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    if broker.branches is None and request["topics"] is None:
        return {"broker_id": broker.id, "brokers": [], "topics": []}
    asked = request["topics"]
    if asked is None:
        asked = [
            {"name": state.topic.name, "partitions": None}
            for state in broker.topics
            if _has_branches(state.topic)
        ]
    # Once each, or a small request that repeats itself would be answered at great length.
    distinct = {topic["name"]: topic for topic in asked}
    if broker.branches is not None:
        await broker.branches.gaps.find(_asked_for(broker, broker.branches, distinct))
    rows = _rows_by_partition(broker.branches) if request["include_rows"] else {}
    return {
        "broker_id": broker.id,
        "brokers": _brokers(broker),
        "topics": [
            _topic(broker, topic, rows, only_counted=not request["include_rows"])
            for topic in distinct.values()
        ],
    }


def _has_branches(topic: "Topic") -> bool:
    """All of its partitions are in branches, or some still are."""
    return topic.is_branch or BRANCHED in topic.forms


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
    from anabranch.broker.branch.report import brokers_seen  # For those who have such topics.

    return brokers_seen(broker)


def _topic(broker: "Broker", asked: dict[str, Any], known: "Rows", *, only_counted: bool) -> dict[str, Any]:
    name = asked["name"]
    try:
        state = broker.topics.readable(name)
        has_gaps = any(each is not None and each.has_gaps for each in state.partitions)
        if not _has_branches(state.topic) and not (only_counted and has_gaps):
            raise InvalidRequestError(f"Topic {name} is not in mode branch, and has no branches.")
        indexes = range(len(state.partitions)) if asked["partitions"] is None else asked["partitions"]
        rows = [
            _partition(broker, state, index, known, only_counted=only_counted)
            for index in dict.fromkeys(indexes)
        ]
    except AnabranchError as error:
        return {**refused(error), "name": name, "partitions": []}
    return {**accepted(), "name": name, "topic_id": state.topic.topic_id, "partitions": rows}


def _partition(
    broker: "Broker", state: "TopicState", index: int, known: "Rows", *, only_counted: bool
) -> dict[str, Any]:
    if not 0 <= index < state.topic.partition_count:
        raise UnknownTopicOrPartitionError(f"Topic {state.topic.name} has no partition {index}.")
    partition: Partition | None = state.partitions[index]
    if partition is not None and partition.residence == BRANCHED and broker.branches is not None:
        return _described(broker, broker.branches, partition, known)
    if partition is None or not only_counted or not partition.is_leader:
        return {"partition_index": index, "error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}
    return _counted(broker, partition)


def _described(
    broker: "Broker", branches: "BranchTopics", partition: "Partition", known: "Rows"
) -> dict[str, Any]:
    from anabranch.broker.branch.partition import BranchPartition
    from anabranch.broker.branch.report import describe
    from anabranch.broker.branch.views import BranchView

    assert isinstance(partition, BranchPartition | BranchView)
    base = partition.base if isinstance(partition, BranchView) else partition
    return describe(broker, branches.gaps, partition, known.get(base.key, ()))


def _counted(broker: "Broker", partition: "Partition") -> dict[str, Any]:
    """Of one that has no branches: where its records are."""
    return {
        "error_code": 0,
        "partition_index": partition.id.partition,
        "leader_id": broker.id,
        "tip_end": partition.log.end_offset,
        "log_start_offset": partition.start_offset,
        "high_watermark": partition.readable_end,
        "line": [
            {"lane": lane_of(start), "start_offset": start, "end_offset": end}
            for start, end in partition.runs(partition.start_offset)
        ],
    }
