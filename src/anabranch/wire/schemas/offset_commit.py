"""OffsetCommit, API key 8."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "OffsetCommitRequest",
    versions="2-10",
    flexible="8+",
    fields=(
        F("group_id", "string", "0+"),
        F("generation_id_or_member_epoch", "int32", "1+", default=-1),
        F("member_id", "string", "1+"),
        F("group_instance_id", "string", "7+", nullable="7+", default=None),
        F("retention_time_ms", "int64", "2-4", default=-1),
        F("topics", "[]struct", "0+", fields=(
            F("name", "string", "0-9"),
            F("topic_id", "uuid", "10+"),
            F("partitions", "[]struct", "0+", fields=(
                F("partition_index", "int32", "0+"),
                F("committed_offset", "int64", "0+"),
                F("committed_leader_epoch", "int32", "6+", default=-1),
                F("committed_metadata", "string", "0+", nullable="0+"),
            )),
        )),
    ),
)

RESPONSE = Message(
    "OffsetCommitResponse",
    versions="2-10",
    flexible="8+",
    fields=(
        F("throttle_time_ms", "int32", "3+"),
        F("topics", "[]struct", "0+", fields=(
            F("name", "string", "0-9"),
            F("topic_id", "uuid", "10+"),
            F("partitions", "[]struct", "0+", fields=(
                F("partition_index", "int32", "0+"),
                F("error_code", "int16", "0+"),
            )),
        )),
    ),
)
