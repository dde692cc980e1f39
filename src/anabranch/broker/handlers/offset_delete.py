"""OffsetDelete, version 0: a group forgets its offsets in topics that none of its members reads."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.known_partition import known_partition
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.errors import AnabranchError
from anabranch.values import TopicPartition

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    doomed: list[tuple[dict[str, Any], TopicPartition]] = []
    pace = broker.turns.pace()
    for topic in request["topics"]:
        row: dict[str, Any] = {"name": topic["name"], "partitions": []}
        rows.append(row)
        for asked in topic["partitions"]:
            await pace.row()
            outcome = {"partition_index": asked["partition_index"], "error_code": 0}
            row["partitions"].append(outcome)
            try:
                partition = known_partition(broker.topics, topic["name"], asked["partition_index"])
            except AnabranchError as error:
                outcome["error_code"] = code_of(error)
            else:
                doomed.append((outcome, partition))
    try:
        errors = await broker.groups.delete_offsets(
            request["group_id"], [partition for _, partition in doomed]
        )
    except AnabranchError as error:
        return {"error_code": code_of(error), "topics": []}
    for (outcome, _), error_of_one in zip(doomed, errors, strict=True):
        if error_of_one is not None:
            outcome["error_code"] = code_of(error_of_one)
    return {"error_code": 0, "topics": rows}
