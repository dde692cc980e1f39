"""OffsetForLeaderEpoch, versions 2 to 4: where a generation ended, so that a client can tell whether it read
something that is no longer there. A partition that one broker keeps has one generation. Only the leader answers.
"""

from typing import TYPE_CHECKING, Any

from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.broker.requests.turns import Rows
from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

UNKNOWN = (-1, -1)


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> Rows:
    topics = []
    for topic in request["topics"]:
        rows = []
        for asked in topic["partitions"]:
            rows.append(_row(broker, topic["topic"], asked))
            yield
        topics.append({"topic": topic["topic"], "partitions": rows})
    return {"topics": topics}


def _row(broker: "Broker", name: str, asked: dict[str, Any]) -> dict[str, Any]:
    index = asked["partition"]
    try:
        partition = broker.topics.readable_partition(name, index)
        partition.check_leader()
        partition.check_generation(asked["current_leader_epoch"])
    except AnabranchError as error:
        return {"partition": index, "error_code": code_of(error)}
    generation, end_offset = partition.generation_end(asked["leader_epoch"]) or UNKNOWN
    return {"partition": index, "error_code": 0, "leader_epoch": generation, "end_offset": end_offset}
