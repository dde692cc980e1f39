"""Subscriptions and assignments, there and back."""

import pytest

from anabranch.errors import ProtocolError
from anabranch.wire import consumer_protocol


def test_subscription_comes_back_as_it_went() -> None:
    data = consumer_protocol.encode_subscription(1, {"topics": ["orders"], "user_data": b"x"})
    assert data == b"\x00\x01\x00\x00\x00\x01\x00\x06orders\x00\x00\x00\x01x\x00\x00\x00\x00"
    assert consumer_protocol.decode_subscription(data)["topics"] == ["orders"]


def test_assignment_comes_back_as_it_went() -> None:
    partitions = [{"topic": "orders", "partitions": [0, 2]}]
    data = consumer_protocol.encode_assignment(0, {"assigned_partitions": partitions})
    decoded = consumer_protocol.decode_assignment(data)
    assert decoded == {"assigned_partitions": partitions, "user_data": None}


def test_version_newer_than_ours_is_read_as_our_newest() -> None:
    data = consumer_protocol.encode_subscription(3, {"topics": ["t"], "rack_id": "r"})
    newer = b"\x00\x63" + data[2:] + b"more"
    assert consumer_protocol.decode_subscription(newer)["rack_id"] == "r"


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xff\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\x09"])
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="ConsumerProtocolSubscription"):
        consumer_protocol.decode_subscription(data)
