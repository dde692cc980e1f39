"""Protocols that this version does not serve, and whose clients would otherwise wait for ever: a refusal that each of
them takes for final.

ConsumerGroupHeartbeat v0 to 1 (KIP-848) and ShareGroupHeartbeat v1 (KIP-932): librdkafka asks again without end where
they are not advertised. UNSUPPORTED_VERSION, which a Kafka broker answers while they are switched off, is a fatal error
of the consumer. SaslHandshake v0 to 1 and SaslAuthenticate v0 to 2: Java's clients connect again and again if they are
only disconnected; ILLEGAL_SASL_STATE, which Kafka answers on a port without SASL, ends them at once. Transactions are
refused by FindCoordinator, InitProducerId and Produce.
"""

from typing import TYPE_CHECKING, Any

from anabranch.broker.requests.call import Call
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


def consumer_group_heartbeat(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    return _unsupported(
        request, "This version has no consumer group protocol (KIP-848): set group.protocol=classic."
    )


def share_group_heartbeat(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    return _unsupported(request, "This version has no share groups (KIP-932): use a consumer group.")


def _unsupported(request: dict[str, Any], message: str) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.UNSUPPORTED_VERSION,
        "error_message": message,
        "member_id": request["member_id"],
        "member_epoch": request["member_epoch"],
    }


def sasl_handshake(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": []}


def sasl_authenticate(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.ILLEGAL_SASL_STATE,
        "error_message": "This port has no SASL: set security.protocol=PLAINTEXT.",
    }
