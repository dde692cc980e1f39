"""Clusters that lose all of their disks at any step, some of their snapshots and objects, and come back from their
bucket.

    python tools/sim_restore.py [--seeds 200 | --seeds 50..99] [--seed 7]

In one thread and by virtual time (`tests/support/restore_world.py` says what happens, and what has to be true). Exits
with 1 if anything acknowledged was lost, or lost without being named.
"""

import argparse
import logging
import sys
import time
import traceback
from collections import Counter

from support.broker_cluster import close_all
from support.restore_world import run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/sim_restore.py")
    parser.add_argument("--seed", type=int, help="repeat one, and show what went wrong")
    parser.add_argument("--seeds", default="200", help="so many, or FIRST..LAST")
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)
    first, _, last = chosen.seeds.rpartition("..")
    seeds = range(int(first or 0), int(last) + bool(first))
    failed: list[int] = []
    counts: Counter[str] = Counter()
    began = time.monotonic()
    for seed in seeds if chosen.seed is None else [chosen.seed]:
        try:
            report = run_seed(seed)
        except Exception as error:  # noqa: BLE001 - said, whatever it is.
            failed.append(seed)
            say(f"seed {seed}: {type(error).__name__}: {error}")
            if chosen.seed is not None:
                traceback.print_exc()
        else:
            counts["runs with named losses" if report.losses else "runs without a loss"] += 1
            counts["runs with damaged objects"] += bool(report.damaged)
            counts["runs with copied records"] += bool(report.copied)
            counts["records appended again"] += report.records_appended
        finally:
            close_all()
    say(
        f"{sum(counts.values()) and dict(counts)}, {len(failed)} failed in {time.monotonic() - began:.0f} s: {failed}"
    )
    return 1 if failed else 0


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - This is a program.


if __name__ == "__main__":
    sys.exit(main())
