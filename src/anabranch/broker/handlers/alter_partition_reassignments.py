"""AlterPartitionReassignments, versions 0 and 1: begins moves of partitions, or calls them off (replicas null).

The answer comes when the wish is in the agreed table; the partition's leader then copies, and ends the move itself.
"""

from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import accepted, refused
from anabranch.broker.requests.call import Call
from anabranch.broker.topics.placing import usual_factor
from anabranch.cluster.metadata.entries import move_entry
from anabranch.cluster.metadata.residence import MODE_OF_FORM
from anabranch.cluster.placement import check_is_kept, check_mode, check_replicas
from anabranch.errors import (
    AnabranchError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    NoReassignmentError,
)

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.cluster.metadata.entries import Entry


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    may_change = request["allow_replication_factor_change"]
    named = [
        (topic["name"], each["partition_index"])
        for topic in request["topics"]
        for each in topic["partitions"]
    ]
    if len(set(named)) < len(named):
        return refuse(request, InvalidRequestError("One request moves a partition twice."))
    answers = await _move_all(broker, request, may_change=may_change)
    return {
        **accepted(),
        "allow_replication_factor_change": may_change,
        "responses": [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": each["partition_index"],
                        **answers[topic["name"], each["partition_index"]],
                    }
                    for each in topic["partitions"]
                ],
            }
            for topic in request["topics"]
        ],
    }


async def _move_all(
    broker: "Broker", request: dict[str, Any], *, may_change: bool
) -> dict[tuple[str, int], dict[str, Any]]:
    """All in one round of the quorum: a broker that drains has hundreds of partitions."""
    answers: dict[tuple[str, int], dict[str, Any]] = {}
    entries: dict[tuple[str, int], Entry] = {}
    pace = broker.turns.pace()
    async with broker.metadata.lock:
        for topic in request["topics"]:
            for each in topic["partitions"]:
                await pace.row()
                key = topic["name"], each["partition_index"]
                try:
                    entry = _entry_of(broker, *key, each["replicas"], may_change=may_change)
                except AnabranchError as error:
                    answers[key] = refused(error)
                    continue
                answers[key] = accepted()
                if entry is not None:
                    entries[key] = entry
        if entries:
            answers |= await _commit(broker, entries)
    return answers


async def _commit(
    broker: "Broker", entries: "dict[tuple[str, int], Entry]"
) -> dict[tuple[str, int], dict[str, Any]]:
    try:
        errors = await broker.metadata.commit_all(list(entries.values()))
    except AnabranchError as error:
        return {key: refused(error) for key in entries}
    return {
        key: accepted() if error is None else refused(error)
        for key, error in zip(entries, errors, strict=True)
    }


def _entry_of(
    broker: "Broker", name: str, index: int, replicas: list[int] | None, *, may_change: bool
) -> "Entry | None":
    """What is to be committed; None: it is as it should be. Raises what is answered."""
    table = broker.metadata.table
    topic = broker.topics.check_index(name, index)
    if replicas is not None:
        check_is_kept(name, MODE_OF_FORM.get(topic.form(index), topic.mode))
    placement = table.placement(topic, index)
    if replicas is None:
        if not placement.target or placement.is_closing:
            raise NoReassignmentError(f"{name}-{index} is not being moved.")
        return move_entry(topic.topic_id, index, None)
    target = check_replicas(replicas, broker.orchestrator.rows())
    if not may_change and len(target) != len(placement.replicas):
        raise InvalidReplicationFactorError(
            f"{name}-{index} has {len(placement.replicas)} replicas, and the request forbids to make that "
            f"{len(target)}."
        )
    check_mode(topic.mode, len(target))
    if target == placement.replicas:
        return move_entry(topic.topic_id, index, None) if placement.target is not None else None
    # Whoever only moves copies has not chosen how many there are: they may be few because brokers were.
    is_pinned = len(target) not in (len(placement.replicas), usual_factor(broker))
    return move_entry(topic.topic_id, index, target, is_pinned=is_pinned)


def refuse(request: dict[str, Any], error: AnabranchError) -> dict[str, Any]:
    return {**refused(error), "responses": []}
