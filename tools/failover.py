"""How long writes and new topics wait when the broker that leads them is killed.

    PYTHONPATH=tests python tools/failover.py [--rounds 5]

Three brokers on this machine, two idempotent producers and a consumer. Each round kills -9 the leader of a partition,
then the leader of the metadata quorum, and starts each again. Prints every time and the medians.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable

from anabranch.testing.cluster_processes import ClusterProcesses
from chaos.failover import PARTITIONS, Failover


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with (
        tempfile.TemporaryDirectory(prefix="anabranch-failover-") as folder,
        ClusterProcesses(folder) as cluster,
    ):
        failover = Failover(cluster)
        failover.start()
        report("writes", rounds, lambda number: failover.lose_leader(number % PARTITIONS))
        report("new topics", rounds, lambda number: failover.lose_quorum_leader())
        failover.load.stop()
    return 0


def report(what: str, rounds: int, lose: Callable[[int], int]) -> None:
    times = [lose(number) for number in range(rounds)]
    each = ", ".join(f"{ms / 1000:.2f}" for ms in times)
    sys.stdout.write(f"{what} again after {statistics.median(times) / 1000:.2f} s (median of {each})\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
