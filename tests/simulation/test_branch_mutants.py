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

from anabranch.broker import branch_merging, branch_reign, branch_tube
from anabranch.broker.branch_following import Following
from anabranch.broker.branch_partition import BranchPartition
from anabranch.broker.branch_peers import BranchPeers
from anabranch.broker.branch_seat import BranchSeat
from anabranch.broker.lane_logs import LaneLogs
from anabranch.broker.workers import Workers, in_heavy_worker
from anabranch.record.lane_producers import LaneProducers
from anabranch.replication import branch_lines
from anabranch.replication.branch_lines import Branches, Merge, merge
from anabranch.replication.branch_roles import Head
from anabranch.replication.branch_rows import BranchRow, Lane, Tip
from anabranch.testing.branch_copies import branch_copies, missing_branches
from anabranch.testing.branch_workload import BranchWorkload
from anabranch.testing.cluster_runs import trace_of
from anabranch.testing.cluster_simulator import ClusterSimulator
from anabranch.testing.in_process_client import Body
from anabranch.testing.simulator import SimulationError, fetch_request, produce_request, records_from
from anabranch.values import BrokerId, Offset, TopicPartition
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode

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


# --- schedules -----------------------------------------------------------------------------------------------------


class BranchSchedule:
    """Three brokers and one topic with a copy at each."""

    def __init__(self, seed: int = 1) -> None:
        self.sim = ClusterSimulator(seed, 3)
        self.sim.start_all()
        topic = {
            "name": "t",
            "num_partitions": 1,
            "replication_factor": 3,
            "configs": [{"name": "anabranch.mode", "value": "branch"}],
        }
        body = self.ask(1, ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout_ms": 5000})
        assert body["topics"][0]["error_code"] == ErrorCode.NONE
        self.settle()

    def __enter__(self) -> "BranchSchedule":
        return self

    def __exit__(self, *_: object) -> None:
        self.sim.close()

    def ask(self, broker_id: int, api: ApiKey, version: int, body: Body) -> Body:
        pending = self.sim.send(broker_id, api, version, body)
        self.sim.run_until(lambda: pending.is_settled)
        assert pending.body is not None, pending.closed_because
        return pending.body

    def settle(self) -> None:
        self.sim.run_until(lambda: not missing_branches(self.sim))

    def partition(self, broker_id: int) -> BranchPartition:
        return branch_copies(self.sim)[TopicPartition("t", 0)][broker_id]

    def primary(self) -> int:
        (found,) = [number for number in self.sim.lives if self.partition(number).reign is not None]
        return found

    def write(self, broker_id: int, value: bytes) -> None:
        body = produce_request("t", 0, [value], self.sim.clock.wall_ms(), -1, None)
        answer = self.ask(broker_id, ApiKey.PRODUCE, 9, {**body, "timeout_ms": 20_000})
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == ErrorCode.NONE

    def cut_off(self, broker_id: int) -> None:
        """Until it reigns, and the others have somebody else."""
        self.sim.net.isolate(BrokerId(broker_id))
        others = [number for number in self.sim.lives if number != broker_id]
        self.sim.run_until(
            lambda: (
                self.partition(broker_id).reign is not None
                and sum(self.partition(number).reign is not None for number in others) == 1
            )
        )

    def values(self) -> list[bytes]:
        """As a new reader sees them."""
        found: list[bytes] = []
        offset = 0
        while True:
            wanted = {**fetch_request("t", 0, offset), "max_wait_ms": 100}
            answer = self.ask(self.primary(), ApiKey.FETCH, 12, wanted)["responses"][0]["partitions"][0]
            assert answer["error_code"] == ErrorCode.NONE, ErrorCode(answer["error_code"])
            more = list(records_from(answer["records"], offset))
            if not more:
                return found
            found += [value or b"" for _, value in more]
            offset = more[-1][0] + 1


def the_power_goes_behind_the_switch() -> None:
    """Just as the row that joins two lines is on the disk."""
    for seed in range(6):
        with BranchSchedule(seed) as world:
            lone = world.primary()
            world.write(lone, b"common")
            world.cut_off(lone)
            (other,) = [
                number for number in world.sim.lives if number != lone and world.partition(number).reign
            ]
            for number in range(4):
                world.write(lone, b"lone %d" % number)
                world.write(other, b"other %d" % number)
            world.sim.net.heal()
            joined: list[int] = []
            while not joined:
                world.sim.run(1)
                joined = [
                    number
                    for number in world.sim.lives
                    if any(row.inputs for row in world.partition(number).branches.opened.values())
                ]
            world.sim.crash(joined[0])
            world.sim.start(joined[0])
            world.settle()
            expected = {b"common", *(b"%s %d" % (who, n) for who in (b"lone", b"other") for n in range(4))}
            if sorted(world.values()) != sorted(expected):
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
    (switched_before_sync, the_power_goes_behind_the_switch),
]


def test_a_merge_survives_a_power_cut_right_behind_the_switch() -> None:
    the_power_goes_behind_the_switch()


@pytest.mark.parametrize(("broken", "notices"), BROKEN, ids=[each[0].__name__ for each in BROKEN])
def test_a_broken_rule_of_branches_is_noticed(
    broken: Callable[[Patch], None], notices: Callable[[], None], monkeypatch: Patch
) -> None:
    broken(monkeypatch)
    with pytest.raises(SimulationError):
        notices()
