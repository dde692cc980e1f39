"""DescribeObjects, API key 16100, ours: which bytes of which objects hold a partition's records.

`rows` are packed coordinates (`objects.layout.names`), from the one that holds `start_offset` on. `next_offset` is
where to go on, -1 if nothing is left before `end_offset` (-1: the partition's end).
"""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "DescribeObjectsRequest",
    versions="0",
    flexible="0+",
    fields=(
        F("topic_id", "uuid", "0+"),
        F("partition_index", "int32", "0+"),
        F("start_offset", "int64", "0+"),
        F("end_offset", "int64", "0+", default=-1),
        F("rows_max", "int32", "0+", default=4096),
    ),
)

RESPONSE = Message(
    "DescribeObjectsResponse",
    versions="0",
    flexible="0+",
    fields=(
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("store_url", "string", "0+"),
        F("merge_bytes", "int64", "0+"),
        F("log_start_offset", "int64", "0+"),
        F("high_watermark", "int64", "0+"),
        F("size_bytes", "int64", "0+"),
        F("next_offset", "int64", "0+", default=-1),
        F("rows", "bytes", "0+"),
    ),
)
