"""Who leads instead, and where (KIP-951): tagged fields that Produce (since v10) and Fetch (since v12, with addresses
since v16) add to an answer which says that this broker does not lead."""

import struct
from collections.abc import Sequence

from anabranch.wire.primitives import (
    write_compact_count,
    write_compact_nullable_string,
    write_compact_string,
    write_uvarint,
)

LeaderHint = tuple[int, int]
"""Broker id and leader epoch; -1 where nobody knows."""

Endpoint = tuple[int, str, int, str | None]
"""Broker id, host, port, rack."""

_leader = struct.Struct(">BBiix").pack
_int32 = struct.Struct(">i").pack
LEADER_BYTES = 9
NODE_ENDPOINTS_TAG = 0


def leader_field(tag: int, hint: LeaderHint) -> bytes:
    """`current_leader` with its tag and size."""
    return _leader(tag, LEADER_BYTES, *hint)


def write_endpoints(out: bytearray, endpoints: Sequence[Endpoint]) -> None:
    """The tagged fields at the end of an answer: `node_endpoints`, if there are any."""
    if not endpoints:
        out.append(0)
        return
    told = bytearray()
    write_compact_count(told, len(endpoints))
    for broker_id, host, port, rack in endpoints:
        told += _int32(broker_id)
        write_compact_string(told, host)
        told += _int32(port)
        write_compact_nullable_string(told, rack)
        told.append(0)
    out += bytes((1, NODE_ENDPOINTS_TAG))
    write_uvarint(out, len(told))
    out += told
