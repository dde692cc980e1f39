"""Schedules of whole brokers that fall into sides and join: a death at every step of a merge, a producer that retries
on the other side, links that are cut between two of three only."""

import pytest

from anabranch.values import BrokerId
from support.branch_schedule import BranchSchedule

STEPS = range(10)
"""Operations of its disk that a broker still does before its power goes."""
LANES_MAX = 8


@pytest.mark.parametrize("first", range(2))
def test_a_broker_that_dies_while_it_joins_branches_joins_them_after_its_return(first: int) -> None:
    deaths = 0
    for steps in STEPS[first::2]:
        with BranchSchedule(seed=steps) as world:
            expected = world.fall_apart()
            disks = {number: machine.disk for number, machine in world.sim.machines.items()}
            world.sim.net.heal()
            while not (begun := [number for number in world.sim.lives if world.is_joining(number)]):
                world.sim.run(1)
            disks[begun[0]].crash_at = disks[begun[0]].operations + steps
            world.sim.run(1000)
            disks[begun[0]].crash_at = None
            if begun[0] not in world.sim.lives:
                deaths += 1
                world.sim.start(begun[0])
            world.settle()
            assert sorted(world.values()) == expected
    assert deaths == len(STEPS[first::2]), "not everybody died who was to"


def test_a_batch_that_is_sent_to_both_sides_of_a_split_is_there_once_in_the_end() -> None:
    with BranchSchedule() as world:
        lone = world.primary()
        world.write(lone, b"first", (1000, 0, 0))
        world.cut_off(lone)
        other = world.primary(among=[number for number in world.sim.lives if number != lone])
        world.write(lone, b"twice", (1000, 0, 1))
        world.write(other, b"twice", (1000, 0, 1))
        world.write(other, b"then", (1000, 0, 2))
        world.sim.net.heal()
        world.sim.run_until(world.joined)
        world.settle()
        assert sorted(world.values()) == [b"first", b"then", b"twice"]
        world.write(world.primary(), b"last", (1000, 0, 3))


@pytest.mark.parametrize("others", [(1, 2), (1, 3), (2, 3)])
def test_a_cut_between_two_of_three_does_not_open_a_lane_for_every_record(others: tuple[int, int]) -> None:
    with BranchSchedule() as world:
        world.sim.net.cut(*map(BrokerId, others))
        for number in range(60):
            world.sim.run(100)
            for broker_id in world.sim.lives:
                world.send(broker_id, b"%d" % number)
        assert len(world.partition(1).branches.opened) < LANES_MAX
        world.sim.net.heal()
        world.settle()


def test_a_broker_that_comes_back_on_a_side_without_the_quorum_takes_records_there() -> None:
    with BranchSchedule() as world:
        lone = world.primary()
        world.write(lone, b"common")
        world.sim.run(10_000)  # Which topics there are is known to its disk by now.
        world.cut_off(lone)
        world.write(lone, b"before")
        world.sim.kill(lone)
        world.sim.start(lone)
        world.sim.run_until(lambda: world.sim.lives[lone].is_ready)
        world.sim.run_until(lambda: world.partition(lone).reign is not None)
        world.write(lone, b"behind")
        world.sim.net.heal()
        world.sim.run_until(lambda: world.sim.lives[lone].broker.peering.has_joined)
        world.settle()
        assert sorted(world.values()) == [b"before", b"behind", b"common"]
