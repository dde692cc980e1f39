"""DeleteGroups, API key 42."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "DeleteGroupsRequest",
    versions="0-2",
    flexible="2+",
    fields=(
        F("groups_names", "[]string", "0+"),
    ),
)

RESPONSE = Message(
    "DeleteGroupsResponse",
    versions="0-2",
    flexible="2+",
    fields=(
        F("throttle_time_ms", "int32", "0+"),
        F("results", "[]struct", "0+", fields=(
            F("group_id", "string", "0+"),
            F("error_code", "int16", "0+"),
        )),
    ),
)
