"""Schedules of whole brokers that bring a topic out of branches: it goes round through all modes, a broker dies at
every step, is away, or comes back knowing less; and what goes wrong when a rule of leaving is broken."""

import pytest

from anabranch.values import BrokerId
from support.mode_schedule import ModeSchedule

STEPS = range(0, 128, 2)
"""Operations of its disk that a broker still does before it dies: in all it takes some 120 to leave."""
ROUND = ("ring", "branch", "object", "branch", "ring", "object", "ring", "branch", "solo", "branch")


def test_a_topic_goes_round_through_all_modes_and_splits_whenever_it_is_in_branches() -> None:
    with ModeSchedule() as world:
        for mode in ROUND:
            world.change(mode)
            if mode == "branch":
                world.settle()
                world.acknowledged += world.fall_apart()
                world.sim.net.heal()
                world.settle()
            world.check()


def split_and_joined(world: ModeSchedule) -> None:
    """Several lanes, one of which joins two others."""
    world.acknowledged += world.fall_apart()
    world.sim.net.heal()
    world.settle()
    world.say(b"joined")


@pytest.mark.parametrize("is_closer", [True, False])
@pytest.mark.parametrize("loses_power", [True, False])
def test_a_broker_that_dies_at_any_step_of_leaving_costs_no_record(
    is_closer: bool, loses_power: bool
) -> None:
    deaths = 0
    for steps in STEPS[is_closer + 2 * loses_power :: 4]:
        with ModeSchedule(seed=steps) as world:
            split_and_joined(world)
            world.wish("ring")
            closer = world.until_closing()
            victim = closer if is_closer else min(world.sim.lives.keys() - {closer})
            deaths += world.die_after(victim, steps, loses_power=loses_power)
            world.change("ring")
            world.check()
            world.change("branch")
            world.check()
    assert deaths > len(STEPS) // 8, "hardly anybody died who was to"


def test_whoever_is_cut_off_keeps_a_topic_in_branches_and_both_sides_go_on() -> None:
    with ModeSchedule() as world:
        lone = world.primary()
        world.cut_off(lone)
        others = sorted(world.sim.lives.keys() - {lone})
        said = world.refusal("ring", others[0])
        assert said is not None
        assert f"while broker {lone} is not reached" in said
        world.acknowledged += [b"lone", b"other"]
        world.write(lone, b"lone")
        world.write(world.primary(among=others), b"other")
        world.sim.net.heal()
        world.settle()
        world.change("ring")
        world.check()


def test_a_split_right_after_the_wish_lets_both_sides_go_on_until_it_heals() -> None:
    with ModeSchedule() as world:
        split_and_joined(world)
        lone = world.primary()
        world.wish("ring")
        world.sim.net.isolate(BrokerId(lone))
        world.sim.run(10_000)
        for number in range(3):
            world.say(b"during %d" % number)
        world.sim.net.heal()
        world.change("ring")
        world.check()


def test_a_wish_that_is_taken_back_leaves_everybody_free() -> None:
    with ModeSchedule() as world:
        split_and_joined(world)
        world.wish("ring")
        world.until_closing()
        world.change("branch")
        world.settle()
        split_and_joined(world)
        world.check()
