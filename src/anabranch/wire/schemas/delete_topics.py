"""DeleteTopics, API key 20."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "DeleteTopicsRequest",
    versions="1-6",
    flexible="4+",
    fields=(
        F("topics", "[]struct", "6+", fields=(
            F("name", "string", "6+", nullable="6+", default=None),
            F("topic_id", "uuid", "6+"),
        )),
        F("topic_names", "[]string", "0-5"),
        F("timeout_ms", "int32", "0+"),
    ),
)

RESPONSE = Message(
    "DeleteTopicsResponse",
    versions="1-6",
    flexible="4+",
    fields=(
        F("throttle_time_ms", "int32", "1+"),
        F("responses", "[]struct", "0+", fields=(
            F("name", "string", "0+", nullable="6+"),
            F("topic_id", "uuid", "6+"),
            F("error_code", "int16", "0+"),
            F("error_message", "string", "5+", nullable="5+", default=None),
        )),
    ),
)
