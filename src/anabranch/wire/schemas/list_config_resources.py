"""ListConfigResources, API key 74."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "ListConfigResourcesRequest",
    versions="0-1",
    flexible="0+",
    fields=(
        F("resource_types", "[]int8", "1+"),
    ),
)

RESPONSE = Message(
    "ListConfigResourcesResponse",
    versions="0-1",
    flexible="0+",
    fields=(
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("config_resources", "[]struct", "0+", fields=(
            F("resource_name", "string", "0+"),
            F("resource_type", "int8", "1+", default=16),
        )),
    ),
)
