"""Whole clusters under random load, faults and deaths: every seed must keep every promise, and be well again in calm.

A seed that fails here is repeated, with its trace, by `make sim SEED=<seed>`.
"""

import hashlib
import os
import subprocess
import sys

import pytest

from anabranch.testing.cluster_runs import trace_of
from anabranch.testing.cluster_workload import ClusterWorkload

SEEDS = 200
SEEDS_PER_TEST = 10


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_promise_is_kept_by_all(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        try:
            trace_of(seed)
        except Exception as error:
            error.add_note(f"make sim SEED={seed} repeats this")
            raise


def test_a_run_of_a_cluster_does_something() -> None:
    """Lest the seeds pass because nothing happens in them."""
    text = "\n".join(line for seed in range(10) for line in trace_of(seed))
    for word in (
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
    ):
        assert word in text, f"{word!r} never happens"


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
    """With other hashes of strings, so that no order comes from them."""
    command = [sys.executable, "-m", "anabranch.testing.cluster_runs", "--seed", "7"]
    outputs = [
        subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert _digest(outputs[0].splitlines()) == _digest(outputs[1].splitlines()) == _digest(trace_of(7))


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
