"""SaslHandshake, API key 17."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "SaslHandshakeRequest",
    versions="0-1",
    flexible="none",
    fields=(
        F("mechanism", "string", "0+"),
    ),
)

RESPONSE = Message(
    "SaslHandshakeResponse",
    versions="0-1",
    flexible="none",
    fields=(
        F("error_code", "int16", "0+"),
        F("mechanisms", "[]string", "0+"),
    ),
)
