"""Whole brokers with topics in branch mode, that fall apart into sides, die and join: every seed must keep every
promise, and all must be one again in calm.

A seed that fails here is repeated, with its trace, by `make sim BRANCHES=1 SEED=<seed>`.
"""

import pytest

from anabranch.testing.simulation.branch_workload import BranchWorkload
from anabranch.testing.simulation.cluster_runs import trace_of
from support.seeded_runs import traces_elsewhere, traces_of

SEEDS = 200
SEEDS_PER_TEST = 10
HAPPENS = (
    "split into",
    "does not hear",
    "the network is whole",
    "dies while they join",
    "idempotent-",
    "plain-",
    "wanderer-",
    "group-0 commits",
    "group-0 goes on at",
    "is cut at",
    "is killed",
    "the power of",
    "stands still",
    "cut from",
    "is nearly full",
    "will fail",
)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_promise_about_branches_is_kept(first: int) -> None:
    text = traces_of(range(first, first + SEEDS_PER_TEST), BranchWorkload, "BRANCHES")
    if first == 0:  # Lest the seeds pass because nothing happens in them.
        assert [word for word in HAPPENS if word not in text] == []


def test_another_process_gives_the_same_run_with_branches() -> None:
    outputs = traces_elsewhere("--branches")
    assert outputs[0] == outputs[1] == trace_of(1, BranchWorkload)
