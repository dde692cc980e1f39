"""DeleteRecords, API key 21."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "DeleteRecordsRequest",
    versions="0-2",
    flexible="2+",
    fields=(
        F("topics", "[]struct", "0+", fields=(
            F("name", "string", "0+"),
            F("partitions", "[]struct", "0+", fields=(
                F("partition_index", "int32", "0+"),
                F("offset", "int64", "0+"),
            )),
        )),
        F("timeout_ms", "int32", "0+"),
    ),
)

RESPONSE = Message(
    "DeleteRecordsResponse",
    versions="0-2",
    flexible="2+",
    fields=(
        F("throttle_time_ms", "int32", "0+"),
        F("topics", "[]struct", "0+", fields=(
            F("name", "string", "0+"),
            F("partitions", "[]struct", "0+", fields=(
                F("partition_index", "int32", "0+"),
                F("low_watermark", "int64", "0+"),
                F("error_code", "int16", "0+"),
            )),
        )),
    ),
)
