"""CreateTopics, versions 2 to 7, with validate_only. A topic has one replica: there is one node.

A replica assignment is accepted if it names this node once for every partition from 0 on.
"""

from collections import Counter
from typing import TYPE_CHECKING, Any

from anabranch.broker.call import Call
from anabranch.broker.handlers.answers import accepted, refused
from anabranch.config import TopicSettings
from anabranch.errors import (
    AnabranchError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
)
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

UNSET = -1


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    counts = Counter(topic["name"] for topic in request["topics"])
    rows = []
    for asked in {topic["name"]: topic for topic in request["topics"]}.values():
        try:
            if counts[asked["name"]] > 1:
                raise InvalidRequestError(f"Topic {asked['name']} appears {counts[asked['name']]} times.")
            rows.append(await _create(broker, asked, only_validate=request["validate_only"]))
        except AnabranchError as error:
            rows.append({**refused(error), "name": asked["name"], "configs": []})
    return {"topics": rows}


async def _create(broker: "Broker", asked: dict[str, Any], *, only_validate: bool) -> dict[str, Any]:
    name = asked["name"]
    partition_count = _partition_count(broker, asked)
    configs = asked["configs"]
    if len({config["name"] for config in configs}) < len(configs):
        raise InvalidRequestError(f"Topic {name} sets a config twice.")
    overrides = {config["name"]: config["value"] for config in configs}
    topic = broker.topics.plan(name, partition_count, overrides)
    if not only_validate:
        await broker.topics.create(topic)
    settings = TopicSettings.from_overrides(broker.settings, topic.overrides)
    return {
        **accepted(),
        "name": name,
        "topic_id": topic.topic_id,
        "topic_config_error_code": ErrorCode.NONE,
        "num_partitions": topic.partition_count,
        "replication_factor": 1,
        "configs": [
            {
                "name": entry.name,
                "value": entry.value,
                "read_only": entry.read_only,
                "config_source": entry.source,
                "is_sensitive": False,
            }
            for entry in settings.describe(broker.settings)
        ],
    }


def _partition_count(broker: "Broker", asked: dict[str, Any]) -> int:
    count, factor, assignments = asked["num_partitions"], asked["replication_factor"], asked["assignments"]
    if assignments:
        if count != UNSET or factor != UNSET:
            raise InvalidRequestError(
                "With a replica assignment, partitions and replication factor must be -1."
            )
        return _assigned_count(broker, assignments)
    if factor not in (UNSET, 1):
        raise InvalidReplicationFactorError(
            f"Replication factor {factor} is not possible: there is 1 broker. Use 1 or -1."
        )
    return int(broker.settings.num_partitions) if count == UNSET else int(count)


def _assigned_count(broker: "Broker", assignments: list[dict[str, Any]]) -> int:
    indexes = sorted(assignment["partition_index"] for assignment in assignments)
    if indexes != list(range(len(indexes))):
        raise InvalidReplicaAssignmentError("A replica assignment must name every partition from 0 on, once.")
    if any(assignment["broker_ids"] != [broker.id] for assignment in assignments):
        raise InvalidReplicaAssignmentError(
            f"Every partition must be assigned to broker {broker.id} alone: there is no other."
        )
    return len(indexes)
