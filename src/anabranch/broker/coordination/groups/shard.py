"""One partition of the `__consumer_offsets` log that is coordinated here: its groups, their offsets, their writes.

LOADING (its log is being read) -> READY (requests are welcome) -> given up (another broker leads the partition).
It is given up at any time and never comes back: who takes the partition over again begins with a new shard, so
nothing of an earlier leadership, a write on its way or a load that was overtaken, reaches a later one.
"""

from anabranch.broker.coordination.groups.append_lane import Append, AppendLane
from anabranch.coordination.groups.group_table import GroupTable
from anabranch.errors import NotCoordinatorError
from anabranch.values import Generation, TopicPartition


class Shard:
    def __init__(self, index: int, generation: Generation, table: GroupTable) -> None:
        self.index = index
        self.generation = generation
        self.table = table
        self.lanes: dict[str, AppendLane] = {}
        self.is_loading = True
        self.is_given_up = False

    def lane(self, group_id: str, append: Append) -> AppendLane:
        assert not self.is_given_up, "a group was written by a coordinator that is no longer its own"
        lane = self.lanes.get(group_id)
        if lane is None:
            lane = self.lanes[group_id] = AppendLane(group_id, append)
        return lane

    def drop_idle_lane(self, group_id: str) -> None:
        lane = self.lanes.get(group_id)
        if lane is not None and lane.is_idle:
            del self.lanes[group_id]

    def in_flight(self, group_id: str) -> set[TopicPartition]:
        """The partitions whose offsets are on their way to the log."""
        lane = self.lanes.get(group_id)
        return lane.in_flight() if lane is not None else set()

    def present_offsets(self, group_id: str) -> set[TopicPartition]:
        """Those that are committed, or on their way."""
        return self.table.offsets_of(group_id).keys() | self.in_flight(group_id)

    def give_up(self) -> None:
        """Writes on their way are refused: whether the log keeps them is the next coordinator's to find out."""
        self.is_given_up = True
        lanes, self.lanes = self.lanes, {}
        for group_id, lane in lanes.items():
            lane.abandon(not_coordinator(group_id))


def not_coordinator(group_id: str) -> NotCoordinatorError:
    return NotCoordinatorError(
        f"Group {group_id} is coordinated by another broker: find its coordinator again."
    )
