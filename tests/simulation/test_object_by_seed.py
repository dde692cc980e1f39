"""Whole clusters with topics in an object store, under random load, faults and deaths: every seed must keep every
promise, and be well again in calm, with nothing in the store that nobody needs.

A seed that fails here is repeated, with its trace, by `make sim OBJECTS=1 SEED=<seed>`.
"""

import pytest

from anabranch.testing.simulation.cluster_runs import trace_of
from anabranch.testing.simulation.object_workload import ObjectWorkload
from support.seeded_runs import traces_elsewhere, traces_of

SEEDS = 40
SEEDS_PER_TEST = 8
HAPPENS = (
    "idempotent-2 0+",
    "REQUEST_TIMED_OUT",
    "follower-0",
    "is killed",
    "the power of 1 goes",
    "stands still",
    "is cut off",
    "the store is away",
    "the store is bad",
    "does not reach the store",
    "loses its disk",
    "is cut at",
    "DELETE_TOPICS passing",
    "flush=always",
    "flush=os",
    "merges=1",
    "deleted=1",
)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_promise_about_objects_is_kept(first: int) -> None:
    text = traces_of(range(first, first + SEEDS_PER_TEST), ObjectWorkload, "OBJECTS")
    if first == 0:  # Lest the seeds pass because nothing happens in them.
        assert [word for word in HAPPENS if word not in text] == []


def test_another_process_gives_the_same_run_with_objects() -> None:
    outputs = traces_elsewhere("--objects")
    assert outputs[0] == outputs[1] == trace_of(1, ObjectWorkload)
