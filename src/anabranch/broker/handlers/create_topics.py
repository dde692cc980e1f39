"""CreateTopics, versions 2 to 7, with validate_only. Where the partitions go is decided by `broker.topics.placing`."""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import PARTITIONS_PER_ROW, AnswerRoom, Deadline, accepted, refused
from anabranch.broker.handlers.config_resources import with_mode
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.broker.topics import internal_topics
from anabranch.broker.topics.placing import (
    Choice,
    by_assignment,
    by_factor,
    first_primaries,
    usual_factor,
)
from anabranch.cluster.metadata.residence import OBJECT
from anabranch.cluster.metadata.rows import MODE_CONFIG
from anabranch.cluster.placement import UNSET, check_request
from anabranch.config import PARTITIONS_MAX, TopicSettings
from anabranch.errors import AnabranchError, InvalidPartitionsError, InvalidRequestError
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

ROWS_PER_TOPIC = 10
"""What a topic costs in rows: its configs are checked and told of."""
CONFIG_BYTES = 300
"""What one of them takes in memory until it is sent."""


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    counts = Counter(topic["name"] for topic in request["topics"])
    topics = {topic["name"]: topic for topic in request["topics"]}
    try:
        check_request(sum(_counted(_partition_count(broker, asked)) for asked in topics.values()))
    except AnabranchError as error:
        return refuse(request, error)
    pace, room, deadline = broker.turns.pace(), AnswerRoom(broker), Deadline(broker, request["timeout_ms"])
    rows = []
    for asked in topics.values():
        await pace.row(ROWS_PER_TOPIC + _counted(_partition_count(broker, asked)) // PARTITIONS_PER_ROW)
        try:
            deadline.check()
            if counts[asked["name"]] > 1:
                raise InvalidRequestError(f"Topic {asked['name']} appears {counts[asked['name']]} times.")
            rows.append(await _create(broker, asked, room, only_validate=request["validate_only"]))
        except AnabranchError as error:
            rows.append({**refused(error), "name": asked["name"], "configs": []})
    if broker.objects is not None and any(_is_object(topic) for topic in request["topics"]):
        # Should all disks be lost now, its records would come back from the bucket without its name.
        await broker.objects.snapshots.settle()
    return {"topics": rows}


def _is_object(asked: dict[str, Any]) -> bool:
    return any(config["name"] == MODE_CONFIG and config["value"] == OBJECT for config in asked["configs"])


async def _create(
    broker: "Broker", asked: dict[str, Any], room: AnswerRoom, *, only_validate: bool
) -> dict[str, Any]:
    name = asked["name"]
    configs = asked["configs"]
    if len({config["name"] for config in configs}) < len(configs):
        raise InvalidRequestError(f"Topic {name} sets a config twice.")
    is_assigned = bool(asked["assignments"])
    internal_topics.check_creation(
        name, asked["replication_factor"], usual_factor(broker), is_assigned=is_assigned
    )
    named = {config["name"]: config["value"] for config in configs}
    overrides = broker.topics.check_overrides(internal_topics.with_required(name, named))
    internal_topics.check_overrides(name, broker.settings, overrides)
    choice = _choice(broker, asked, overrides.get(MODE_CONFIG))
    topic = broker.topics.plan(
        name,
        len(choice.replicas),
        overrides,
        choice.placements,
        is_pinned=choice.is_pinned,
        copies=choice.copies,
    )
    if topic.is_branch:
        topic = replace(topic, first=await first_primaries(broker, topic, 0))
    if not only_validate:
        await broker.topics.create(topic)
    row = {
        **accepted(),
        "name": name,
        "topic_id": topic.topic_id,
        "num_partitions": topic.partition_count,
        "replication_factor": choice.factor,
    }
    settings = TopicSettings.from_overrides(broker.settings, topic.overrides)
    entries = with_mode(settings.describe(broker.settings), choice.placements)
    try:
        room.take(len(entries) * CONFIG_BYTES)
    except InvalidRequestError as error:  # The topic is there; only its configs are not told of.
        return {**row, "topic_config_error_code": code_of(error), "configs": None}
    return {
        **row,
        "topic_config_error_code": ErrorCode.NONE,
        "configs": [
            {
                "name": entry.name,
                "value": entry.value,
                "read_only": entry.read_only,
                "config_source": entry.source,
                "is_sensitive": False,
            }
            for entry in entries
        ],
    }


def _partition_count(broker: "Broker", asked: dict[str, Any]) -> int:
    if asked["assignments"]:
        return len(asked["assignments"])
    return broker.settings.num_partitions if asked["num_partitions"] == UNSET else asked["num_partitions"]


def _counted(count: int) -> int:
    """What a topic adds to those of its request; an impossible number is refused by itself."""
    return count if 1 <= count <= PARTITIONS_MAX else 0


def _choice(broker: "Broker", asked: dict[str, Any], mode: str | None) -> Choice:
    count, factor, assignments = asked["num_partitions"], asked["replication_factor"], asked["assignments"]
    if assignments:
        if count != UNSET or factor != UNSET:
            raise InvalidRequestError(
                "With a replica assignment, partitions and replication factor must be -1."
            )
        return by_assignment(broker, asked["name"], assignments, mode)
    wanted = _partition_count(broker, asked)
    if not 1 <= wanted <= PARTITIONS_MAX:
        raise InvalidPartitionsError(f"A topic has 1 to {PARTITIONS_MAX} partitions, not {wanted}.")
    return by_factor(broker, asked["name"], wanted, factor, mode)


def refuse(request: dict[str, Any], error: AnabranchError) -> dict[str, Any]:
    names = dict.fromkeys(topic["name"] for topic in request["topics"])
    return {"topics": [{**refused(error), "name": name, "configs": []} for name in names]}
