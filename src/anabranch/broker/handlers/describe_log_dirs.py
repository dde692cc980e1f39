"""DescribeLogDirs, versions 1 to 5: the one data folder, its room, and the size of each partition."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.call import Call

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    total_bytes, usable_bytes = broker.disk_room()
    return {
        "error_code": 0,
        "results": [
            {
                "error_code": 0,
                "log_dir": broker.data_dir,
                "topics": _topics(broker, request["topics"]),
                "total_bytes": total_bytes,
                "usable_bytes": usable_bytes,
            }
        ],
    }


def _topics(broker: "Broker", asked: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    if asked is None:
        wanted = {state.topic.name: range(len(state.partitions)) for state in broker.topics}
        return [_topic(broker, name, list(indexes)) for name, indexes in wanted.items()]
    return [
        _topic(broker, topic["topic"], topic["partitions"])
        for topic in asked
        if broker.topics.find(topic["topic"]) is not None
    ]


def _topic(broker: "Broker", name: str, indexes: list[int]) -> dict[str, Any]:
    partitions = [(index, broker.topics.find_partition(name, index)) for index in indexes]
    return {
        "name": name,
        "partitions": [
            {
                "partition_index": index,
                "partition_size": partition.log.size_bytes,
                "offset_lag": partition.lag,
            }
            for index, partition in partitions
            if partition is not None
        ],
    }
