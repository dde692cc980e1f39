"""Runs of the simulated cluster from the command line; `make sim` calls it.

python -m anabranch.testing.simulation.cluster_runs --seed 7             one seed, with its trace
python -m anabranch.testing.simulation.cluster_runs --seeds 1000         seeds 0 to 999; --seeds 50..99: those
python -m anabranch.testing.simulation.cluster_runs --minutes 10         as many as fit
python -m anabranch.testing.simulation.cluster_runs --objects ...        the same with topics in an object store
python -m anabranch.testing.simulation.cluster_runs --branches ...       the same with topics in branch mode
python -m anabranch.testing.simulation.cluster_runs --modes ...    the same with topics that change their mode
"""

import argparse
import gc
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from itertools import count

from anabranch.testing.simulation.branch_workload import BranchWorkload
from anabranch.testing.simulation.cluster_workload import ClusterWorkload
from anabranch.testing.simulation.mode_change_workload import WanderingWorkload
from anabranch.testing.simulation.object_workload import ObjectWorkload

SAY_SECONDS = 10


def trace_of(seed: int, kind: type[ClusterWorkload] = ClusterWorkload) -> list[str]:
    """Run it; raises SimulationError, and anything else that is a defect, with the trace as its last note."""
    workload = kind(seed)
    try:
        with workload.sim:
            workload.run()
    except Exception as error:
        error.add_note("\n".join(workload.sim.trace))
        raise
    return workload.sim.trace


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make sim", description="Simulate clusters by seed.")
    parser.add_argument("--seed", type=int, help="repeat one run, and show its trace")
    parser.add_argument("--seeds", help="how many, or the first and the last: 50..99")
    parser.add_argument("--minutes", type=float, help="begin no new run after so long")
    parser.add_argument("--objects", action="store_true", help="with topics in an object store")
    parser.add_argument("--branches", action="store_true", help="with topics in branch mode")
    parser.add_argument("--modes", action="store_true", help="with topics that wander through all modes")
    chosen = parser.parse_args(arguments)
    kind = _kind(chosen)
    if chosen.seeds is None and chosen.minutes is None:
        return _repeat(chosen.seed or 0, kind)
    return _run_many(_seeds(chosen.seeds), chosen.minutes, kind)


def _kind(chosen: argparse.Namespace) -> type[ClusterWorkload]:
    if chosen.modes:
        return WanderingWorkload
    return ObjectWorkload if chosen.objects else BranchWorkload if chosen.branches else ClusterWorkload


def _repeat(seed: int, kind: type[ClusterWorkload]) -> int:
    try:
        lines = trace_of(seed, kind)
    except Exception as error:  # noqa: BLE001 - shown, whatever it is.
        sys.stdout.write("".join(traceback.format_exception(error)))
        return 1
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _seeds(wanted: str | None) -> Iterator[int]:
    if wanted is None:
        return count()
    first, _, last = wanted.rpartition("..")
    return iter(range(int(first), int(last) + 1) if first else range(int(last)))


def _run_many(seeds: Iterator[int], minutes: float | None, kind: type[ClusterWorkload]) -> int:
    started = said = time.monotonic()
    runs = 0
    failed: list[int] = []
    gc.freeze()
    for seed in seeds:
        now = time.monotonic()
        if minutes is not None and now - started >= minutes * 60:
            break
        if now - said >= SAY_SECONDS:
            said = now
            sys.stdout.write(
                f"{runs} seeds, {runs / (now - started) * 60:.0f} per minute, failed: {failed}\n"
            )
            sys.stdout.flush()
        try:
            trace_of(seed, kind)
        except Exception as error:  # noqa: BLE001 - said, whatever it is; `make sim SEED=n` shows the rest.
            failed.append(seed)
            sys.stdout.write(f"seed {seed}: {type(error).__name__}: {error}\n")
            sys.stdout.flush()
        runs += 1
    seconds = time.monotonic() - started
    sys.stdout.write(
        f"{runs} seeds in {seconds:.0f} s, {runs / seconds * 60:.0f} per minute, {len(failed)} failed: {failed}\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
