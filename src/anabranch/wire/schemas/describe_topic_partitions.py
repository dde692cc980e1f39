"""DescribeTopicPartitions, API key 75."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "DescribeTopicPartitionsRequest",
    versions="0",
    flexible="0+",
    fields=(
        F("topics", "[]struct", "0+", fields=(
            F("name", "string", "0+"),
        )),
        F("response_partition_limit", "int32", "0+", default=2000),
        F("cursor", "struct", "0+", nullable="0+", default=None, fields=(
            F("topic_name", "string", "0+"),
            F("partition_index", "int32", "0+"),
        )),
    ),
)

RESPONSE = Message(
    "DescribeTopicPartitionsResponse",
    versions="0",
    flexible="0+",
    fields=(
        F("throttle_time_ms", "int32", "0+"),
        F("topics", "[]struct", "0+", fields=(
            F("error_code", "int16", "0+"),
            F("name", "string", "0+", nullable="0+"),
            F("topic_id", "uuid", "0+"),
            F("is_internal", "bool", "0+"),
            F("partitions", "[]struct", "0+", fields=(
                F("error_code", "int16", "0+"),
                F("partition_index", "int32", "0+"),
                F("leader_id", "int32", "0+"),
                F("leader_epoch", "int32", "0+", default=-1),
                F("replica_nodes", "[]int32", "0+"),
                F("isr_nodes", "[]int32", "0+"),
                F("eligible_leader_replicas", "[]int32", "0+", nullable="0+", default=None),
                F("last_known_elr", "[]int32", "0+", nullable="0+", default=None),
                F("offline_replicas", "[]int32", "0+"),
            )),
            F("topic_authorized_operations", "int32", "0+", default=-2147483648),
        )),
        F("next_cursor", "struct", "0+", nullable="0+", default=None, fields=(
            F("topic_name", "string", "0+"),
            F("partition_index", "int32", "0+"),
        )),
    ),
)
