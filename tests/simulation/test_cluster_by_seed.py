"""Whole clusters under random load, faults and deaths: every seed must keep every promise, and be well again in calm.

A seed that fails here is repeated, with its trace, by `make sim SEED=<seed>`.
"""

import pytest

from anabranch.testing.simulation.cluster_runs import trace_of
from anabranch.testing.simulation.cluster_workload import ClusterWorkload
from support.seeded_runs import traces_elsewhere, traces_of

SEEDS = 200
SEEDS_PER_TEST = 20
HAPPENS = (
    "flush=os",
    "flush=always",
    "idempotent-2 0+",
    "NOT_LEADER_OR_FOLLOWER",
    "REQUEST_TIMED_OUT",
    "generation 4",
    "view 1",
    "is killed",
    "has stopped",
    "the power of 1 goes",
    "stands still",
    "is cut off",
    "and back",
    "the network is bad",
    "is nearly full",
    "is slow",
    "will fail",
    "loses its disk",
    "joins",
    "goes to",
    ": 0\n",
)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_promise_is_kept_by_all(first: int) -> None:
    text = traces_of(range(first, first + SEEDS_PER_TEST), ClusterWorkload)
    if first == 0:  # Lest the seeds pass because nothing happens in them.
        assert [word for word in HAPPENS if word not in text] == []


@pytest.mark.parametrize("first", [0, 5])
def test_disks_come_and_go_and_come_back(first: int) -> None:
    text = ""
    for seed in range(first, first + 5):
        workload = ClusterWorkload(seed, swaps_disks=True)
        with workload.sim as sim:
            workload.run()
        text += "\n".join(sim.trace)
    assert text.count("gets its old disk back") > 2


def test_another_process_gives_the_same_run_of_a_cluster() -> None:
    outputs = traces_elsewhere(seed=7)
    assert outputs[0] == outputs[1] == trace_of(7)
