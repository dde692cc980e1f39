"""DescribeTopicPartitions, version 0: topics page by page, in order of name, with a cursor for the next page."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import (
    PARTITIONS_PER_ROW,
    TOPIC_OPERATIONS,
    partition_count,
    topic_row,
)
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.broker.requests.turns import Rows
from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

PARTITIONS_PER_PAGE_MAX = 2000


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> Rows:
    names = sorted(
        {topic["name"] for topic in request["topics"]} or {state.topic.name for state in broker.topics}
    )
    cursor = request["cursor"]
    first_partition = 0
    if cursor is not None:
        names = [name for name in names if name >= cursor["topic_name"]]
        if names and names[0] == cursor["topic_name"]:
            first_partition = max(0, cursor["partition_index"])
    left = max(1, min(request["response_partition_limit"], PARTITIONS_PER_PAGE_MAX))
    rows: list[dict[str, Any]] = []
    for name in names:
        if left <= 0:
            return {"topics": rows, "next_cursor": {"topic_name": name, "partition_index": 0}}
        state = broker.topics.find_readable(name)
        described = min(left, partition_count(broker, state)) if state is not None else 0
        for _ in range(1 + described // PARTITIONS_PER_ROW):
            yield  # Before the work, so that it waits for its turn.
        row, count = _row(broker, name, first_partition, left)
        rows.append(row)
        if count > first_partition + left:
            return {
                "topics": rows,
                "next_cursor": {"topic_name": name, "partition_index": first_partition + left},
            }
        left -= len(row["partitions"])
        first_partition = 0
    return {"topics": rows, "next_cursor": None}


def _row(broker: "Broker", name: str, first: int, count_max: int) -> tuple[dict[str, Any], int]:
    """A topic with so many of its partitions from the first on; and how many it has."""
    try:
        state = broker.topics.find_readable(name)
        if state is None:
            broker.topics.check_name(name)
            state = broker.topics.known(name)
    except AnabranchError as error:
        return {
            "error_code": code_of(error),
            "name": name,
            "partitions": [],
            "topic_authorized_operations": TOPIC_OPERATIONS,
        }, 0
    count = partition_count(broker, state)
    indexes = range(min(first, count), min(first + count_max, count))
    row = topic_row(broker, state, operations=True, indexes=indexes)
    for partition in row["partitions"]:
        # Empty, not null: the Java client reads these lists without asking.
        partition["eligible_leader_replicas"] = []
        partition["last_known_elr"] = []
    return row, count
