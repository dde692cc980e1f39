"""What a broker says of its branches: for DescribeBranches, and for the counters of `/metrics`.

All of it is what this broker knows: the rows of its branch log, the line it serves, what is on its disk, and whom it
has heard lately.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from anabranch.broker.branch.lanes.gaps import LaneGaps
from anabranch.broker.branch.partition import BranchPartition
from anabranch.broker.branch.served_records import served_line, stored_line
from anabranch.broker.branch.views import BranchView
from anabranch.modes.branch.history import (
    joins,
    lane_ends,
    open_tips,
    reappended,
)
from anabranch.modes.branch.lines import Span
from anabranch.modes.branch.rows import NO_LANE, BranchRow, Lane, RowKind
from anabranch.values import BrokerId, Offset

if TYPE_CHECKING:
    from anabranch.broker.branch.branch_log import Key
    from anabranch.broker.broker import Broker

Body = dict[str, Any]
NOBODY = -1


# --- DescribeBranches ------------------------------------------------------------------------------------------------


def describe(
    broker: "Broker", gaps: LaneGaps, partition: BranchPartition | BranchView, rows: Sequence[BranchRow]
) -> Body:
    """`rows`: those of the partition, as far as they are wanted."""
    base = partition.base
    leader, copies = leader_of(broker, base)
    lane, end = (
        partition.lane if isinstance(partition, BranchView) else base.tip.lane,
        partition.log.end_offset,
    )
    return {
        "error_code": 0,
        "partition_index": base.id.partition,
        "leader_id": NOBODY if leader is None else leader,
        "first_leader_id": _first_leader(broker, base),
        "reign_lane": NO_LANE if base.reign is None or base is not partition else base.reign,
        "tip_lane": lane,
        "tip_end": end,
        "log_start_offset": partition.start_offset,
        "high_watermark": partition.readable_end,
        "copies_in_view": list(copies),
        "line": [_span(each) for each in (*stored_line(partition), *served_line(gaps, partition))],
        "held": [_span(each) for each in base.lanes.all_held()],
        "rows": [_row(row) for row in rows if not base.branches.is_earlier(_lane_of(row))],
    }


def leader_of(broker: "Broker", partition: BranchPartition) -> tuple[BrokerId | None, tuple[BrokerId, ...]]:
    """Who takes records, as far as this broker knows, and who has copies of them."""
    me = BrokerId(broker.id)
    if broker.peers is None:
        return (me, (me,)) if partition.reign is not None else (None, ())
    found = broker.leaders.of(*partition.key)
    return found.broker_id, found.in_sync


def _first_leader(broker: "Broker", partition: BranchPartition) -> int:
    """Whom the first branch was given to, when the topic was made."""
    topic = broker.metadata.table.topics_by_id.get(partition.topic_id)
    if broker.is_alone:
        return broker.id
    index = partition.id.partition
    return topic.first[index] if topic is not None and index < len(topic.first) else NOBODY


def _span(span: Span) -> Body:
    return {"lane": span.lane, "start_offset": span.start, "end_offset": span.end}


def _lane_of(row: BranchRow) -> Lane:
    """Of which branch it speaks."""
    return row.old if row.kind is RowKind.PLACED else row.new


def _row(row: BranchRow) -> Body:
    return {
        "kind": row.kind,
        "old_lane": row.old,
        "new_lane": row.new,
        "old_end": row.old_end,
        "new_start": row.new_start,
        "time_ms": row.time_ms,
        "sources": [{**_span(Span(*each[:3])), "new_start": each.new_start} for each in row.sources],
        "inputs": [{"lane": tip.lane, "end_offset": tip.end} for tip in row.inputs],
    }


def brokers_seen(broker: "Broker") -> list[Body]:
    """Every broker of the cluster: which lanes are its own, and whether it is heard."""
    slots, silent = broker.metadata.table.slots, silences(broker)
    return [
        {
            "broker_id": row.broker_id,
            "slot": slots.get(row.directory_id, 0 if broker.is_alone else NOBODY),
            "is_in_view": row.broker_id not in silent,
            "silent_ms": silent.get(row.broker_id, 0),
        }
        for row in broker.orchestrator.rows().values()
    ]


def silences(broker: "Broker") -> dict[BrokerId, int]:
    """Brokers that this one has not heard lately, and for how many ms; -1: never."""
    peers = broker.branches.peers if broker.branches is not None else None
    if peers is None:
        return {}
    now_ms, polling = broker.clock.monotonic_ms(), peers.polling
    silent: dict[BrokerId, int] = {}
    for each in broker.orchestrator.rows().keys() - polling.view - {broker.id}:
        heard_ms = polling.seen(each).heard_ms
        silent[each] = NOBODY if heard_ms is None else now_ms - heard_ms
    return silent


# --- counters --------------------------------------------------------------------------------------------------------


class Counts(NamedTuple):
    """Of all partitions in mode branch, by what this broker knows."""

    open: int
    """Branches that nothing has joined yet, beyond the one that each partition has anyway."""
    joined: int
    reappended: int
    lanes: int
    lane_bytes: int


class BranchCounts:
    """Counted when somebody asks. What follows from rows alone is counted again only once rows have come."""

    def __init__(self) -> None:
        self._known: dict[Key, _PartitionCounts] = {}

    def counts(self, partitions: Iterable[BranchPartition], gaps: LaneGaps) -> Counts:
        known = {each.key: self._known.get(each.key) or _PartitionCounts(each) for each in partitions}
        self._known = known
        for each in known.values():
            each.count(gaps)
        return Counts(
            sum(max(0, each.open - 1) for each in known.values()),
            sum(each.joined for each in known.values()),
            sum(each.reappended for each in known.values()),
            sum(len(each.partition.lanes.all_held()) for each in known.values()),
            sum(each.partition.lanes.size_bytes for each in known.values()),
        )


class _PartitionCounts:
    def __init__(self, partition: BranchPartition) -> None:
        self.partition = partition
        self.open = self.joined = self.reappended = 0
        self._rows_at = (-1, -1)
        self._unsealed: list[Lane] = []
        self._again: list[Lane] = []
        self._ends: list[Offset] = []

    def count(self, gaps: LaneGaps) -> None:
        branches, lanes = self.partition.branches, self.partition.lanes
        rows_at = len(branches.opened), len(branches.sealed)
        is_new = rows_at != self._rows_at
        if is_new:
            self._rows_at = rows_at
            self._unsealed = [lane for lane in branches.opened if lane not in branches.sealed]
            self.joined = joins(branches)
            self._again = [lane for lane, row in branches.opened.items() if row.sources]
        repeats = sum(gap.count_max for lane in self._again for gap in gaps.known(self.partition, lane))
        self.reappended = reappended(branches) - repeats if self._again else 0
        held = {span.lane: span.end for lane in self._unsealed if (span := lanes.held(lane)) is not None}
        if is_new or (len(self._unsealed) > 1 and list(held.values()) != self._ends):
            self._ends = list(held.values())
            self.open = len(open_tips(branches, lane_ends(branches, held)))
