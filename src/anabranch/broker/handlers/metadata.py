"""Metadata, versions 0 to 13: brokers, topics by name or id, and creation on first use where that is allowed.

An auto-created topic is in the answer at once, on every broker; while the quorum has no leader it is said to have none,
upon which clients ask again.
"""

from typing import TYPE_CHECKING, Any
from uuid import UUID

from anabranch.broker.handlers.answers import (
    CLUSTER_OPERATIONS,
    OPERATIONS_NOT_ASKED,
    PARTITIONS_PER_ROW,
    controller_id,
    partition_count,
    topic_row,
)
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.errors import (
    AnabranchError,
    InvalidRequestError,
    NotControllerError,
    PeerError,
    QuorumBusyError,
    RequestTimedOutError,
)
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.requests.turns import Pace
    from anabranch.broker.topics.topics import TopicState
    from anabranch.cluster.metadata.rows import BrokerRow

NO_ID = UUID(int=0)
NULL_NAME_SINCE = 12


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    version = call.header.api_version
    asked = request["topics"]
    pace = broker.turns.pace()
    rows = []
    if asked is None or (version == 0 and not asked):
        for state in list(broker.topics):
            await pace.row()
            await pace.row(partition_count(broker, state) // PARTITIONS_PER_ROW)
            # Asked for once more: the topic may have been deleted while others had their turn.
            if (current := broker.topics.find(state.topic.topic_id)) is not None:
                rows.append(_row(broker, current, request))
    else:
        for topic in _distinct(asked):
            await pace.row()
            rows.append(await _asked_row(broker, topic, request, version, pace))
    return {
        "brokers": [_broker(broker, call, row) for row in broker.orchestrator.available()],
        "cluster_id": broker.cluster_id,
        "controller_id": controller_id(broker),
        "topics": rows,
        "cluster_authorized_operations": CLUSTER_OPERATIONS
        if request["include_cluster_authorized_operations"]
        else OPERATIONS_NOT_ASKED,
    }


def _broker(broker: "Broker", call: Call, row: "BrokerRow") -> dict[str, Any]:
    host, port = broker.address_in(row, call.client)
    return {"node_id": row.broker_id, "host": host, "port": port, "rack": row.rack}


def _distinct(asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({(topic["name"], topic["topic_id"]): topic for topic in asked}.values())


def _row(broker: "Broker", state: "TopicState", request: dict[str, Any]) -> dict[str, Any]:
    return topic_row(broker, state, operations=request["include_topic_authorized_operations"])


async def _asked_row(
    broker: "Broker", topic: dict[str, Any], request: dict[str, Any], version: int, pace: "Pace"
) -> dict[str, Any]:
    name, topic_id = topic["name"], topic["topic_id"]
    try:
        state = await _find(broker, name, topic_id, request["allow_auto_topic_creation"])
        await pace.row(partition_count(broker, state) // PARTITIONS_PER_ROW)
        # Asked for once more: it may have been deleted while others had their turn.
        return _row(broker, broker.topics.readable(state.topic.topic_id), request)
    except AnabranchError as error:
        return {
            "error_code": _code_of(error),
            "name": "" if name is None and version < NULL_NAME_SINCE else name,
            "topic_id": topic_id,
            "partitions": [],
        }


def _code_of(error: AnabranchError) -> ErrorCode:
    """A topic that could not be made yet: clients know this answer, and ask again."""
    if isinstance(error, NotControllerError | QuorumBusyError | RequestTimedOutError | PeerError):
        return ErrorCode.LEADER_NOT_AVAILABLE
    return code_of(error)


async def _find(broker: "Broker", name: str | None, topic_id: UUID, may_create: bool) -> "TopicState":
    if topic_id != NO_ID:  # Where both are given, the id counts, as in Kafka.
        return broker.topics.readable(topic_id)
    if name is None:
        raise InvalidRequestError("A topic is asked for by neither name nor id.")
    if broker.topics.find_readable(name) is None:
        broker.topics.check_name(name)
        if may_create and broker.settings.auto_create_topics_enable:
            return await broker.topics.create_on_use(name)
    return broker.topics.readable(name)
