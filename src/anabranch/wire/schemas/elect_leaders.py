"""ElectLeaders, API key 43."""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "ElectLeadersRequest",
    versions="0-2",
    flexible="2+",
    fields=(
        F("election_type", "int8", "1+"),
        F("topic_partitions", "[]struct", "0+", nullable="0+", fields=(
            F("topic", "string", "0+"),
            F("partitions", "[]int32", "0+"),
        )),
        F("timeout_ms", "int32", "0+", default=60000),
    ),
)

RESPONSE = Message(
    "ElectLeadersResponse",
    versions="0-2",
    flexible="2+",
    fields=(
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "1+"),
        F("replica_election_results", "[]struct", "0+", fields=(
            F("topic", "string", "0+"),
            F("partition_result", "[]struct", "0+", fields=(
                F("partition_id", "int32", "0+"),
                F("error_code", "int16", "0+"),
                F("error_message", "string", "0+", nullable="0+"),
            )),
        )),
    ),
)
