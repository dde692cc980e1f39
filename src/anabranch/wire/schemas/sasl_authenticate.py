"""SaslAuthenticate, API key 36."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "SaslAuthenticateRequest",
    versions="0-2",
    flexible="2+",
    fields=(
        F("auth_bytes", "bytes", "0+"),
    ),
)

RESPONSE = Message(
    "SaslAuthenticateResponse",
    versions="0-2",
    flexible="2+",
    fields=(
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("auth_bytes", "bytes", "0+"),
        F("session_lifetime_ms", "int64", "1+"),
    ),
)
