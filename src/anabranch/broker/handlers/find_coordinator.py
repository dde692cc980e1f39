"""FindCoordinator, versions 0 to 6: a group's coordinator leads the partition of `__consumer_offsets` that keeps it.
Transactions and share groups are refused.

A node that is alone coordinates every group, also before the first one writes. In a cluster the topic is made when
somebody asks for the first time, and until it has a leader there is no coordinator: clients ask again.

The group without a name has a coordinator too: nobody can join it, but offsets can be committed to it.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from anabranch.broker.coordination.offsets_topic import index_of
from anabranch.broker.handlers.answers import accepted, refused
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.turns import Rows
from anabranch.broker.topics.topics import OFFSETS_TOPIC
from anabranch.coordination.groups.group_base import check_length
from anabranch.errors import (
    AnabranchError,
    CoordinatorNotAvailableError,
    InvalidRequestError,
    TransactionsUnsupportedError,
)
from anabranch.values import BrokerId
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

GROUP, TRANSACTION = 0, 1
KEYS_SINCE = 4


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> Rows | Awaitable[dict[str, Any]]:
    is_first = not broker.is_alone and broker.topics.find(OFFSETS_TOPIC) is None
    if is_first and request["key_type"] == GROUP:
        return _make_and_answer(broker, call, request)
    return _answer(broker, call, request)


async def _make_and_answer(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    try:
        await broker.offsets_topic.made()
    except CoordinatorNotAvailableError as error:
        return await broker.turns.driven(_answer(broker, call, request, error))
    return await broker.turns.driven(_answer(broker, call, request))


def _answer(
    broker: "Broker", call: Call, request: dict[str, Any], error: AnabranchError | None = None
) -> Rows:
    """All rows; with `error` none of them has a coordinator."""
    key_type = request["key_type"]
    if call.header.api_version < KEYS_SINCE:
        return _row_of_old(broker, call, key_type, request["key"], error)
    rows = []
    for key in request["coordinator_keys"]:
        rows.append({"key": key, **_row(broker, call, key_type, key, error)})
        yield
    return {"coordinators": rows}


def _row_of_old(
    broker: "Broker", call: Call, key_type: int, key: str, error: AnabranchError | None
) -> dict[str, Any]:
    """librdkafka asks like this, and asks again for ever unless it is told that the transactional id is refused.

    Newer clients get INVALID_REQUEST instead: on that code Java shows our sentence, on this one its own.
    """
    row = _row(broker, call, key_type, key, error)
    if key_type == TRANSACTION:
        row["error_code"] = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return row


def _row(
    broker: "Broker", call: Call, key_type: int, key: str, error: AnabranchError | None
) -> dict[str, Any]:
    try:
        _check(key_type)
        if error is not None:
            raise error
        node_id, (host, port) = _coordinator(broker, call, key)
    except AnabranchError as refusal:
        return {**refused(refusal), "node_id": -1, "host": "", "port": -1}
    return {**accepted(), "node_id": node_id, "host": host, "port": port}


def _coordinator(broker: "Broker", call: Call, group_id: str) -> tuple[BrokerId, tuple[str, int]]:
    check_length(group_id)
    if broker.is_alone:
        return BrokerId(broker.id), broker.address_for(call.client)
    state = broker.topics.find(OFFSETS_TOPIC)
    leader = None if state is None else broker.leader_of(state, index_of(group_id, state))
    address = None if leader is None else broker.address_of(leader, call.client)
    if leader is None or address is None:
        raise CoordinatorNotAvailableError(f"Group {group_id} has no coordinator just now: ask again.")
    return leader, address


def _check(key_type: int) -> None:
    if key_type == TRANSACTION:
        raise TransactionsUnsupportedError("This version has no transactions: leave transactional.id unset.")
    if key_type != GROUP:
        raise InvalidRequestError(
            f"There is no coordinator of type {key_type} here: only groups (0) have one."
        )
