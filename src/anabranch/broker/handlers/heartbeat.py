"""Heartbeat, versions 0 to 4: a member is alive, and learns whether its group rebalances."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    try:
        broker.groups.heartbeat(
            request["group_id"], request["member_id"], request["generation_id"], request["group_instance_id"]
        )
    except AnabranchError as error:
        return {"error_code": code_of(error)}
    return {"error_code": 0}
