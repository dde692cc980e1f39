"""DescribeBranches, API key 16103, ours: how the branches of a topic came to be, and which line of them is served.

Any broker answers, from what it knows itself: `rows` are those of its branch log, `line` is what it serves now, below
its high watermark and without what was removed, `held` is what of each lane lies on its disk. Two sides of a split
therefore answer differently, and everybody alike once they are joined. Without `topics` all topics in mode branch are
meant, without `partitions` all of a topic's. Kinds of rows are those of `modes.branch.rows.RowKind`.
"""

from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

# A table reads best with one line per field.
# fmt: off
REQUEST = Message(
    "DescribeBranchesRequest",
    versions="0",
    flexible="0+",
    fields=(
        F("topics", "[]struct", "0+", nullable="0+", default=None, fields=(
            F("name", "string", "0+"),
            F("partitions", "[]int32", "0+", nullable="0+", default=None),
        )),
        F("include_rows", "bool", "0+", default=True),
    ),
)

RESPONSE = Message(
    "DescribeBranchesResponse",
    versions="0",
    flexible="0+",
    fields=(
        F("throttle_time_ms", "int32", "0+"),
        F("broker_id", "int32", "0+"),
        F("brokers", "[]struct", "0+", fields=(
            F("broker_id", "int32", "0+"),
            F("slot", "int32", "0+", default=-1),
            F("is_in_view", "bool", "0+"),
            F("silent_ms", "int64", "0+", default=-1),
        )),
        F("topics", "[]struct", "0+", fields=(
            F("error_code", "int16", "0+"),
            F("error_message", "string", "0+", nullable="0+"),
            F("name", "string", "0+"),
            F("topic_id", "uuid", "0+"),
            F("partitions", "[]struct", "0+", fields=(
                F("error_code", "int16", "0+"),
                F("partition_index", "int32", "0+"),
                F("leader_id", "int32", "0+", default=-1),
                F("first_leader_id", "int32", "0+", default=-1),
                F("reign_lane", "int32", "0+", default=-1),
                F("tip_lane", "int32", "0+", default=-1),
                F("tip_end", "int64", "0+"),
                F("log_start_offset", "int64", "0+"),
                F("high_watermark", "int64", "0+"),
                F("copies_in_view", "[]int32", "0+"),
                F("line", "[]struct", "0+", fields=(
                    F("lane", "int32", "0+"),
                    F("start_offset", "int64", "0+"),
                    F("end_offset", "int64", "0+"),
                )),
                F("held", "[]struct", "0+", fields=(
                    F("lane", "int32", "0+"),
                    F("start_offset", "int64", "0+"),
                    F("end_offset", "int64", "0+"),
                )),
                F("rows", "[]struct", "0+", fields=(
                    F("kind", "int8", "0+"),
                    F("old_lane", "int32", "0+"),
                    F("new_lane", "int32", "0+"),
                    F("old_end", "int64", "0+"),
                    F("new_start", "int64", "0+"),
                    F("time_ms", "int64", "0+"),
                    F("sources", "[]struct", "0+", fields=(
                        F("lane", "int32", "0+"),
                        F("start_offset", "int64", "0+"),
                        F("end_offset", "int64", "0+"),
                        F("new_start", "int64", "0+"),
                    )),
                    F("inputs", "[]struct", "0+", fields=(
                        F("lane", "int32", "0+"),
                        F("end_offset", "int64", "0+"),
                    )),
                )),
            )),
        )),
    ),
)
