"""Schedules of whole brokers that bring a topic out of branches: it goes round through all modes, a broker dies at
every step, is away, or comes back knowing less; and what goes wrong when a rule of leaving is broken."""

from support.mode_schedule import ModeSchedule

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
