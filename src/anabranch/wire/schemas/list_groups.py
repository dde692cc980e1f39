"""ListGroups, API key 16."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "ListGroupsRequest",
    versions="0-5",
    flexible="3+",
    fields=(
        F("states_filter", "[]string", "4+"),
        F("types_filter", "[]string", "5+"),
    ),
)

RESPONSE = Message(
    "ListGroupsResponse",
    versions="0-5",
    flexible="3+",
    fields=(
        F("throttle_time_ms", "int32", "1+"),
        F("error_code", "int16", "0+"),
        F("groups", "[]struct", "0+", fields=(
            F("group_id", "string", "0+"),
            F("protocol_type", "string", "0+"),
            F("group_state", "string", "4+"),
            F("group_type", "string", "5+"),
        )),
    ),
)
