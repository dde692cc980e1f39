"""AlterPartitionReassignments, API key 45."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "AlterPartitionReassignmentsRequest",
    versions="0-1",
    flexible="0+",
    fields=(
        F("timeout_ms", "int32", "0+", default=60000),
        F("allow_replication_factor_change", "bool", "1+", default=True),
        F("topics", "[]struct", "0+", fields=(
            F("name", "string", "0+"),
            F("partitions", "[]struct", "0+", fields=(
                F("partition_index", "int32", "0+"),
                F("replicas", "[]int32", "0+", nullable="0+", default=None),
            )),
        )),
    ),
)

RESPONSE = Message(
    "AlterPartitionReassignmentsResponse",
    versions="0-1",
    flexible="0+",
    fields=(
        F("throttle_time_ms", "int32", "0+"),
        F("allow_replication_factor_change", "bool", "1+", default=True),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("responses", "[]struct", "0+", fields=(
            F("name", "string", "0+"),
            F("partitions", "[]struct", "0+", fields=(
                F("partition_index", "int32", "0+"),
                F("error_code", "int16", "0+"),
                F("error_message", "string", "0+", nullable="0+"),
            )),
        )),
    ),
)
