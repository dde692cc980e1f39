"""AlterPartitionReassignments, versions 0 and 1: begins moves of partitions, or calls them off (replicas null).

The answer comes when the wish is in the agreed table; the partition's leader then copies, and ends the move itself.
"""

from typing import TYPE_CHECKING, Any

from anabranch.broker.call import Call
from anabranch.broker.handlers.answers import accepted, refused
from anabranch.broker.placing import usual_factor
from anabranch.cluster.entries import move_entry
from anabranch.cluster.forms import MODE_OF_FORM
from anabranch.cluster.placement import check_is_kept, check_mode, check_replicas
from anabranch.errors import (
    AnabranchError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    NoReassignmentError,
)

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.cluster.placement import Replicas
    from anabranch.cluster.rows import Topic


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    may_change = request["allow_replication_factor_change"]
    named = [
        (topic["name"], each["partition_index"])
        for topic in request["topics"]
        for each in topic["partitions"]
    ]
    if len(set(named)) < len(named):
        return refuse(request, InvalidRequestError("One request moves a partition twice."))
    pace = broker.turns.pace()
    topics = []
    for topic in request["topics"]:
        rows = []
        for each in topic["partitions"]:
            await pace.row()
            rows.append(await _row(broker, topic["name"], each, may_change=may_change))
        topics.append({"name": topic["name"], "partitions": rows})
    return {**accepted(), "allow_replication_factor_change": may_change, "responses": topics}


async def _row(broker: "Broker", name: str, asked: dict[str, Any], *, may_change: bool) -> dict[str, Any]:
    row = {"partition_index": asked["partition_index"]}
    try:
        await _move(broker, name, asked["partition_index"], asked["replicas"], may_change=may_change)
    except AnabranchError as error:
        return {**row, **refused(error)}
    return {**row, **accepted()}


async def _move(
    broker: "Broker", name: str, index: int, replicas: list[int] | None, *, may_change: bool
) -> None:
    metadata = broker.metadata
    async with metadata.lock:
        topic = broker.topics.check_index(name, index)
        if replicas is not None:
            check_is_kept(name, MODE_OF_FORM.get(topic.form(index), topic.mode))
        placement = metadata.table.placement(topic, index)
        if replicas is None:
            if not placement.target or placement.is_closing:
                raise NoReassignmentError(f"{name}-{index} is not being moved.")
            await _commit(broker, topic, index, None)
            return
        target = check_replicas(replicas, broker.orchestrator.rows())
        if not may_change and len(target) != len(placement.replicas):
            raise InvalidReplicationFactorError(
                f"{name}-{index} has {len(placement.replicas)} replicas, and the request forbids to make that "
                f"{len(target)}."
            )
        check_mode(topic.mode, len(target))
        if target == placement.replicas:
            if placement.target is not None:
                await _commit(broker, topic, index, None)
            return
        # Whoever only moves copies has not chosen how many there are: they may be few because brokers were.
        is_pinned = len(target) not in (len(placement.replicas), usual_factor(broker))
        await _commit(broker, topic, index, target, is_pinned=is_pinned)


async def _commit(
    broker: "Broker", topic: "Topic", index: int, target: "Replicas | None", *, is_pinned: bool = False
) -> None:
    await broker.metadata.commit(move_entry(topic.topic_id, index, target, is_pinned=is_pinned))


def refuse(request: dict[str, Any], error: AnabranchError) -> dict[str, Any]:
    return {**refused(error), "responses": []}
