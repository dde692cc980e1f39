"""OffsetFetch, versions 1 to 10: one group before version 8, several since; by topic id since 10.

A partition without a committed offset answers -1, whether or not it exists. Without transactions every committed
offset is stable.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import AnswerRoom
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.broker.requests.turns import Rows
from anabranch.coordination.groups.records import CommittedOffset
from anabranch.errors import AnabranchError
from anabranch.values import TopicPartition
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

GROUPS_SINCE = 8
TOPIC_IDS_SINCE = 10
ERROR_PER_GROUP_SINCE = 2
OFFSET_BYTES = 100
"""What one of them takes besides its metadata."""


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> Rows:
    version = call.header.api_version
    room = AnswerRoom(broker)
    if version >= GROUPS_SINCE:
        groups = []
        # Once each, or a small request that repeats itself would be answered at great length.
        for asked in {each["group_id"]: each for each in request["groups"]}.values():
            group = yield from _group(broker, asked, version, room)
            groups.append({"group_id": asked["group_id"], **group})
            yield
        return {"groups": groups}
    group = yield from _group(broker, request, version, room)
    if group["error_code"] and version < ERROR_PER_GROUP_SINCE:
        for topic in group["topics"]:
            for partition in topic["partitions"]:
                partition["error_code"] = group["error_code"]
    return group


def _group(broker: "Broker", asked: dict[str, Any], version: int, room: AnswerRoom) -> Rows:
    committed: dict[TopicPartition, CommittedOffset] = {}
    try:
        committed = broker.groups.fetch(asked["group_id"])
        if asked["topics"] is None:
            return {"topics": (yield from _all_topics(broker, committed, version, room)), "error_code": 0}
        return {
            "topics": (yield from _asked_topics(broker, asked, committed, version, room)),
            "error_code": 0,
        }
    except AnabranchError as error:
        topics = yield from _asked_topics(broker, asked, {}, version, None)
        return {"topics": topics, "error_code": code_of(error)}


def _asked_topics(
    broker: "Broker",
    asked: dict[str, Any],
    committed: dict[TopicPartition, CommittedOffset],
    version: int,
    room: AnswerRoom | None,
) -> Generator[None, None, list[dict[str, Any]]]:
    rows = []
    for topic in asked["topics"] or ():
        name, code = topic["name"], ErrorCode.NONE
        if version >= TOPIC_IDS_SINCE:
            state = broker.topics.find_readable(topic["topic_id"])
            name, code = (state.topic.name, code) if state is not None else ("", ErrorCode.UNKNOWN_TOPIC_ID)
        partitions = []
        for index in topic["partition_indexes"]:
            partitions.append(_partition(index, committed.get(TopicPartition(name, index)), code, room))
            yield
        rows.append({"name": name, "topic_id": topic.get("topic_id"), "partitions": partitions})
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


def _all_topics(
    broker: "Broker",
    committed: dict[TopicPartition, CommittedOffset],
    version: int,
    room: AnswerRoom,
) -> Generator[None, None, list[dict[str, Any]]]:
    rows: dict[str, dict[str, Any]] = {}
    for (name, index), offset in list(committed.items()):
        yield
        row = rows.get(name)
        if row is None:
            row = {"name": name, "partitions": []}
            if version >= TOPIC_IDS_SINCE:
                state = broker.topics.find_readable(name)
                if state is None:
                    continue  # Without its id the topic cannot be told.
                row["topic_id"] = state.topic.topic_id
            rows[name] = row
        row["partitions"].append(_partition(index, offset, ErrorCode.NONE, room))
    return list(rows.values())


def _partition(
    index: int, committed: CommittedOffset | None, code: int, room: AnswerRoom | None
) -> dict[str, Any]:
    if committed is None:
        return {"partition_index": index, "committed_offset": -1, "metadata": "", "error_code": code}
    if room is not None:
        room.take(len(committed.metadata) + OFFSET_BYTES)
    return {
        "partition_index": index,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": code,
    }
