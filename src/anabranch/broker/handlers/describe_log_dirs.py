"""DescribeLogDirs, versions 1 to 5: the one data folder, its room, and the size of each partition.

The object store, if there is one, looks like a second folder. So that nothing is counted twice, what is in it is told
by the broker that clients are sent to for it.
"""

from typing import TYPE_CHECKING, Any

from anabranch.broker.requests.call import Call
from anabranch.broker.requests.turns import Rows

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

UNKNOWN = (-1, -1)
"""How much room a store has."""


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> Rows:
    kept, stored = [], []
    for name, indexes in _wanted(broker, request["topics"]).items():
        yield
        here = _in_store(broker, name, indexes, False)
        if here:
            kept.append(_topic(broker, name, here))
        there = _in_store(broker, name, indexes, True) if broker.store is not None else ()
        if there:
            stored.append(_named_here(broker, name, list(there)))
    results = [_result(broker.data_dir, kept, broker.disk_room())]
    if broker.store is not None:
        results.append(_result(broker.store.url, stored, UNKNOWN))
    return {"error_code": 0, "results": results}


def _in_store(broker: "Broker", name: str, indexes: list[int], is_stored: bool) -> list[int]:
    """Of these partitions, those that there are and that are in the object store, or are not."""
    topic = broker.topics.known(name).topic
    there = [index for index in indexes if 0 <= index < topic.partition_count]
    return [index for index in there if topic.is_stored(index) == is_stored]


def _result(name: str, topics: list[dict[str, Any]], room: tuple[int, int]) -> dict[str, Any]:
    return {
        "error_code": 0,
        "log_dir": name,
        "topics": topics,
        "total_bytes": room[0],
        "usable_bytes": room[1],
    }


def _wanted(broker: "Broker", asked: list[dict[str, Any]] | None) -> dict[str, list[int]]:
    """The partitions of each topic that there is, once each."""
    if asked is None:
        return {state.topic.name: list(range(len(state.partitions))) for state in broker.topics}
    wanted: dict[str, dict[int, None]] = {}
    for topic in asked:
        if broker.topics.find(topic["topic"]) is not None:
            wanted.setdefault(topic["topic"], {}).update(dict.fromkeys(topic["partitions"]))
    return {name: list(indexes) for name, indexes in wanted.items()}


def _named_here(broker: "Broker", name: str, indexes: list[int]) -> dict[str, Any]:
    state = broker.topics.known(name)
    here = [
        index
        for index in indexes
        if 0 <= index < state.topic.partition_count and broker.leader_of(state, index) == broker.id
    ]
    return _topic(broker, name, here)


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
