"""BranchFaults: splits, beside what goes wrong in any cluster.

The brokers fall into two or three sides, or one stops hearing some of the others while they hear it. After a while
everything is whole, or falls apart another way; and now and then a broker dies just as the sides begin to join.
"""

from random import Random

from anabranch.testing.simulation.branch_copies import missing_branches
from anabranch.testing.simulation.cluster_faults import ClusterFaults
from anabranch.testing.simulation.cluster_simulator import ClusterSimulator
from anabranch.values import BrokerId

SPLIT_MS = (800, 3000, 4000, 7000)
"""Less than it takes to notice, and more."""
JOIN_MS_MAX = 1500
"""Within this the sides join after a split."""
OPERATIONS_MAX = 60
OTHER_CHANCE = 0.2
"""That a split becomes another one before it ends."""


class BranchFaults(ClusterFaults):
    def __init__(self, sim: ClusterSimulator, rng: Random, *, may_lose_disks: bool) -> None:
        super().__init__(sim, rng, may_lose_disks=may_lose_disks)
        self._splits = 0
        self.is_split = False

    def split(self) -> None:
        """Into two or three sides; a split that there was before ends with this."""
        if self.is_split and self._rng.random() > OTHER_CHANCE:
            return
        numbers = sorted(self._sim.machines)
        self._rng.shuffle(numbers)
        sides_max = 3 if len(numbers) > 2 and self._rng.random() < 0.3 else 2
        sides: list[list[int]] = [numbers[place::sides_max] for place in range(sides_max)]
        if sides_max == 2:
            place = self._rng.randint(1, len(numbers) - 1)
            sides = [numbers[:place], numbers[place:]]
        self._sim.note(f"split into {sorted(sorted(side) for side in sides)}")
        self._sim.net.heal()
        for side in sides:
            for one in side:
                for other in numbers:
                    if other not in side:
                        self._sim.net.cut(BrokerId(one), BrokerId(other), one_way=True)
        self._until_whole()

    def deafen(self) -> None:
        """One does not hear some others any more, but is heard by them."""
        if self.is_split and self._rng.random() > OTHER_CHANCE:
            return
        deaf, *others = self._rng.sample(
            sorted(self._sim.machines), self._rng.randint(2, len(self._sim.machines))
        )
        self._sim.note(f"{deaf} does not hear {sorted(others)}")
        for other in others:
            self._sim.net.cut(BrokerId(other), BrokerId(deaf), one_way=True)
        self._until_whole()

    def lose_disk(self) -> None:
        """When others have everything that it has."""
        if not self.is_split and not missing_branches(self._sim):
            super().lose_disk()

    def _until_whole(self) -> None:
        self._splits += 1
        self.is_split = True
        self._after(self._rng.choice(SPLIT_MS), self._join, self._splits)

    def _join(self, split: int) -> None:
        if split != self._splits:
            return  # There has been another one since.
        self._sim.note("the network is whole")
        self.is_split = False
        self._sim.net.heal()
        if self._rng.random() < 0.4:
            self._after(self._rng.randint(0, JOIN_MS_MAX), self._die_while_joining, 0)

    def _die_while_joining(self, _: int) -> None:
        """Between any two operations of its disk, or just now."""
        if life := self._somebody():
            self._sim.note(f"{life.machine.broker_id} dies while they join")
            if self._rng.random() < 0.7:
                disk = life.machine.disk
                disk.crash_at = disk.operations + self._rng.randint(1, OPERATIONS_MAX)
            else:
                self._sim.kill(life.machine.broker_id)

    def end_all(self) -> None:
        self._splits += 1
        self.is_split = False
        super().end_all()
