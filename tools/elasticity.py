"""A cluster of real processes with many topics that grows, restarts, shrinks and loses disks under load.

    python tools/elasticity.py [--rounds 10] [--topics 320] [--seed 7] [--report elasticity.json]

Each round adds a broker, restarts all of them, drains one, removes it, and destroys the disk of another; during each of
these steps the leader of the metadata quorum is killed with kill -9. Prints a table: how long each step took and how
long the cluster needed to be whole again. Then everything is read and compared with what producers and consumers were
told. Exits with 1 if a command failed, anything acknowledged is missing, or an acknowledged commit went back. Times are
told, not judged.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from chaos.elasticity_run import HEADER, ElasticityRun, as_json, is_sound


def main() -> int:
    arguments = parse()
    folder = Path(tempfile.mkdtemp(prefix="anabranch-elasticity-", dir=arguments.folder))
    run = ElasticityRun(
        folder,
        brokers=arguments.brokers,
        topics=arguments.topics,
        rounds=arguments.rounds,
        seed=arguments.seed,
        per_second=arguments.per_second,
        settings=dict(setting.split("=", 1) for setting in arguments.set),
        say=say,
    )
    say(f"seed {run.seed}: {run.brokers} brokers, {run.topics} topics, {run.rounds} rounds in {folder}")
    say(HEADER)
    result = run.run()
    say("")
    whole = [step["seconds_whole"] for step in result["steps"]]
    late = sum(each is None or each > 30 for each in whole)
    say(f"whole again after more than 30 s: {late} of {len(whole)} steps")
    say(f"acknowledged {result['acknowledged']}, violations {result['violations'] or 'none'}")
    say(f"topics without load that lost records: {result['lost_of_others'] or 'none'}")
    say(f"commits acknowledged {result['commits']}, found lower later: {result['commits_lost'] or 'none'}")
    say(f"read again, as their commit was not acknowledged: {result['read_again_uncommitted']} records")
    say(
        f"topics made and deleted {result['topics_made_and_deleted']}, refused: {result['admin_errors'] or 'none'}"
    )
    say(f"defects that brokers logged: {len(result['defects'])}")
    for line in result["defects"][:3]:
        say(line)
    say(f"what clients were told: {result['client_errors'] or 'no error'}")
    if result["examples"]:
        say(result["examples"])
    if arguments.report:
        Path(arguments.report).write_text(as_json(result), encoding="utf-8")
    if not is_sound(result):
        say(f"repeat with --seed {run.seed}; logs of the brokers are in {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Brokers come and go in a local cluster.")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--topics", type=int, default=320)
    parser.add_argument("--brokers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--per-second", type=int, default=50, help="records of one producer")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a broker setting")
    parser.add_argument("--folder", metavar="FOLDER", help="where the brokers' folders go")
    parser.add_argument("--report", metavar="FILE", help="where the numbers go as JSON")
    return parser.parse_args()


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - this is a program.


if __name__ == "__main__":
    sys.exit(main())
