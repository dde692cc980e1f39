"""A cluster of real processes under load while things go wrong; then nothing acknowledged may be missing.

    python tools/chaos_cluster.py [--minutes 10] [--brokers 3] [--seed 1] [--report chaos.json]

Several idempotent producers and a group of consumers run all the time. By the seed, at least every 8 seconds a broker
is killed with kill -9, paused, restarted, cut off from one or all others in one direction or both, loses 30 % of its
packets, or finds its disk full. Then everything is healed, read from the beginning, and compared with what producers
and consumers were told (tests/chaos/history.py says what is checked). Prints a table, writes JSON, and exits with 1
if anything is wrong.

Packet loss and the full disk need root: the run then moves into a network and mount namespace of its own, which touches
nothing else on the machine. Packet loss also needs the program nft (Debian: nftables). What cannot be had is left out
aloud.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chaos.cluster_run import ChaosRun, is_sound

INSIDE = "ANABRANCH_CHAOS_INSIDE"


def main() -> int:
    arguments = parse()
    if os.environ.get(INSIDE) is None and not arguments.plain and can_unshare():
        command = ["unshare", "--net", "--mount", sys.executable, *sys.argv]
        return subprocess.run(command, env={**os.environ, INSIDE: "1"}).returncode
    is_inside = os.environ.get(INSIDE) is not None
    if is_inside:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    nft = shutil.which(arguments.nft) if is_inside else None
    say_what_is_left_out(is_inside, nft)
    folder = Path(tempfile.mkdtemp(prefix="anabranch-chaos-"))
    run = ChaosRun(
        folder,
        brokers=arguments.brokers,
        seed=arguments.seed,
        seconds=arguments.minutes * 60,
        partitions=arguments.partitions,
        producers=arguments.producers,
        consumers=arguments.consumers,
        per_second=arguments.per_second,
        settings=dict(setting.split("=", 1) for setting in arguments.set),
        nft=nft,
        may_mount=is_inside,
        say=say,
    )
    say(f"seed {run.seed}: {run.brokers} brokers for {run.seconds:.0f} s in {folder}")
    result = run.run()
    show(result)
    if arguments.report:
        Path(arguments.report).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if not is_sound(result):
        say(f"repeat with --seed {run.seed}; logs of the brokers are in {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Chaos in a local cluster.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--producers", type=int, default=3)
    parser.add_argument("--consumers", type=int, default=2)
    parser.add_argument("--per-second", type=int, default=200, help="records of one producer")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a broker setting")
    parser.add_argument("--report", metavar="FILE", help="where the numbers go as JSON")
    parser.add_argument("--nft", default="nft", metavar="PROGRAM", help="what drops packets")
    parser.add_argument("--plain", action="store_true", help="without namespaces, even as root")
    return parser.parse_args()


def can_unshare() -> bool:
    """Whether this user may have a network and mounts of its own."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True).returncode == 0


def say_what_is_left_out(is_inside: bool, nft: str | None) -> None:
    if not is_inside:
        say("left out: packet loss and the full disk (they need root, `unshare` and `ip`)")
    elif nft is None:
        say("left out: packet loss (it needs `nft`, of Debian's package nftables)")


def show(result: dict[str, Any]) -> None:
    say("")
    for kind, count in sorted(result["faults"].items()):
        say(f"  {kind:<28} {count:>9}")
    say(f"  {'faults in all':<28} {result['fault_count']:>9}")
    for name in ("sent", "acknowledged", "unknown", "failed", "read_by_group", "read_at_the_end"):
        say(f"  {name.replace('_', ' '):<28} {result[name]:>9}")
    kinds = (
        "lost",
        "duplicate",
        "order",
        "moved",
        "offset-reused",
        "rewritten",
        "withdrawn",
        "missed",
        "watermark-back",
    )
    for kind in (*kinds, *sorted(result["violations"].keys() - set(kinds))):
        say(f"  {kind:<28} {result['violations'].get(kind, 0):>9}")
    gap = result["unavailable_ms"]
    say(
        f"  unavailable after a kill: median {gap['median']} ms, worst {gap['max']} ms of {gap['kills']} kills"
    )
    say(f"  what clients were told: {result['client_errors'] or 'no error'}")
    for line in (*result["examples"].splitlines(), *result["liveness"]):
        say(f"  ! {line}")


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - this is a program.


if __name__ == "__main__":
    sys.exit(main())
