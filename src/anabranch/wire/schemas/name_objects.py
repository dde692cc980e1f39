"""NameObjects, API key 16101, ours: names under which a job may store what it has merged.

Only the broker that gave a name takes a replacement that uses it, and only for a while.
"""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "NameObjectsRequest",
    versions="0",
    flexible="0+",
    fields=(
        F("count", "int32", "0+"),
    ),
)

RESPONSE = Message(
    "NameObjectsResponse",
    versions="0",
    flexible="0+",
    fields=(
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("names", "[]string", "0+"),
    ),
)
