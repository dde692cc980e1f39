"""FindCoordinator, versions 0 to 6: this node coordinates every group. Transactions and share groups are refused.

The group without a name has a coordinator too: nobody can join it, but offsets can be committed to it.
"""

from typing import TYPE_CHECKING, Any

from anabranch.broker.call import Call
from anabranch.broker.handlers.answers import accepted, refused
from anabranch.errors import AnabranchError, InvalidRequestError, TransactionsUnsupportedError
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

GROUP, TRANSACTION = 0, 1
KEYS_SINCE = 4


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    key_type = request["key_type"]
    if call.header.api_version < KEYS_SINCE:
        return _row_of_old(broker, call, key_type)
    keys = request["coordinator_keys"]
    return {"coordinators": [{"key": key, **_row(broker, call, key_type)} for key in keys]}


def _row_of_old(broker: "Broker", call: Call, key_type: int) -> dict[str, Any]:
    """librdkafka asks like this, and asks again for ever unless it is told that the transactional id is refused.

    Newer clients get INVALID_REQUEST instead: on that code Java shows our sentence, on this one its own.
    """
    row = _row(broker, call, key_type)
    if key_type == TRANSACTION:
        row["error_code"] = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return row


def _row(broker: "Broker", call: Call, key_type: int) -> dict[str, Any]:
    try:
        _check(key_type)
    except AnabranchError as error:
        return {**refused(error), "node_id": -1, "host": "", "port": -1}
    host, port = broker.address_for(call.client)
    return {**accepted(), "node_id": broker.id, "host": host, "port": port}


def _check(key_type: int) -> None:
    if key_type == TRANSACTION:
        raise TransactionsUnsupportedError("This version has no transactions: leave transactional.id unset.")
    if key_type != GROUP:
        raise InvalidRequestError(
            f"There is no coordinator of type {key_type} here: only groups (0) have one."
        )
