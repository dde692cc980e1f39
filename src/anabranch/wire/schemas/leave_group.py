"""LeaveGroup, API key 13."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "LeaveGroupRequest",
    versions="0-5",
    flexible="4+",
    fields=(
        F("group_id", "string", "0+"),
        F("member_id", "string", "0-2"),
        F("members", "[]struct", "3+", fields=(
            F("member_id", "string", "3+"),
            F("group_instance_id", "string", "3+", nullable="3+", default=None),
            F("reason", "string", "5+", nullable="5+", default=None),
        )),
    ),
)

RESPONSE = Message(
    "LeaveGroupResponse",
    versions="0-5",
    flexible="4+",
    fields=(
        F("throttle_time_ms", "int32", "1+"),
        F("error_code", "int16", "0+"),
        F("members", "[]struct", "3+", fields=(
            F("member_id", "string", "3+"),
            F("group_instance_id", "string", "3+", nullable="3+"),
            F("error_code", "int16", "3+"),
        )),
    ),
)
