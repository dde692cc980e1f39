"""InitProducerId and FindCoordinator."""

from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.exchanges.world import Body, World, only
from support.raw_client import RawClient


def init_producer_id(client: RawClient, version: int, world: World) -> None:
    body = {"transactional_id": None, "transaction_timeout_ms": 1000}
    ids = []
    for _ in range(2):
        answer = client.ask(ApiKey.INIT_PRODUCER_ID, version, body)
        assert (answer["error_code"], answer["producer_epoch"]) == (0, 0)
        ids.append(answer["producer_id"])
    assert 0 <= ids[0] < ids[1]


def init_producer_id_refused(client: RawClient, version: int, world: World) -> None:
    answer = client.ask(ApiKey.INIT_PRODUCER_ID, version, {"transactional_id": "tx"})
    assert answer["error_code"] == E.INVALID_REQUEST
    assert (answer["producer_id"], answer["producer_epoch"]) == (-1, -1)


def _find_coordinator(client: RawClient, version: int, kind: int, key: str) -> Body:
    body = {"key": key, "key_type": kind, "coordinator_keys": [key]}
    answer = client.ask(ApiKey.FIND_COORDINATOR, version, body)
    if version < 4:
        return answer
    row = only(answer["coordinators"])
    assert row["key"] == key
    return row


def find_coordinator(client: RawClient, version: int, world: World) -> None:
    row = _find_coordinator(client, version, 0, "some-group")
    assert (row["error_code"], row["error_message"] or None, row["node_id"]) == (0, None, 0)
    assert (row["host"], row["port"]) == client.sock.getpeername()


def find_coordinator_refused(client: RawClient, version: int, world: World) -> None:
    if version == 0:
        return  # It knows groups only, and every group has a coordinator.
    refusals = [
        (1, "tx", E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if version < 4 else E.INVALID_REQUEST),
        (2, "share", E.INVALID_REQUEST),
        (-3, "x", E.INVALID_REQUEST),
    ]
    for kind, key, code in refusals:
        row = _find_coordinator(client, version, kind, key)
        assert (row["error_code"], row["node_id"]) == (code, -1)
        assert row["error_message"]
