"""DescribeLogDirs, versions 1 to 5: the one data folder, its room, and the size of each partition.

The object store, if there is one, looks like a second folder. So that nothing is counted twice, what is in it is told
by the broker that clients are sent to for it.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import PARTITIONS_PER_ROW
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.turns import Rows

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

PartitionRows = list[dict[str, Any]]

UNKNOWN = (-1, -1)
"""How much room a store has."""


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> Rows:
    kept, stored = [], []
    for name, indexes in _wanted(broker, request["topics"]).items():
        yield
        here, there = yield from _partitions(broker, name, indexes)
        if here is not None:
            kept.append({"name": name, "partitions": here})
        if there is not None:
            stored.append({"name": name, "partitions": there})
    results = [_result(broker.data_dir, kept, broker.disk_room())]
    if broker.store is not None:
        results.append(_result(broker.store.url, stored, UNKNOWN))
    return {"error_code": 0, "results": results}


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


def _partitions(
    broker: "Broker", name: str, indexes: list[int]
) -> Generator[None, None, tuple[PartitionRows | None, PartitionRows | None]]:
    """Of these partitions, those that are on the disk and those in the object store; None: none is meant to be."""
    state = broker.topics.find(name)
    here: PartitionRows | None = None
    there: PartitionRows | None = None
    for number, index in enumerate(indexes, start=1):
        if number % PARTITIONS_PER_ROW == 0:
            yield
        if state is None or broker.topics.find(state.topic.topic_id) is None:
            break  # It has been deleted meanwhile.
        if not 0 <= index < state.topic.partition_count:
            continue
        if not state.topic.is_stored(index):
            rows = here = [] if here is None else here
        elif broker.store is not None:
            rows = there = [] if there is None else there
            if broker.leader_of(state, index) != broker.id:
                continue
        else:
            continue
        partition = broker.topics.find_partition(name, index)
        if partition is not None:
            size_bytes, lag = partition.log.size_bytes, partition.lag
            rows.append({"partition_index": index, "partition_size": size_bytes, "offset_lag": lag})
    return here, there
