"""Fetch, API key 1."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "FetchRequest",
    versions="4-18",
    flexible="12+",
    fields=(
        F("cluster_id", "string", "12+", nullable="12+", tag=0, default=None),
        F("replica_id", "int32", "0-14", default=-1),
        F("replica_state", "struct", "15+", tag=1, fields=(
            F("replica_id", "int32", "15+", default=-1),
            F("replica_epoch", "int64", "15+", default=-1),
        )),
        F("max_wait_ms", "int32", "0+"),
        F("min_bytes", "int32", "0+"),
        F("max_bytes", "int32", "3+", default=2147483647),
        F("isolation_level", "int8", "4+"),
        F("session_id", "int32", "7+"),
        F("session_epoch", "int32", "7+", default=-1),
        F("topics", "[]struct", "0+", fields=(
            F("topic", "string", "0-12"),
            F("topic_id", "uuid", "13+"),
            F("partitions", "[]struct", "0+", fields=(
                F("partition", "int32", "0+"),
                F("current_leader_epoch", "int32", "9+", default=-1),
                F("fetch_offset", "int64", "0+"),
                F("last_fetched_epoch", "int32", "12+", default=-1),
                F("log_start_offset", "int64", "5+", default=-1),
                F("partition_max_bytes", "int32", "0+"),
                F("replica_directory_id", "uuid", "17+", tag=0),
                F("high_watermark", "int64", "18+", tag=1, default=9223372036854775807),
            )),
        )),
        F("forgotten_topics_data", "[]struct", "7+", fields=(
            F("topic", "string", "7-12"),
            F("topic_id", "uuid", "13+"),
            F("partitions", "[]int32", "7+"),
        )),
        F("rack_id", "string", "11+"),
    ),
)

RESPONSE = Message(
    "FetchResponse",
    versions="4-18",
    flexible="12+",
    fields=(
        F("throttle_time_ms", "int32", "1+"),
        F("error_code", "int16", "7+"),
        F("session_id", "int32", "7+"),
        F("responses", "[]struct", "0+", fields=(
            F("topic", "string", "0-12"),
            F("topic_id", "uuid", "13+"),
            F("partitions", "[]struct", "0+", fields=(
                F("partition_index", "int32", "0+"),
                F("error_code", "int16", "0+"),
                F("high_watermark", "int64", "0+"),
                F("last_stable_offset", "int64", "4+", default=-1),
                F("log_start_offset", "int64", "5+", default=-1),
                F("diverging_epoch", "struct", "12+", tag=0, fields=(
                    F("epoch", "int32", "12+", default=-1),
                    F("end_offset", "int64", "12+", default=-1),
                )),
                F("current_leader", "struct", "12+", tag=1, fields=(
                    F("leader_id", "int32", "12+", default=-1),
                    F("leader_epoch", "int32", "12+", default=-1),
                )),
                F("snapshot_id", "struct", "12+", tag=2, fields=(
                    F("end_offset", "int64", "0+", default=-1),
                    F("epoch", "int32", "0+", default=-1),
                )),
                F("aborted_transactions", "[]struct", "4+", nullable="4+", fields=(
                    F("producer_id", "int64", "4+"),
                    F("first_offset", "int64", "4+"),
                )),
                F("preferred_read_replica", "int32", "11+", default=-1),
                F("records", "records", "0+"),
            )),
        )),
        F("node_endpoints", "[]struct", "16+", tag=0, fields=(
            F("node_id", "int32", "16+"),
            F("host", "string", "16+"),
            F("port", "int32", "16+"),
            F("rack", "string", "16+", nullable="16+", default=None),
        )),
    ),
)
