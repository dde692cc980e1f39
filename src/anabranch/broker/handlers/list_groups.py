"""ListGroups, versions 0 to 5, with filters by state and by type."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.broker.requests.turns import Rows
from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> Rows:
    try:
        groups = broker.groups.list_groups(request["states_filter"], request["types_filter"])
    except AnabranchError as error:
        return {"error_code": code_of(error), "groups": []}
    rows = []
    for group in groups:
        rows.append(
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.group_type,
            }
        )
        yield
    return {"error_code": 0, "groups": rows}
