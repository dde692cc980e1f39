"""What consumers put into the opaque bytes of JoinGroup and SyncGroup."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
SUBSCRIPTION = Message(
    "ConsumerProtocolSubscription",
    versions="0-3",
    flexible="none",
    fields=(
        F("topics", "[]string", "0+"),
        F("user_data", "bytes", "0+", nullable="0+", default=None),
        F("owned_partitions", "[]struct", "1+", fields=(
            F("topic", "string", "1+"),
            F("partitions", "[]int32", "1+"),
        )),
        F("generation_id", "int32", "2+", default=-1),
        F("rack_id", "string", "3+", nullable="3+", default=None),
    ),
)

ASSIGNMENT = Message(
    "ConsumerProtocolAssignment",
    versions="0-3",
    flexible="none",
    fields=(
        F("assigned_partitions", "[]struct", "0+", fields=(
            F("topic", "string", "0+"),
            F("partitions", "[]int32", "0+"),
        )),
        F("user_data", "bytes", "0+", nullable="0+", default=None),
    ),
)
