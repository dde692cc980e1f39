"""`python -m bench`: measure rows, ours against Kafka, and tell. `make bench` calls it.

    --rows quick,small-1   ids and sets of rows.py    --rounds 5      of each side
    --seconds 2            of a load's round          --fresh         forget the rounds of these rows
    --list                 show the rows              --report        tell again what is already measured
    --no-kafka             ours only                  --folder DIR    where the brokers keep their data
    --document FILE        put the table into it      --results DIR   where the results go

Exit codes: 0 measured (whatever the figures), 1 a load could not be run, 2 the command line is wrong.
"""

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from bench import report
from bench.clients.programs import describe_rdkafka
from bench.field import OURS, THEIRS, Field
from bench.loads.raw import warm_up
from bench.machine import busy_warning, describe_machine, describe_node, source_commit
from bench.programs import load_program
from bench.rows import ROWS, SETS, Row, chosen
from bench.runner import Runner, say
from bench.state import State, fingerprint
from clients.registries import Unavailable, cache_folder, kafka_jars, program

TREE = Path(__file__).parent.parent
RESULTS = TREE / "bench" / "results"
TELLING_ONLY = {"report.py", "plot.py", "figures.py", "profile.py", "__main__.py"}  # They change no round.
ROUNDS = 5
SECONDS = 2.0


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", default="quick")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--folder", type=Path, default=cache_folder() / "bench" / "data")
    parser.add_argument("--document", type=Path)
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args(words)


def kafka_missing() -> str:
    """Why Kafka cannot be measured here; empty when it can."""
    try:
        program("java", "default-jre-headless")
        kafka_jars("kafka_2.13")
    except Unavailable as reason:
        return str(reason)
    return ""


def state_of(results: Path, seconds: float) -> State:
    key = {
        "code": fingerprint([TREE / "src", TREE / "bench"], TELLING_ONLY),
        "seconds of a round": str(seconds),
        "machine": describe_machine(),
        "node": describe_node(),
        "librdkafka": describe_rdkafka(),
    }
    return State.load(results / "rounds.json", key)


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def remove_leftovers(folder: Path) -> None:
    """Data of runs that were killed before they could tidy up. A run's folder is named after its process."""
    for left in folder.glob("[0-9]*"):
        if not Path("/proc", left.name).exists():
            shutil.rmtree(left)


def measure(options: argparse.Namespace, rows: Sequence[Row], state: State, without_kafka: str) -> Runner:
    """Run the rows; the runner knows those that could not be run."""
    sides = [OURS] if without_kafka else [OURS, THEIRS]
    load_program()
    remove_leftovers(options.folder)
    field = Field(options.folder / str(os.getpid()), warm_up)
    runner = Runner(field, state, sides, options.rounds, options.seconds)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        runner.run(rows)
    finally:
        field.close()
    return runner


def main(words: Sequence[str]) -> int:
    # An installed package has its bytecode, and starts with it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    options = parse(words)
    if options.list:
        report.show_rows()
        return 0
    try:
        rows = chosen([word for word in options.rows.replace(" ", ",").split(",") if word])
    except KeyError as unknown:
        say(f"there is no row {unknown}; rows: {', '.join(row.id for row in ROWS)}; sets: {', '.join(SETS)}")
        return 2
    without_kafka = "as asked (--no-kafka)" if options.no_kafka else kafka_missing()
    state = state_of(options.results, options.seconds)
    machine = f"{describe_machine()}; {describe_rdkafka()}"
    heading = report.Heading(
        describe_node(), machine, source_commit(TREE), without_kafka, "" if options.report else busy_warning()
    )
    say(heading.text())
    if state.discarded:
        say(f"Earlier rounds are not taken over: {state.discarded}.")
    failures: dict[str, str] = {}
    skipped: dict[str, str] = {}
    if not options.report:
        if options.fresh:
            for row in rows:
                state.forget(row.id)
        try:
            runner = measure(options, rows, state, without_kafka)
            failures, skipped = runner.failures, runner.skipped
        except KeyboardInterrupt:
            say("\nInterrupted. What was measured is kept; the same command goes on from here.")
            return 1
    report.write(state, options.results, heading, failures, skipped)
    if options.document is not None:
        report.put_into(options.document, state, heading)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
