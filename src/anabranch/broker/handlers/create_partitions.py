"""CreatePartitions, versions 0 to 3, with validate_only. Partitions are only ever added."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from anabranch.broker.call import Call
from anabranch.broker.handlers.answers import accepted, refused
from anabranch.errors import AnabranchError, InvalidReplicaAssignmentError, InvalidRequestError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    counts = Counter(topic["name"] for topic in request["topics"])
    rows = []
    for asked in {topic["name"]: topic for topic in request["topics"]}.values():
        name = asked["name"]
        try:
            if counts[name] > 1:
                raise InvalidRequestError(f"Topic {name} appears {counts[name]} times.")
            current = broker.topics.check_partition_count(name, asked["count"])
            _check_assignments(broker, asked, asked["count"] - current)
            if not request["validate_only"]:
                await broker.topics.add_partitions(name, asked["count"])
        except AnabranchError as error:
            rows.append({**refused(error), "name": name})
        else:
            rows.append({**accepted(), "name": name})
    return {"results": rows}


def _check_assignments(broker: "Broker", asked: dict[str, Any], added: int) -> None:
    assignments = asked["assignments"]
    if assignments is None:
        return
    if len(assignments) != added:
        raise InvalidReplicaAssignmentError(
            f"{added} partitions are added, but {len(assignments)} are assigned."
        )
    if any(assignment["broker_ids"] != [broker.id] for assignment in assignments):
        raise InvalidReplicaAssignmentError(
            f"Every partition must be assigned to broker {broker.id} alone: there is no other."
        )
