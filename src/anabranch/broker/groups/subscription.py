"""Which topics a consumer's metadata names: the one part of the consumer protocol a coordinator must read.

All versions of ConsumerProtocolSubscription begin alike (version, then topic names), so nothing behind is
looked at.
"""

import struct


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """None if these bytes are not a consumer's subscription."""
    try:
        version, count = struct.unpack_from(">hi", metadata)
        if version < 0 or count < 0 or count > len(metadata):
            return None
        return frozenset(_strings(metadata, 6, count))
    except (struct.error, UnicodeDecodeError, EOFError):
        return None


def _strings(data: bytes, position: int, count: int) -> list[str]:
    found = []
    for _ in range(count):
        (length,) = struct.unpack_from(">h", data, position)
        position += 2
        if length < 0 or position + length > len(data):
            raise EOFError
        found.append(data[position : position + length].decode())
        position += length
    return found
