"""LeaveGroup, versions 0 to 5: one member before version 3, several by member or instance id since."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.broker.requests.turns import Rows
from anabranch.coordination.groups.messages import Identity, LeaveOutcome
from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

MEMBERS_SINCE = 3


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> Rows:
    group_id = request["group_id"]
    try:
        if call.header.api_version < MEMBERS_SINCE:
            (outcome,) = broker.groups.leave(group_id, [Identity(request["member_id"])])
            return {"error_code": _code(outcome)}
        broker.groups.leave(group_id, [])  # Whether this broker coordinates the group at all.
        rows = []
        for member in request["members"]:
            identity = Identity(member["member_id"], member["group_instance_id"])
            (outcome,) = broker.groups.leave(group_id, [identity])
            rows.append(
                {
                    "member_id": identity.member_id,
                    "group_instance_id": identity.instance_id,
                    "error_code": _code(outcome),
                }
            )
            yield
        return {"error_code": 0, "members": rows}
    except AnabranchError as error:
        return {"error_code": code_of(error)}


def _code(outcome: LeaveOutcome) -> int:
    return 0 if outcome.error is None else code_of(outcome.error)
