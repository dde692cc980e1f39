"""Produce, API key 0."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "ProduceRequest",
    versions="3-13",
    flexible="9+",
    fields=(
        F("transactional_id", "string", "3+", nullable="3+", default=None),
        F("acks", "int16", "0+"),
        F("timeout_ms", "int32", "0+"),
        F("topic_data", "[]struct", "0+", fields=(
            F("name", "string", "0-12"),
            F("topic_id", "uuid", "13+"),
            F("partition_data", "[]struct", "0+", fields=(
                F("index", "int32", "0+"),
                F("records", "records", "0+"),
            )),
        )),
    ),
)

RESPONSE = Message(
    "ProduceResponse",
    versions="3-13",
    flexible="9+",
    fields=(
        F("responses", "[]struct", "0+", fields=(
            F("name", "string", "0-12"),
            F("topic_id", "uuid", "13+"),
            F("partition_responses", "[]struct", "0+", fields=(
                F("index", "int32", "0+"),
                F("error_code", "int16", "0+"),
                F("base_offset", "int64", "0+"),
                F("log_append_time_ms", "int64", "2+", default=-1),
                F("log_start_offset", "int64", "5+", default=-1),
                F("record_errors", "[]struct", "8+", fields=(
                    F("batch_index", "int32", "8+"),
                    F("batch_index_error_message", "string", "8+", nullable="8+", default=None),
                )),
                F("error_message", "string", "8+", nullable="8+", default=None),
                F("current_leader", "struct", "10+", tag=0, fields=(
                    F("leader_id", "int32", "10+", default=-1),
                    F("leader_epoch", "int32", "10+", default=-1),
                )),
            )),
        )),
        F("throttle_time_ms", "int32", "1+"),
        F("node_endpoints", "[]struct", "10+", tag=0, fields=(
            F("node_id", "int32", "10+"),
            F("host", "string", "10+"),
            F("port", "int32", "10+"),
            F("rack", "string", "10+", nullable="10+", default=None),
        )),
    ),
)
