"""OffsetDelete, API key 47."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "OffsetDeleteRequest",
    versions="0",
    flexible="none",
    fields=(
        F("group_id", "string", "0+"),
        F("topics", "[]struct", "0+", fields=(
            F("name", "string", "0+"),
            F("partitions", "[]struct", "0+", fields=(
                F("partition_index", "int32", "0+"),
            )),
        )),
    ),
)

RESPONSE = Message(
    "OffsetDeleteResponse",
    versions="0",
    flexible="none",
    fields=(
        F("error_code", "int16", "0+"),
        F("throttle_time_ms", "int32", "0+"),
        F("topics", "[]struct", "0+", fields=(
            F("name", "string", "0+"),
            F("partitions", "[]struct", "0+", fields=(
                F("partition_index", "int32", "0+"),
                F("error_code", "int16", "0+"),
            )),
        )),
    ),
)
