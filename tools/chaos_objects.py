"""Topics in an object store under load, while it fails and brokers die; then nothing acknowledged may be missing.

    python tools/chaos_objects.py [--minutes 5] [--brokers 3] [--seed 1]

The store is moto's S3 server behind `anabranch.testing.store_proxy`. By the seed, its answers are errors, late, cut off
or withheld, and brokers are killed (also when the store has an object of which nobody was told), stopped, paused and
cut off, while small objects are merged and old ones deleted. Then all is read and compared with what clients were told.
Prints the figures, and exits with 1 if anything is wrong.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from chaos.object_ordeal import SETTINGS, ObjectOrdeal, defects
from chaos.object_run import ObjectRun
from support.s3_server import CREDENTIALS, S3Server


def main() -> int:
    arguments = parse()
    os.environ.update(CREDENTIALS)
    folder = Path(tempfile.mkdtemp(prefix="anabranch-chaos-"))
    say(f"seed {arguments.seed}: {arguments.brokers} brokers for {arguments.minutes:g} minutes in {folder}")
    with (
        S3Server(folder) as server,
        ObjectRun(
            folder / "cluster",
            server,
            server.make_bucket(),
            brokers=arguments.brokers,
            seed=arguments.seed,
            settings=SETTINGS,
        ) as run,
    ):
        ordeal = ObjectOrdeal(run, arguments.seed, say)
        ordeal.last(arguments.minutes * 60)
        result = run.finish()
        wrong = defects(run)
    slowest = max(ordeal.recoveries, key=lambda recovery: recovery[1])
    say(
        f"{len(ordeal.recoveries)} faults; records were taken again after {slowest[1]:.1f} s at most ({slowest[0]})"
    )
    say(f"{len(wrong)} defects logged: {wrong[:3]}")
    return 1 if result.violations or wrong else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/chaos_objects.py")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    return parser.parse_args()


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - This is a program.


if __name__ == "__main__":
    sys.exit(main())
