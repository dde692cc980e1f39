"""ListPartitionReassignments, API key 46."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "ListPartitionReassignmentsRequest",
    versions="0",
    flexible="0+",
    fields=(
        F("timeout_ms", "int32", "0+", default=60000),
        F("topics", "[]struct", "0+", nullable="0+", default=None, fields=(
            F("name", "string", "0+"),
            F("partition_indexes", "[]int32", "0+"),
        )),
    ),
)

RESPONSE = Message(
    "ListPartitionReassignmentsResponse",
    versions="0",
    flexible="0+",
    fields=(
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("topics", "[]struct", "0+", fields=(
            F("name", "string", "0+"),
            F("partitions", "[]struct", "0+", fields=(
                F("partition_index", "int32", "0+"),
                F("replicas", "[]int32", "0+"),
                F("adding_replicas", "[]int32", "0+"),
                F("removing_replicas", "[]int32", "0+"),
            )),
        )),
    ),
)
