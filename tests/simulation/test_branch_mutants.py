"""The rules of branch mode, each broken once in whole brokers, and who notices.

| what is broken | who notices |
| --- | --- |
| the end of the loser's last lane is ignored | a consumer that comes from the loser's side |
| nothing is written again | everybody |
| it is written again in reverse | whoever reads one producer's records |
| a part of the winner's tail stays | the same |
| a lane is kept across reigns | two records at one offset |
| a row is used before it is on the disk | a power cut |
| any line is adopted | whoever was told that a record is safe |
| the switch comes before what it switches to is on the disk | a power cut |
"""

from collections.abc import Callable, Iterable

import pytest

from anabranch.broker.branch import branch_log as branch_tube
from anabranch.broker.branch import merging as branch_merging
from anabranch.broker.branch import takeover as branch_reign
from anabranch.broker.branch.following import Following
from anabranch.broker.branch.lanes.logs import LaneLogs
from anabranch.broker.branch.partition import BranchPartition
from anabranch.broker.branch.partition_role import BranchSeat
from anabranch.broker.branch.peers import BranchPeers
from anabranch.broker.workers import Workers, in_heavy_worker
from anabranch.errors import CorruptDataError
from anabranch.modes.branch import lines as branch_lines
from anabranch.modes.branch.lane_producers import LaneProducers
from anabranch.modes.branch.lines import Branches, Merge, merge
from anabranch.modes.branch.roles import Head
from anabranch.modes.branch.rows import BranchRow, Lane, Tip
from anabranch.record.producer_table import BATCHES_REMEMBERED, Producer, Sequenced
from anabranch.testing.simulation.branch_workload import BranchWorkload
from anabranch.testing.simulation.cluster_runs import trace_of
from anabranch.testing.simulation.simulator import SimulationError
from anabranch.values import BrokerId, Offset
from support.branch_schedule import BranchSchedule

Patch = pytest.MonkeyPatch
SEEDS_MAX = 40
"""Of `test_branch_simulation`; the first that notices is enough, and the first few do."""


def loser_ignored(patch: Patch) -> None:
    patch.setattr(branch_lines, "is_kept", lambda won_tail, loser: True)


def nothing_again(patch: Patch) -> None:
    patch.setattr(branch_reign, "merge", lambda *given: merge(*given)._replace(again=()))


def reversed_again(patch: Patch) -> None:
    def reverse(branches: Branches, one: Tip, other: Tip) -> Merge:
        plan = merge(branches, one, other)
        return plan._replace(again=plan.again[::-1])

    patch.setattr(branch_reign, "merge", reverse)


def partly_kept(patch: Patch) -> None:
    def some(branches: Branches, one: Tip, other: Tip) -> Merge:
        plan, winner, loser = merge(branches, one, other), max(one, other), min(one, other)
        stays = {each.lane for each in branches.line(winner) if each.lane > loser.lane}
        again = tuple(each for each in plan.again if each.lane not in stays)
        return plan if again == plan.again else Merge(winner, again)

    patch.setattr(branch_reign, "merge", some)


def lane_kept(patch: Patch) -> None:
    lane_for = BranchPeers._lane_for

    def own_again(self: BranchPeers, seat: BranchSeat, above: Iterable[Lane]) -> Lane:
        own = [lane for lane in seat.partition.branches.opened if lane % 1024 == self.slot]
        return max(own) if own else lane_for(self, seat, above)

    patch.setattr(BranchPeers, "_lane_for", own_again)


async def unless_sync(workers: Workers, task: Callable[[], object]) -> object:
    """`in_heavy_worker` of somebody who believes that written is safe."""
    return None if getattr(task, "__name__", "") == "sync" else await in_heavy_worker(workers, task)


def row_not_synced(patch: Patch) -> None:
    patch.setattr(branch_tube, "in_heavy_worker", unless_sync)


def any_line_adopted(patch: Patch) -> None:
    async def adopt(self: Following, seat: BranchSeat, primary: BrokerId, head: Head) -> bool:
        partition = seat.partition
        if head.reign not in partition.lanes:
            partition.lanes.make(head.reign, partition.branches.opened[head.reign].new_start)
        await partition.adopt(head.reign, head.safe)
        return True

    patch.setattr(Following, "_adopt", adopt)


def switched_before_sync(patch: Patch) -> None:
    prepare = BranchPartition.prepare_reign

    def prepare_unsynced(self: BranchPartition, row: BranchRow) -> LaneProducers:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(LaneLogs, "sync", lambda lanes, lane: Offset(0))
            return prepare(self, row)

    patch.setattr(BranchPartition, "prepare_reign", prepare_unsynced)
    patch.setattr(branch_merging, "in_heavy_worker", unless_sync)


def lanes_not_told_apart(patch: Patch) -> None:
    note = LaneProducers.note

    def note_five(
        self: LaneProducers, header: Sequenced, base_offset: Offset, now_ms: int
    ) -> tuple[int, Producer | None]:
        noted = note(self, header, base_offset, now_ms)
        producer = self.producers[header.producer_id]
        producer.batches = producer.batches[-BATCHES_REMEMBERED:]
        return noted

    patch.setattr(LaneProducers, "note", note_five)


# --- schedules -----------------------------------------------------------------------------------------------------


def the_power_goes_behind_the_switch() -> None:
    """Just as the row that joins two lines is on the disk."""
    for seed in range(6):
        with BranchSchedule(seed) as world:
            expected = world.fall_apart()
            world.sim.net.heal()
            while not (joined := world.joined()):
                world.sim.run(1)
            world.sim.crash(joined[0])
            world.sim.start(joined[0])
            world.settle()
            if sorted(world.values()) != expected:
                raise SimulationError(f"seed {seed}: {world.values()}")


# --- who notices ---------------------------------------------------------------------------------------------------


def some_seeds() -> None:
    for seed in range(SEEDS_MAX):
        trace_of(seed, BranchWorkload)


BROKEN: list[tuple[Callable[[Patch], None], Callable[[], None]]] = [
    (loser_ignored, some_seeds),
    (nothing_again, some_seeds),
    (reversed_again, some_seeds),
    (partly_kept, some_seeds),
    (lane_kept, some_seeds),
    (row_not_synced, some_seeds),
    (any_line_adopted, some_seeds),
    (lanes_not_told_apart, some_seeds),
    (switched_before_sync, the_power_goes_behind_the_switch),
]


def test_a_merge_survives_a_power_cut_right_behind_the_switch() -> None:
    the_power_goes_behind_the_switch()


@pytest.mark.parametrize(("broken", "notices"), BROKEN, ids=[each[0].__name__ for each in BROKEN])
def test_a_broken_rule_of_branches_is_noticed(
    broken: Callable[[Patch], None], notices: Callable[[], None], monkeypatch: Patch
) -> None:
    broken(monkeypatch)
    with pytest.raises((SimulationError, CorruptDataError)):  # A broker may notice at its next start, too.
        notices()
