"""A branch topic on a network that splits, with real clients on both sides; then nothing acknowledged may be missing.

    python tools/chaos_branches.py [--cycles 5] [--seconds 20] [--seed 1] [--report branches.json]

Five brokers, each in a network namespace, are cut into two and three for some seconds, again and again. On both sides
confluent-kafka, kafka-python and Kafka's own Java client write and read a branch topic all the time, and a ring topic
beside it shows what the minority may not do there. tests/chaos/branch_history.py says what is checked. Needs root and
the program ip (Debian: iproute2); without Java or Maven it runs without the Java client, and says so.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chaos.network import CannotSplitError
from chaos.split_run import SplitRun, is_sound, unexpected
from clients.java_program import java_command
from clients.registries import Unavailable


def main() -> int:
    arguments = parse()
    folder = Path(tempfile.mkdtemp(prefix="anabranch-branches-"))
    run = SplitRun(
        folder,
        java=java(),
        cycles=arguments.cycles,
        split_seconds=arguments.seconds,
        seed=arguments.seed,
        settings={"offsets.mode": "branch"} if arguments.groups else {},
        say=say,
    )
    try:
        result = run.run()
    except CannotSplitError as error:
        say(f"Networks cannot be split on this machine: {error}.")
        return 1
    show(result)
    if arguments.report:
        Path(arguments.report).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if is_sound(result):
        return 0
    say(f"What the brokers said is in {folder}.")
    return 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--groups", action="store_true", help="with offsets.mode=branch")
    parser.add_argument("--report")
    return parser.parse_args()


def java() -> list[str]:
    try:
        return java_command()
    except Unavailable as error:
        say(f"Without Kafka's own Java client: {error}.")
        return []


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def show(result: dict[str, Any]) -> None:
    for number, cycle in enumerate(result["cycles"], 1):
        say(
            f"split {number}, brokers {cycle['minority']} alone; acknowledged meanwhile, and the longest pause of a "
            "partition in it and after it:"
        )
        for name, acked in cycle["acked_while_split"].items():
            split_s, heal_s = (cycle[pause][name] / 1000 for pause in ("split_pause_ms", "heal_pause_ms"))
            say(f"    {name:32} {acked:6}  {split_s:5.1f} s  {heal_s:5.1f} s")
    say(
        f"acknowledged in all {sum(result['acknowledged'].values())}, a new reader sees {result['in_the_end']}"
    )
    for name, errors in result["errors"].items():
        say(f"    {name}: {errors}")
    for line in unexpected(result):
        say(line)
    say(f"violations: {result['violations'] or 'none'}\n{result['examples']}")


if __name__ == "__main__":
    sys.exit(main())
