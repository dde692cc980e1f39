"""ApiVersions, API key 18."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "ApiVersionsRequest",
    versions="0-4",
    flexible="3+",
    fields=(
        F("client_software_name", "string", "3+"),
        F("client_software_version", "string", "3+"),
    ),
)

RESPONSE = Message(
    "ApiVersionsResponse",
    versions="0-4",
    flexible="3+",
    fields=(
        F("error_code", "int16", "0+"),
        F("api_keys", "[]struct", "0+", fields=(
            F("api_key", "int16", "0+"),
            F("min_version", "int16", "0+"),
            F("max_version", "int16", "0+"),
        )),
        F("throttle_time_ms", "int32", "1+"),
        F("supported_features", "[]struct", "3+", tag=0, fields=(
            F("name", "string", "3+"),
            F("min_version", "int16", "3+"),
            F("max_version", "int16", "3+"),
        )),
        F("finalized_features_epoch", "int64", "3+", tag=1, default=-1),
        F("finalized_features", "[]struct", "3+", tag=2, fields=(
            F("name", "string", "3+"),
            F("max_version_level", "int16", "3+"),
            F("min_version_level", "int16", "3+"),
        )),
        F("zk_migration_ready", "bool", "3+", tag=3),
    ),
)
