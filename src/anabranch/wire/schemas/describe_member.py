"""DescribeMember, API key 16104, ours: where one member of a classic group stands, for whoever speaks on its behalf.

Asking counts as the member's heartbeat. `assignment` is of this generation: while the members of a group that is not
stable gather for the next one it is still there, and while that one is being dealt out it is empty.
"""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "DescribeMemberRequest",
    versions="0",
    flexible="0+",
    fields=(
        F("group_id", "string", "0+"),
        F("member_id", "string", "0+"),
    ),
)

RESPONSE = Message(
    "DescribeMemberResponse",
    versions="0",
    flexible="0+",
    fields=(
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("is_stable", "bool", "0+"),
        F("is_leader", "bool", "0+"),
        F("generation_id", "int32", "0+", default=-1),
        F("session_timeout_ms", "int32", "0+"),
        F("protocol_name", "string", "0+"),
        F("metadata", "bytes", "0+"),
        F("assignment", "bytes", "0+"),
    ),
)
