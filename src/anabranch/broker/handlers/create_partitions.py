"""CreatePartitions, versions 0 to 3, with validate_only. Partitions are only ever added."""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import PARTITIONS_PER_ROW, Deadline, accepted, refused
from anabranch.broker.requests.call import Call
from anabranch.broker.topics.placing import first_primaries, of_added
from anabranch.cluster.placement import check_request
from anabranch.config import PARTITIONS_MAX
from anabranch.errors import AnabranchError, InvalidRequestError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    counts = Counter(topic["name"] for topic in request["topics"])
    topics = {topic["name"]: topic for topic in request["topics"]}
    try:
        check_request(sum(_added_count(broker, asked) for asked in topics.values()))
    except AnabranchError as error:
        return refuse(request, error)
    pace, deadline = broker.turns.pace(), Deadline(broker, request["timeout_ms"])
    rows = []
    for asked in topics.values():
        await pace.row(1 + _added_count(broker, asked) // PARTITIONS_PER_ROW)
        name = asked["name"]
        try:
            deadline.check()
            if counts[name] > 1:
                raise InvalidRequestError(f"Topic {name} appears {counts[name]} times.")
            broker.topics.check_partition_count(name, asked["count"])
            topic = broker.topics.known(name).topic
            replicas = of_added(broker, topic, asked["count"], asked["assignments"])
            broker.topics.check_room(replicas or [()] * (asked["count"] - topic.partition_count))
            if not request["validate_only"]:
                grown = replace(topic, partition_count=asked["count"])
                first = await first_primaries(broker, grown, topic.partition_count) if topic.is_branch else ()
                await broker.topics.add_partitions(name, asked["count"], replicas, first)
        except AnabranchError as error:
            rows.append({**refused(error), "name": name})
        else:
            rows.append({**accepted(), "name": name})
    return {"results": rows}


def _added_count(broker: "Broker", asked: dict[str, Any]) -> int:
    """How many partitions the topic gets; none if it will be refused by itself."""
    state = broker.topics.find(asked["name"])
    if state is None or asked["count"] > PARTITIONS_MAX:
        return 0
    count: int = asked["count"]
    return max(0, count - state.topic.partition_count)


def refuse(request: dict[str, Any], error: AnabranchError) -> dict[str, Any]:
    names = dict.fromkeys(topic["name"] for topic in request["topics"])
    return {"results": [{**refused(error), "name": name} for name in names]}
