"""Flips bytes under running nodes and reads them in every way there is: nothing wrong may come out.

    PYTHONPATH=tests python tools/flips.py [--flips 200] [--seed 7]

One node and a cluster of three on this machine; see `tests/chaos/flips.py`. Prints a table, and fails if a wrong record
was served, an intact one lost, a flip not counted, or one in the ring not repaired.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from chaos.flips import READERS, Flips, ring_site, solo_site


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    wanted = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="anabranch-flips-") as folder,
        solo_site(Path(folder) / "solo") as solo,
        ring_site(Path(folder) / "ring") as ring,
    ):
        flips = Flips([solo, ring], wanted.seed, list(READERS))
        flips.run(wanted.flips)
    sums = flips.sums
    ring_flips = sum(each["flips"] for (_, mode, _), each in flips.table.items() if mode == "ring")
    sys.stdout.write(f"{flips.report()}\n\n")
    sys.stdout.write(
        f"seed {wanted.seed}: {sums['flips']} flips, {sums['wrong']} wrong records served, "
        f"{sums['lost']} intact records lost, {sums['counted']} counted, "
        f"{sums['repaired']} of {ring_flips} in the ring repaired\n"
    )
    is_good = not sums["wrong"] and not sums["lost"] and sums["counted"] == sums["flips"]
    return 0 if is_good and sums["repaired"] == ring_flips else 1


if __name__ == "__main__":
    sys.exit(main())
