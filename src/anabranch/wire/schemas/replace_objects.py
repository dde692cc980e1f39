"""ReplaceObjects, API key 16102, ours: rows that a job has read are to be replaced by those it has stored.

Both are packed (`objects.layout.names`). Each partition counts for itself: one whose rows are not `old_rows` any more
stays as it is, and says so.
"""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "ReplaceObjectsRequest",
    versions="0",
    flexible="0+",
    fields=(
        F("partitions", "[]struct", "0+", fields=(
            F("topic_id", "uuid", "0+"),
            F("partition_index", "int32", "0+"),
            F("old_rows", "bytes", "0+"),
            F("new_rows", "bytes", "0+"),
        )),
    ),
)

RESPONSE = Message(
    "ReplaceObjectsResponse",
    versions="0",
    flexible="0+",
    fields=(
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("partitions", "[]struct", "0+", fields=(
            F("topic_id", "uuid", "0+"),
            F("partition_index", "int32", "0+"),
            F("is_replaced", "bool", "0+"),
            F("reason", "string", "0+", nullable="0+"),
        )),
    ),
)
