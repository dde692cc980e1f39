"""SyncGroup, API key 14."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "SyncGroupRequest",
    versions="0-5",
    flexible="4+",
    fields=(
        F("group_id", "string", "0+"),
        F("generation_id", "int32", "0+"),
        F("member_id", "string", "0+"),
        F("group_instance_id", "string", "3+", nullable="3+", default=None),
        F("protocol_type", "string", "5+", nullable="5+", default=None),
        F("protocol_name", "string", "5+", nullable="5+", default=None),
        F("assignments", "[]struct", "0+", fields=(
            F("member_id", "string", "0+"),
            F("assignment", "bytes", "0+"),
        )),
    ),
)

RESPONSE = Message(
    "SyncGroupResponse",
    versions="0-5",
    flexible="4+",
    fields=(
        F("throttle_time_ms", "int32", "1+"),
        F("error_code", "int16", "0+"),
        F("protocol_type", "string", "5+", nullable="5+", default=None),
        F("protocol_name", "string", "5+", nullable="5+", default=None),
        F("assignment", "bytes", "0+"),
    ),
)
