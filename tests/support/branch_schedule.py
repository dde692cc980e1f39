"""Schedules of whole brokers with a topic in branch mode: what happens when is written down, and not left to a seed."""

from collections.abc import Iterable

from anabranch.broker.branch.partition import BranchPartition
from anabranch.testing.simulation.branch_copies import branch_copies, missing_branches
from anabranch.testing.simulation.cluster_simulator import ClusterSimulator
from anabranch.testing.simulation.simulator import (
    Producer,
    fetch_request,
    produce_request,
    produced,
    records_from,
)
from anabranch.values import BrokerId, TopicPartition
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.schedule import Schedule

TIME_MS = 1_700_000_000_000
"""Of every record: whoever sends one again sends the same bytes."""


class BranchSchedule(Schedule):
    """Three brokers and one topic with a copy at each."""

    def __init__(self, seed: int = 1) -> None:
        mode = [{"name": "anabranch.mode", "value": "branch"}]
        topic = {"num_partitions": 1, "replication_factor": 3, "configs": mode}
        super().__init__(self._simulator(seed), topic)
        self.settle()

    def _simulator(self, seed: int) -> ClusterSimulator:
        return ClusterSimulator(seed, 3)

    def time_ms(self) -> int:
        return TIME_MS

    def settle(self) -> None:
        self.sim.run_until(lambda: not missing_branches(self.sim))

    def partition(self, broker_id: int) -> BranchPartition:
        return branch_copies(self.sim)[TopicPartition("t", 0)][broker_id]

    def primary(self, among: Iterable[int] | None = None) -> int:
        brokers = self.sim.lives if among is None else among
        (found,) = [number for number in brokers if self.partition(number).reign is not None]
        return found

    def write_to_primary(self, value: bytes, producer: Producer) -> int:
        """As a client does that looks for the primary again when it is refused; the offset."""
        while True:
            self.sim.run_until(
                lambda: sum(self.partition(one).reign is not None for one in self.sim.lives) == 1
            )
            pending = self.send(self.primary(), value, producer)
            self.sim.run_until(lambda settled=pending: settled.is_settled)
            answer = produced(pending)
            if answer is not None and answer[0] != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                assert answer[0] == ErrorCode.NONE, answer
                return answer[1]

    def write_batch(self, broker_id: int, values: list[bytes], producer: Producer | None = None) -> int:
        """Until it is acknowledged; the offset of its first record."""
        body = produce_request("t", 0, values, TIME_MS, -1, producer)
        answer = self.ask(broker_id, ApiKey.PRODUCE, 9, {**body, "timeout_ms": 20_000})
        row = answer["responses"][0]["partition_responses"][0]
        assert row["error_code"] == ErrorCode.NONE, row
        return int(row["base_offset"])

    def remove_below(self, broker_id: int, offset: int) -> None:
        """DeleteRecords; what is removed is off all disks of that side, too."""
        partitions = [{"partition_index": 0, "offset": offset}]
        asked = {"timeout_ms": 2000, "topics": [{"name": "t", "partitions": partitions}]}
        answer = self.ask(broker_id, ApiKey.DELETE_RECORDS, 2, asked)
        assert answer["topics"][0]["partitions"][0]["error_code"] == ErrorCode.NONE, answer
        self.sim.run(1000)
        for life in self.sim.lives.values():
            dropped = life.loop.create_task(life.broker.housekeeping.retain())
            self.sim.run_until(dropped.done)
            dropped.result()

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

    def fall_apart(self) -> list[bytes]:
        """The primary is cut off, and records are written on both sides; all that there are, sorted."""
        lone = self.primary()
        self.write(lone, b"common")
        self.cut_off(lone)
        other = self.primary(among=[number for number in self.sim.lives if number != lone])
        for number in range(4):
            self.write(lone, b"lone %d" % number)
            self.write(other, b"other %d" % number)
        return sorted([b"common", *(b"%s %d" % (side, n) for side in (b"lone", b"other") for n in range(4))])

    def is_joining(self, broker_id: int) -> bool:
        """It writes to a lane that no row names yet."""
        partition = self.partition(broker_id)
        return any(lane not in partition.branches.opened for lane in partition.lanes)

    def joined(self) -> list[int]:
        """Those who know of a branch that has joined others."""
        return [
            number
            for number in self.sim.lives
            if any(row.inputs for row in self.partition(number).branches.opened.values())
        ]

    def values(self) -> list[bytes]:
        """As a new reader sees them."""
        found: list[bytes] = []
        offset = int(self.partition(self.primary()).log.start_offset)
        while True:
            wanted = {**fetch_request("t", 0, offset), "max_wait_ms": 100}
            answer = self.ask(self.primary(), ApiKey.FETCH, 12, wanted)["responses"][0]["partitions"][0]
            assert answer["error_code"] == ErrorCode.NONE, ErrorCode(answer["error_code"])
            more = list(records_from(answer["records"], offset))
            if not more:
                return found
            found += [value or b"" for _, value in more]
            offset = more[-1][0] + 1
