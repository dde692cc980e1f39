"""Whole brokers whose topics wander through all modes, while they fall into sides, die and come back: every seed must
keep every promise, and each topic must come to the mode that is asked for last.

A seed that fails here is repeated, with its trace, by `make sim MODES=1 SEED=<seed>`.
"""

import pytest

from anabranch.testing.simulation.cluster_runs import trace_of
from anabranch.testing.simulation.mode_change_workload import WanderingWorkload
from support.seeded_runs import traces_elsewhere, traces_of

SEEDS = 24
SEEDS_PER_TEST = 8
HAPPENS = (
    "shall be ring: None",
    "shall be solo: None",
    "shall be object: None",
    "shall be branch: None",
    "split into",
    "is killed",
    "the power of",
    "stands still",
    "the store is away",
    "is cut at",
    "group-0 commits",
)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_promise_is_kept_over_all_modes(first: int) -> None:
    text = traces_of(range(first, first + SEEDS_PER_TEST), WanderingWorkload, "MODES")
    if first == 0:  # Lest the seeds pass because nothing happens in them.
        assert [word for word in HAPPENS if word not in text] == []


def test_another_process_gives_the_same_run_over_all_modes() -> None:
    outputs = traces_elsewhere("--modes")
    assert outputs[0] == outputs[1] == trace_of(1, WanderingWorkload)
