"""ListPartitionReassignments, version 0: the moves that are under way, of all topics or of those asked for."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import accepted
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.turns import Rows
from anabranch.cluster.metadata.rows import Placement

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> Rows:
    if request["topics"] is None:
        wanted = {state.topic.name: range(state.topic.partition_count) for state in broker.topics}
    else:
        wanted = {topic["name"]: topic["partition_indexes"] for topic in request["topics"]}
    rows = []
    for name, indexes in wanted.items():
        moves = _moves(broker, name, set(indexes))
        if moves:
            rows.append({"name": name, "partitions": moves})
        yield
    return {**accepted(), "topics": rows}


def _moves(broker: "Broker", name: str, wanted: set[int]) -> list[dict[str, Any]]:
    state = broker.topics.find(name)
    if state is None:
        return []
    placements = enumerate(broker.metadata.table.placements(state.topic))
    return [
        _row(index, placement)
        for index, placement in placements
        if placement.target and not placement.is_closing and index in wanted
    ]


def _row(index: int, placement: Placement) -> dict[str, Any]:
    """As Kafka counts: `replicas` are all that keep something now or shall."""
    assert placement.target is not None
    adding = [each for each in placement.target if each not in placement.replicas]
    removing = [each for each in placement.replicas if each not in placement.target]
    return {
        "partition_index": index,
        "replicas": [*placement.target, *removing],
        "adding_replicas": adding,
        "removing_replicas": removing,
    }
