"""DescribeLogDirs, API key 35."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "DescribeLogDirsRequest",
    versions="1-5",
    flexible="2+",
    fields=(
        F("topics", "[]struct", "0+", nullable="0+", fields=(
            F("topic", "string", "0+"),
            F("partitions", "[]int32", "0+"),
        )),
    ),
)

RESPONSE = Message(
    "DescribeLogDirsResponse",
    versions="1-5",
    flexible="2+",
    fields=(
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "3+"),
        F("results", "[]struct", "0+", fields=(
            F("error_code", "int16", "0+"),
            F("log_dir", "string", "0+"),
            F("topics", "[]struct", "0+", fields=(
                F("name", "string", "0+"),
                F("partitions", "[]struct", "0+", fields=(
                    F("partition_index", "int32", "0+"),
                    F("partition_size", "int64", "0+"),
                    F("offset_lag", "int64", "0+"),
                    F("is_future_key", "bool", "0+"),
                )),
            )),
            F("total_bytes", "int64", "4+", default=-1),
            F("usable_bytes", "int64", "4+", default=-1),
            F("is_cordoned", "bool", "5+"),
        )),
    ),
)
