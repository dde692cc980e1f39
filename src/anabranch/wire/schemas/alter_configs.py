"""AlterConfigs, API key 33."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "AlterConfigsRequest",
    versions="0-2",
    flexible="2+",
    fields=(
        F("resources", "[]struct", "0+", fields=(
            F("resource_type", "int8", "0+"),
            F("resource_name", "string", "0+"),
            F("configs", "[]struct", "0+", fields=(
                F("name", "string", "0+"),
                F("value", "string", "0+", nullable="0+"),
            )),
        )),
        F("validate_only", "bool", "0+"),
    ),
)

RESPONSE = Message(
    "AlterConfigsResponse",
    versions="0-2",
    flexible="2+",
    fields=(
        F("throttle_time_ms", "int32", "0+"),
        F("responses", "[]struct", "0+", fields=(
            F("error_code", "int16", "0+"),
            F("error_message", "string", "0+", nullable="0+"),
            F("resource_type", "int8", "0+"),
            F("resource_name", "string", "0+"),
        )),
    ),
)
