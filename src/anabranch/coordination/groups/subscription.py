"""Which topics a consumer's metadata names: the one part of the consumer protocol a coordinator must read."""

from anabranch.errors import ProtocolError
from anabranch.wire.consumer_protocol import decode_subscription


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """None if these bytes are not a consumer's subscription."""
    try:
        return frozenset(decode_subscription(metadata)["topics"])
    except ProtocolError:
        return None
