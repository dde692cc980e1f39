"""UnregisterBroker, API key 64."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "UnregisterBrokerRequest",
    versions="0",
    flexible="0+",
    fields=(
        F("broker_id", "int32", "0+"),
    ),
)

RESPONSE = Message(
    "UnregisterBrokerResponse",
    versions="0",
    flexible="0+",
    fields=(
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
    ),
)
