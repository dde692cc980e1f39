"""The rules of leaving branches, each broken once in whole brokers, and the schedule that notices.

| what is broken | who notices |
| --- | --- |
| a promise is not on the disk before it is given | a power cut, then a split |
| a promise is forgotten by a restart | the same |
| what others wrote is not taken in | a split just before |
| whoever does not answer is not waited for | a split just after the wish |
| what is kept goes on in the numbers of a lane | whoever goes back into branches |

That nobody believes what was made ready for another decision is shown in `test_last_line.py`.
"""

from collections.abc import Callable
from typing import Any

import pytest

from anabranch.broker.branch import closing as branch_closing
from anabranch.broker.branch.closing import Closing
from anabranch.broker.branch.lanes.lanes_to_log import LastLine, last_line
from anabranch.broker.branch.partition import BranchPartition
from anabranch.broker.branch.partition_role import BranchSeat
from anabranch.broker.branch.peers import BranchPeers
from anabranch.broker.branch.takeover import NotNowError
from anabranch.errors import CorruptDataError
from anabranch.modes.branch.rows import Tip
from anabranch.testing.simulation.simulator import SimulationError
from anabranch.values import BrokerId
from support.mode_schedule import ModeSchedule

Patch = pytest.MonkeyPatch
SEEDS = range(4)
ALONE_MS = 9000
"""After which a broker that comes back without the quorum serves topics in branches all the same."""


# --- what is broken ------------------------------------------------------------------------------------------------


def promise_not_on_disk(patch: Patch) -> None:
    patch.setattr(BranchPartition, "_write_promise", lambda self, promise: None)


def promise_forgotten(patch: Patch) -> None:
    patch.setattr(BranchPartition, "_promised", lambda self: None)


def others_not_taken_in(patch: Patch) -> None:
    take_in = Closing._take_in

    async def only_own(self: Closing, seat: BranchSeat, tips: dict[BrokerId, Tip]) -> None:
        await take_in(self, seat, {})

    patch.setattr(Closing, "_take_in", only_own)


def silence_is_consent(patch: Patch) -> None:
    ask = Closing._ask_to_close

    async def some(self: Closing, seat: BranchSeat, brokers: Any, move: int) -> dict[BrokerId, Tip]:
        found: dict[BrokerId, Tip] = {}
        for broker in brokers:
            try:
                found |= await ask(self, seat, [broker], move)
            except NotNowError:
                continue
        return found

    patch.setattr(Closing, "_ask_to_close", some)
    patch.setattr(BranchPeers, "_sees_everybody", True)


def lane_goes_on(patch: Patch) -> None:
    def at_its_end(branches: Any, tip: Tip, **given: Any) -> LastLine:
        return last_line(branches, tip, **{**given, "end": tip.end})

    patch.setattr(branch_closing, "last_line", at_its_end)


# --- schedules -----------------------------------------------------------------------------------------------------


def alone_with_an_older_table(*, loses_power: bool) -> None:
    """Somebody dies when the end is agreed on and it has not heard so, and comes back cut off from the others."""
    for seed in SEEDS:
        with ModeSchedule(seed, entries_per_snapshot=1) as world:
            for number in range(3):
                world.say(b"%d" % number)
            world.wish("ring")
            world.until_closing()
            victim = world.until_somebody_knows("kept")
            world.sim.net.isolate(BrokerId(victim))
            (world.sim.crash if loses_power else world.sim.kill)(victim)
            world.sim.start(victim)
            world.sim.run(ALONE_MS)
            world.try_alone(victim)
            world.sim.net.heal()
            world.change("ring")
            world.check()


def loses_power_with_an_older_table() -> None:
    alone_with_an_older_table(loses_power=True)


def dies_with_an_older_table() -> None:
    alone_with_an_older_table(loses_power=False)


def lines_that_are_apart() -> None:
    """The wish comes as soon as the sides hear each other again."""
    for seed in SEEDS:
        with ModeSchedule(seed) as world:
            world.acknowledged += world.fall_apart()
            world.sim.net.heal()
            world.wish("ring")
            world.change("ring")
            world.check()


def cut_off_after_the_wish() -> None:
    """Whoever is cut off writes on: it has promised nothing."""
    for seed in SEEDS:
        with ModeSchedule(seed) as world:
            world.say(b"first")
            lone = world.neither_closer_nor_quorum_leader()
            world.sim.net.isolate(BrokerId(lone))
            world.wish_at_once("ring")
            world.sim.run(ALONE_MS)
            world.try_alone(lone)
            world.sim.net.heal()
            world.change("ring")
            world.check()


def back_into_branches() -> None:
    for seed in SEEDS:
        with ModeSchedule(seed) as world:
            for mode in ("ring", "branch", "ring", "branch"):
                world.acknowledged += world.fall_apart() if world.is_in("branch") else []
                world.sim.net.heal()
                world.change(mode)
                world.check()


# --- who notices ---------------------------------------------------------------------------------------------------

BROKEN: list[tuple[Callable[[Patch], None], Callable[[], None]]] = [
    (promise_not_on_disk, loses_power_with_an_older_table),
    (promise_forgotten, dies_with_an_older_table),
    (others_not_taken_in, lines_that_are_apart),
    (silence_is_consent, cut_off_after_the_wish),
    (lane_goes_on, back_into_branches),
]


@pytest.mark.parametrize("schedule", [each[1] for each in BROKEN], ids=lambda each: str(each.__name__))
def test_with_all_rules_nothing_is_lost_or_doubled_by_leaving(schedule: Callable[[], None]) -> None:
    schedule()


@pytest.mark.parametrize(("broken", "notices"), BROKEN, ids=[each[0].__name__ for each in BROKEN])
def test_a_broken_rule_of_leaving_is_noticed(
    broken: Callable[[Patch], None], notices: Callable[[], None], monkeypatch: Patch
) -> None:
    broken(monkeypatch)
    with pytest.raises((SimulationError, CorruptDataError)):  # A broker may notice at its next start, too.
        notices()
