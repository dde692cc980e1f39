"""DescribeQuorum, API key 55."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
_REPLICA = (
    F("replica_id", "int32", "0+"),
    F("replica_directory_id", "uuid", "2+"),
    F("log_end_offset", "int64", "0+"),
    F("last_fetch_timestamp", "int64", "1+", default=-1),
    F("last_caught_up_timestamp", "int64", "1+", default=-1),
)

REQUEST = Message(
    "DescribeQuorumRequest",
    versions="0-2",
    flexible="0+",
    fields=(
        F("topics", "[]struct", "0+", fields=(
            F("topic_name", "string", "0+"),
            F("partitions", "[]struct", "0+", fields=(
                F("partition_index", "int32", "0+"),
            )),
        )),
    ),
)

RESPONSE = Message(
    "DescribeQuorumResponse",
    versions="0-2",
    flexible="0+",
    fields=(
        F("error_code", "int16", "0+"),
        F("error_message", "string", "2+", nullable="2+"),
        F("topics", "[]struct", "0+", fields=(
            F("topic_name", "string", "0+"),
            F("partitions", "[]struct", "0+", fields=(
                F("partition_index", "int32", "0+"),
                F("error_code", "int16", "0+"),
                F("error_message", "string", "2+", nullable="2+"),
                F("leader_id", "int32", "0+"),
                F("leader_epoch", "int32", "0+"),
                F("high_watermark", "int64", "0+"),
                F("current_voters", "[]struct", "0+", fields=_REPLICA),
                F("observers", "[]struct", "0+", fields=_REPLICA),
            )),
        )),
        F("nodes", "[]struct", "2+", fields=(
            F("node_id", "int32", "2+"),
            F("listeners", "[]struct", "2+", fields=(
                F("name", "string", "2+"),
                F("host", "string", "2+"),
                F("port", "uint16", "2+"),
            )),
        )),
    ),
)
