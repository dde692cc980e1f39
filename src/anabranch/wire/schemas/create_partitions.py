"""CreatePartitions, API key 37."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "CreatePartitionsRequest",
    versions="0-3",
    flexible="2+",
    fields=(
        F("topics", "[]struct", "0+", fields=(
            F("name", "string", "0+"),
            F("count", "int32", "0+"),
            F("assignments", "[]struct", "0+", nullable="0+", fields=(
                F("broker_ids", "[]int32", "0+"),
            )),
        )),
        F("timeout_ms", "int32", "0+"),
        F("validate_only", "bool", "0+"),
    ),
)

RESPONSE = Message(
    "CreatePartitionsResponse",
    versions="0-3",
    flexible="2+",
    fields=(
        F("throttle_time_ms", "int32", "0+"),
        F("results", "[]struct", "0+", fields=(
            F("name", "string", "0+"),
            F("error_code", "int16", "0+"),
            F("error_message", "string", "0+", nullable="0+", default=None),
        )),
    ),
)
