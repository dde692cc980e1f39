"""OffsetCommit, versions 2 to 10: by topic name, since 10 by topic id. Answered when the log has the offsets."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.known_partition import known_partition
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.coordination.groups.messages import CommitRequest, PartitionCommit
from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

TOPIC_IDS_SINCE = 10


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    version = call.header.api_version
    rows: list[dict[str, Any]] = []
    commits: list[tuple[dict[str, Any], PartitionCommit]] = []
    pace = broker.turns.pace()
    for topic in request["topics"]:
        key = topic["topic_id"] if version >= TOPIC_IDS_SINCE else topic["name"]
        row: dict[str, Any] = {"name": topic["name"], "topic_id": topic["topic_id"], "partitions": []}
        rows.append(row)
        for asked in topic["partitions"]:
            await pace.row()
            outcome = {"partition_index": asked["partition_index"], "error_code": 0}
            row["partitions"].append(outcome)
            try:
                partition = known_partition(broker.topics, key, asked["partition_index"])
            except AnabranchError as error:
                outcome["error_code"] = code_of(error)
            else:
                commits.append((outcome, _commit(partition.topic, asked)))
    await _carry_out(broker, request, version, commits)
    return {"topics": rows}


def _commit(topic: str, asked: dict[str, Any]) -> PartitionCommit:
    return PartitionCommit(
        topic,
        asked["partition_index"],
        asked["committed_offset"],
        asked["committed_leader_epoch"],
        asked["committed_metadata"],
    )


async def _carry_out(
    broker: "Broker",
    request: dict[str, Any],
    version: int,
    commits: list[tuple[dict[str, Any], PartitionCommit]],
) -> None:
    """Commit, and enter each partition's outcome into its row."""
    asked = CommitRequest(
        group_id=request["group_id"],
        partitions=tuple(commit for _, commit in commits),
        member_id=request["member_id"],
        generation=request["generation_id_or_member_epoch"],
        instance_id=request["group_instance_id"],
        retention_ms=request["retention_time_ms"],
        version=version,
    )
    try:
        errors = await broker.groups.commit(asked)
    except AnabranchError as error:
        errors = [error] * len(commits)
    for (row, _), outcome in zip(commits, errors, strict=True):
        if outcome is not None:
            row["error_code"] = code_of(outcome)
