"""What consumers put into the opaque bytes of JoinGroup and SyncGroup: a version, then the message.

The broker never needs it to run a group; it reads it to know which topics a group still subscribes to. As
Kafka does, a version newer than ours is read as our newest, and what follows it is ignored: newer versions
only add at the end.
"""

import struct
from typing import Any

from anabranch.errors import ProtocolError
from anabranch.wire.codec import decode_message, encode_message
from anabranch.wire.table import Message, bounds

_VERSION = struct.Struct(">h")


def _subscription() -> Message:
    from anabranch.wire.schemas.consumer_protocol import SUBSCRIPTION

    return SUBSCRIPTION


def _assignment() -> Message:
    from anabranch.wire.schemas.consumer_protocol import ASSIGNMENT

    return ASSIGNMENT


def decode_subscription(data: bytes) -> dict[str, Any]:
    return _decode(_subscription(), data)


def decode_assignment(data: bytes) -> dict[str, Any]:
    return _decode(_assignment(), data)


def encode_subscription(version: int, body: dict[str, Any]) -> bytes:
    return _VERSION.pack(version) + encode_message(_subscription(), version, body)


def encode_assignment(version: int, body: dict[str, Any]) -> bytes:
    return _VERSION.pack(version) + encode_message(_assignment(), version, body)


def _decode(message: Message, data: bytes) -> dict[str, Any]:
    if len(data) < _VERSION.size:
        raise ProtocolError(f"{message.name}: {len(data)} bytes hold no version.")
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise ProtocolError(f"{message.name}: there is no version {version}.")
    _, newest = bounds(message.versions)
    body, _ = decode_message(message, min(version, newest), memoryview(data), _VERSION.size)
    return body
