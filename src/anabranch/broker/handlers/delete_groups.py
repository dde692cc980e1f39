"""DeleteGroups, versions 0 to 2: a group without members goes, with all its offsets."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    pace = broker.turns.pace()
    rows = []
    for group_id in dict.fromkeys(request["groups_names"]):
        await pace.row()
        rows.append(await _row(broker, group_id))
    return {"results": rows}


async def _row(broker: "Broker", group_id: str) -> dict[str, Any]:
    try:
        await broker.groups.delete_group(group_id)
    except AnabranchError as error:
        return {"group_id": group_id, "error_code": code_of(error)}
    return {"group_id": group_id, "error_code": 0}
