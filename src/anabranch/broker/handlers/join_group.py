"""JoinGroup, versions 0 to 9: a member enters a group, or enters again, and waits until the group is complete."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.coordination.groups.messages import JoinRequest
from anabranch.errors import AnabranchError, MemberIdRequiredError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

NULL_PROTOCOL_SINCE = 7


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    version = call.header.api_version
    asked = JoinRequest(
        group_id=request["group_id"],
        member_id=request["member_id"],
        protocol_type=request["protocol_type"],
        protocols=tuple((protocol["name"], protocol["metadata"]) for protocol in request["protocols"]),
        session_timeout_ms=request["session_timeout_ms"],
        rebalance_timeout_ms=request["rebalance_timeout_ms"],
        instance_id=request["group_instance_id"],
        client_id=call.header.client_id or "",
        client_host=f"/{call.client.host}",
        version=version,
    )
    try:
        answer = await broker.groups.join(asked)
    except AnabranchError as error:
        return _refused(error, asked.member_id, version)
    return {
        "error_code": 0,
        "generation_id": answer.generation,
        "protocol_type": answer.protocol_type,
        "protocol_name": _name(answer.protocol_name, version),
        "leader": answer.leader,
        "skip_assignment": answer.skip_assignment,
        "member_id": answer.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "metadata": member.metadata,
            }
            for member in answer.members
        ],
    }


def _refused(error: AnabranchError, member_id: str, version: int) -> dict[str, Any]:
    if isinstance(error, MemberIdRequiredError):
        member_id = error.member_id
    return {
        "error_code": code_of(error),
        "protocol_name": _name(None, version),
        "leader": "",
        "member_id": member_id,
        "members": [],
    }


def _name(protocol_name: str | None, version: int) -> str | None:
    return protocol_name if protocol_name is not None or version >= NULL_PROTOCOL_SINCE else ""
