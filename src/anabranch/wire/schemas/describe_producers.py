"""DescribeProducers, API key 61."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "DescribeProducersRequest",
    versions="0",
    flexible="0+",
    fields=(
        F("topics", "[]struct", "0+", fields=(
            F("name", "string", "0+"),
            F("partition_indexes", "[]int32", "0+"),
        )),
    ),
)

RESPONSE = Message(
    "DescribeProducersResponse",
    versions="0",
    flexible="0+",
    fields=(
        F("throttle_time_ms", "int32", "0+"),
        F("topics", "[]struct", "0+", fields=(
            F("name", "string", "0+"),
            F("partitions", "[]struct", "0+", fields=(
                F("partition_index", "int32", "0+"),
                F("error_code", "int16", "0+"),
                F("error_message", "string", "0+", nullable="0+", default=None),
                F("active_producers", "[]struct", "0+", fields=(
                    F("producer_id", "int64", "0+"),
                    F("producer_epoch", "int32", "0+"),
                    F("last_sequence", "int32", "0+", default=-1),
                    F("last_timestamp", "int64", "0+", default=-1),
                    F("coordinator_epoch", "int32", "0+"),
                    F("current_txn_start_offset", "int64", "0+", default=-1),
                )),
            )),
        )),
    ),
)
