"""LeaveGroup, versions 0 to 5: one member before version 3, several by member or instance id since."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.call import Call
from anabranch.broker.error_table import code_of
from anabranch.broker.groups.messages import Identity, LeaveOutcome
from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

MEMBERS_SINCE = 3


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    one_only = call.header.api_version < MEMBERS_SINCE
    if one_only:
        leaving = [Identity(request["member_id"])]
    else:
        leaving = [
            Identity(member["member_id"], member["group_instance_id"]) for member in request["members"]
        ]
    try:
        outcomes = broker.groups.leave(request["group_id"], leaving)
    except AnabranchError as error:
        return {"error_code": code_of(error)}
    if one_only:
        return {"error_code": _code(outcomes[0])}
    return {
        "error_code": 0,
        "members": [
            {
                "member_id": outcome.identity.member_id,
                "group_instance_id": outcome.identity.instance_id,
                "error_code": _code(outcome),
            }
            for outcome in outcomes
        ],
    }


def _code(outcome: LeaveOutcome) -> int:
    return 0 if outcome.error is None else code_of(outcome.error)
