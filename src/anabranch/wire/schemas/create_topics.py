"""CreateTopics, API key 19."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "CreateTopicsRequest",
    versions="2-7",
    flexible="5+",
    fields=(
        F("topics", "[]struct", "0+", fields=(
            F("name", "string", "0+"),
            F("num_partitions", "int32", "0+"),
            F("replication_factor", "int16", "0+"),
            F("assignments", "[]struct", "0+", fields=(
                F("partition_index", "int32", "0+"),
                F("broker_ids", "[]int32", "0+"),
            )),
            F("configs", "[]struct", "0+", fields=(
                F("name", "string", "0+"),
                F("value", "string", "0+", nullable="0+"),
            )),
        )),
        F("timeout_ms", "int32", "0+", default=60000),
        F("validate_only", "bool", "1+"),
    ),
)

RESPONSE = Message(
    "CreateTopicsResponse",
    versions="2-7",
    flexible="5+",
    fields=(
        F("throttle_time_ms", "int32", "2+"),
        F("topics", "[]struct", "0+", fields=(
            F("name", "string", "0+"),
            F("topic_id", "uuid", "7+"),
            F("error_code", "int16", "0+"),
            F("error_message", "string", "1+", nullable="0+"),
            F("topic_config_error_code", "int16", "5+", tag=0),
            F("num_partitions", "int32", "5+", default=-1),
            F("replication_factor", "int16", "5+", default=-1),
            F("configs", "[]struct", "5+", nullable="5+", fields=(
                F("name", "string", "5+"),
                F("value", "string", "5+", nullable="5+"),
                F("read_only", "bool", "5+"),
                F("config_source", "int8", "5+", default=-1),
                F("is_sensitive", "bool", "5+"),
            )),
        )),
    ),
)
