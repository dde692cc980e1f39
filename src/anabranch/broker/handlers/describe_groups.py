"""DescribeGroups, versions 0 to 6: state, protocol and members. An unknown group is Dead, an error since 6."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import (
    GROUP_OPERATIONS,
    OPERATIONS_NOT_ASKED,
    AnswerRoom,
    accepted,
    refused,
)
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.turns import Rows
from anabranch.coordination.groups.messages import DescribedGroup
from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


MEMBER_BYTES = 300
"""What one of them takes in memory besides its metadata and its assignment."""


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> Rows:
    operations = GROUP_OPERATIONS if request["include_authorized_operations"] else OPERATIONS_NOT_ASKED
    room = AnswerRoom(broker)
    rows = []
    for group_id in dict.fromkeys(request["groups"]):
        row = _row(broker, group_id, call.header.api_version, room)
        rows.append({**row, "authorized_operations": operations})
        yield
    return {"groups": rows}


def _row(broker: "Broker", group_id: str, version: int, room: AnswerRoom) -> dict[str, Any]:
    try:
        group = broker.groups.describe(group_id, version)
        for member in group.members:
            room.take(len(member.metadata) + len(member.assignment) + MEMBER_BYTES)
    except AnabranchError as error:
        return {**_described(DescribedGroup(group_id, "Dead")), **refused(error)}
    return {**_described(group), **accepted()}


def _described(group: DescribedGroup) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
    }
