"""AlterReplicaLogDirs, API key 34."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "AlterReplicaLogDirsRequest",
    versions="1-2",
    flexible="2+",
    fields=(
        F("dirs", "[]struct", "0+", fields=(
            F("path", "string", "0+"),
            F("topics", "[]struct", "0+", fields=(
                F("name", "string", "0+"),
                F("partitions", "[]int32", "0+"),
            )),
        )),
    ),
)

RESPONSE = Message(
    "AlterReplicaLogDirsResponse",
    versions="1-2",
    flexible="2+",
    fields=(
        F("throttle_time_ms", "int32", "0+"),
        F("results", "[]struct", "0+", fields=(
            F("topic_name", "string", "0+"),
            F("partitions", "[]struct", "0+", fields=(
                F("partition_index", "int32", "0+"),
                F("error_code", "int16", "0+"),
            )),
        )),
    ),
)
