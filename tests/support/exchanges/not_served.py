"""Protocols that are not served: their clients get an answer that ends them."""

from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.exchanges.world import World
from support.raw_client import RawClient


def sasl_handshake(client: RawClient, version: int, world: World) -> None:
    answer = client.ask(ApiKey.SASL_HANDSHAKE, version, {"mechanism": "PLAIN"})
    assert (answer["error_code"], answer["mechanisms"]) == (E.ILLEGAL_SASL_STATE, [])


def sasl_authenticate(client: RawClient, version: int, world: World) -> None:
    answer = client.ask(ApiKey.SASL_AUTHENTICATE, version, {"auth_bytes": b"\0u\0p"})
    assert answer["error_code"] == E.ILLEGAL_SASL_STATE
    assert "PLAINTEXT" in answer["error_message"]


def consumer_heartbeat(client: RawClient, version: int, world: World) -> None:
    body = {"group_id": world.fresh("g"), "member_id": "m", "subscribed_topic_names": [world.topic]}
    answer = client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, body)
    assert (answer["error_code"], answer["member_id"]) == (E.UNSUPPORTED_VERSION, "m")
    assert "group.protocol=classic" in answer["error_message"]


def share_heartbeat(client: RawClient, version: int, world: World) -> None:
    body = {"group_id": world.fresh("g"), "member_id": "m", "subscribed_topic_names": [world.topic]}
    answer = client.ask(ApiKey.SHARE_GROUP_HEARTBEAT, version, body)
    assert answer["error_code"] == E.UNSUPPORTED_VERSION
    assert "share groups" in answer["error_message"]
