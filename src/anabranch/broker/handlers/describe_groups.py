"""DescribeGroups, versions 0 to 6: state, protocol and members. An unknown group is Dead, an error since 6."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.call import Call
from anabranch.broker.groups.messages import DescribedGroup
from anabranch.broker.handlers.answers import GROUP_OPERATIONS, OPERATIONS_NOT_ASKED, accepted, refused
from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    operations = GROUP_OPERATIONS if request["include_authorized_operations"] else OPERATIONS_NOT_ASKED
    rows = [_row(broker, group_id, call.header.api_version) for group_id in dict.fromkeys(request["groups"])]
    return {"groups": [{**row, "authorized_operations": operations} for row in rows]}


def _row(broker: "Broker", group_id: str, version: int) -> dict[str, Any]:
    try:
        group = broker.groups.describe(group_id, version)
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
