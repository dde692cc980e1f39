"""DescribeObjects, version 0, ours: the coordinates of a partition whose records are in the object store, for whoever
reads objects itself. Any broker answers, once it knows what was agreed on before it was asked.
"""

from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import accepted, refused
from anabranch.broker.requests.call import Call
from anabranch.errors import (
    AnabranchError,
    InvalidRequestError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.cluster.objects.entries import Key

ROWS_MAX = 4096
TO_THE_END = -1


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    try:
        if broker.peers is not None:
            await broker.metadata.caught_up()
        return {**accepted(), **_described(broker, request)}
    except AnabranchError as error:
        return refused(error)


def _described(broker: "Broker", request: dict[str, Any]) -> dict[str, Any]:
    key = _key_of(broker, request)
    from anabranch.objects.layout.names import pack_rows  # Not for a node without a store.

    assert broker.store is not None
    objects = broker.metadata.table.objects
    head = objects.head(key)
    start, end = request["start_offset"], request["end_offset"]
    end = head.end if end == TO_THE_END else min(end, head.end)
    if not 0 <= start <= head.end:
        raise OffsetOutOfRangeError(f"Offset {start} is not between 0 and {head.end}.")
    count = max(1, min(request["rows_max"], ROWS_MAX))
    found = [row for row in objects.rows(key, Offset(start), count + 1) if row.base_offset < end]
    return {
        "store_url": broker.store.url,
        "merge_bytes": broker.settings.object_merge_bytes,
        "log_start_offset": head.start,
        "high_watermark": head.end,
        "size_bytes": head.size_bytes,
        "next_offset": found[count].base_offset if len(found) > count else TO_THE_END,
        "rows": pack_rows(found[:count]),
    }


def _key_of(broker: "Broker", request: dict[str, Any]) -> "Key":
    """Raises UnknownTopicIdError, UnknownTopicOrPartitionError, InvalidRequestError."""
    topic = broker.metadata.table.topics_by_id.get(request["topic_id"])
    if topic is None:
        raise UnknownTopicIdError(f"There is no topic of the id {request['topic_id']}.")
    if not 0 <= request["partition_index"] < topic.partition_count:
        raise UnknownTopicOrPartitionError(
            f"Topic {topic.name} has no partition {request['partition_index']}."
        )
    if topic.is_object and not topic.is_stored(request["partition_index"]):
        raise OffsetNotAvailableError(
            f"Partition {request['partition_index']} of {topic.name} is still on its way into the object store."
        )
    if not topic.is_object or broker.store is None:
        raise InvalidRequestError(f"The records of {topic.name} are not in an object store: fetch them.")
    return topic.topic_id, request["partition_index"]
