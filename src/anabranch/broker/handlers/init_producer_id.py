"""InitProducerId, versions 0 to 5, for idempotent producers. A transactional id is refused: there are no
transactions yet. Ids are handed out from blocks that the metadata log has reserved, so none is given twice.
"""

from typing import TYPE_CHECKING, Any

from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.errors import AnabranchError, InvalidRequestError, TransactionsUnsupportedError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

NONE = -1


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    try:
        if request["transactional_id"] is not None:
            raise TransactionsUnsupportedError("This version has no transactions.")
        if (request["producer_id"] == NONE) != (request["producer_epoch"] == NONE):
            raise InvalidRequestError("A producer that has an id has an epoch too.")
        producer_id = await broker.producer_ids.take()
    except AnabranchError as error:
        return {"error_code": code_of(error), "producer_id": -1, "producer_epoch": -1}
    return {"error_code": 0, "producer_id": producer_id, "producer_epoch": 0}
