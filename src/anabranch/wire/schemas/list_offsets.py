"""ListOffsets, API key 2."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "ListOffsetsRequest",
    versions="1-11",
    flexible="6+",
    fields=(
        F("replica_id", "int32", "0+"),
        F("isolation_level", "int8", "2+"),
        F("topics", "[]struct", "0+", fields=(
            F("name", "string", "0+"),
            F("partitions", "[]struct", "0+", fields=(
                F("partition_index", "int32", "0+"),
                F("current_leader_epoch", "int32", "4+", default=-1),
                F("timestamp", "int64", "0+"),
            )),
        )),
        F("timeout_ms", "int32", "10+"),
    ),
)

RESPONSE = Message(
    "ListOffsetsResponse",
    versions="1-11",
    flexible="6+",
    fields=(
        F("throttle_time_ms", "int32", "2+"),
        F("topics", "[]struct", "0+", fields=(
            F("name", "string", "0+"),
            F("partitions", "[]struct", "0+", fields=(
                F("partition_index", "int32", "0+"),
                F("error_code", "int16", "0+"),
                F("timestamp", "int64", "1+", default=-1),
                F("offset", "int64", "1+", default=-1),
                F("leader_epoch", "int32", "4+", default=-1),
            )),
        )),
    ),
)
