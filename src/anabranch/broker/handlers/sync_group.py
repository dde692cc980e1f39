"""SyncGroup, versions 0 to 5: the leader brings the assignment, everybody leaves with their part of it."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.coordination.groups.messages import SyncRequest
from anabranch.errors import AnabranchError, InconsistentGroupProtocolError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

PROTOCOL_SINCE = 5


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    asked = SyncRequest(
        group_id=request["group_id"],
        member_id=request["member_id"],
        generation=request["generation_id"],
        instance_id=request["group_instance_id"],
        protocol_type=request["protocol_type"],
        protocol_name=request["protocol_name"],
        assignments=tuple((each["member_id"], each["assignment"]) for each in request["assignments"]),
    )
    try:
        if call.header.api_version >= PROTOCOL_SINCE and None in (asked.protocol_type, asked.protocol_name):
            raise InconsistentGroupProtocolError("Since version 5 a member says what it has joined for.")
        answer = await broker.groups.sync(asked)
    except AnabranchError as error:
        return {"error_code": code_of(error), "assignment": b""}
    return {
        "error_code": 0,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol_name,
        "assignment": answer.assignment,
    }
