"""DescribeMember, version 0, ours: where one member of a classic group stands; asking is its heartbeat.

Kafka's requests tell a member its generation and its assignment once, when it joins, and expect it to remember. Whoever
speaks for a member without remembering anything, as the gateway does for sessions by HTTP, asks here instead.
"""

from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import accepted, refused
from anabranch.broker.requests.call import Call
from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    try:
        standing = broker.groups.standing(request["group_id"], request["member_id"])
    except AnabranchError as error:
        return {**refused(error), "protocol_name": "", "metadata": b"", "assignment": b""}
    return {
        **accepted(),
        "is_stable": standing.is_stable,
        "is_leader": standing.is_leader,
        "generation_id": standing.generation,
        "session_timeout_ms": standing.session_timeout_ms,
        "protocol_name": standing.protocol_name,
        "metadata": standing.metadata,
        "assignment": standing.assignment,
    }
