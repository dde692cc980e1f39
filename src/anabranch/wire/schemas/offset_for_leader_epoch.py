"""OffsetForLeaderEpoch, API key 23."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "OffsetForLeaderEpochRequest",
    versions="2-4",
    flexible="4+",
    fields=(
        F("replica_id", "int32", "3+", default=-2),
        F("topics", "[]struct", "0+", fields=(
            F("topic", "string", "0+"),
            F("partitions", "[]struct", "0+", fields=(
                F("partition", "int32", "0+"),
                F("current_leader_epoch", "int32", "2+", default=-1),
                F("leader_epoch", "int32", "0+"),
            )),
        )),
    ),
)

RESPONSE = Message(
    "OffsetForLeaderEpochResponse",
    versions="2-4",
    flexible="4+",
    fields=(
        F("throttle_time_ms", "int32", "2+"),
        F("topics", "[]struct", "0+", fields=(
            F("topic", "string", "0+"),
            F("partitions", "[]struct", "0+", fields=(
                F("error_code", "int16", "0+"),
                F("partition", "int32", "0+"),
                F("leader_epoch", "int32", "1+", default=-1),
                F("end_offset", "int64", "0+", default=-1),
            )),
        )),
    ),
)
