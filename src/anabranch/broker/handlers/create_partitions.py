"""CreatePartitions, versions 0 to 3, with validate_only. Partitions are only ever added."""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import accepted, refused
from anabranch.broker.requests.call import Call
from anabranch.broker.topics.placing import check_brokers, first_primaries, of_added
from anabranch.errors import AnabranchError, InvalidRequestError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    counts = Counter(topic["name"] for topic in request["topics"])
    pace = broker.turns.pace()
    rows = []
    for asked in {topic["name"]: topic for topic in request["topics"]}.values():
        await pace.row()
        name = asked["name"]
        try:
            if counts[name] > 1:
                raise InvalidRequestError(f"Topic {name} appears {counts[name]} times.")
            broker.topics.check_partition_count(name, asked["count"])
            topic = broker.topics.known(name).topic
            replicas = of_added(broker, topic, asked["count"], asked["assignments"])
            check_brokers(broker, replicas)
            if not request["validate_only"]:
                grown = replace(topic, partition_count=asked["count"])
                first = await first_primaries(broker, grown, topic.partition_count) if topic.is_branch else ()
                await broker.topics.add_partitions(name, asked["count"], replicas, first)
        except AnabranchError as error:
            rows.append({**refused(error), "name": name})
        else:
            rows.append({**accepted(), "name": name})
    return {"results": rows}


def refuse(request: dict[str, Any], error: AnabranchError) -> dict[str, Any]:
    names = dict.fromkeys(topic["name"] for topic in request["topics"])
    return {"results": [{**refused(error), "name": name} for name in names]}
