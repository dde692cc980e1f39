"""`python -m bench.profile ROW`: where a node's time goes under one raw load. `make profile LOAD=small-1` calls it.

py-spy looks at the running node from outside, native frames included where the machine lets it. The flame graph is
an SVG in bench/results/; printed are the functions that were on top of the stack most often, those of ours with all
they call, and how much of the CPU time was spent in the kernel, which a flame graph of a program does not show.
"""

import argparse
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bench import flame
from bench.brokers import Broker
from bench.field import OURS, Field
from bench.loads.raw import TOPIC, Fetch, Latency, Produce, RawLoad
from bench.measure import cpu_seconds, system_seconds
from bench.rows import ROWS
from bench.runner import say
from clients.registries import cache_folder

RESULTS = Path(__file__).parent / "results"
SECONDS = 10.0
SAMPLES_PER_SECOND = 500
SHOWN_MAX = 25
SLACK_S = 2.0  # The load starts before the looking does, and ends after it.


def raw_loads() -> dict[str, RawLoad]:
    return {row.id: row.load for row in ROWS if isinstance(row.load, Produce | Fetch | Latency)}


class Spy:
    """py-spy on one process; with native frames unless the machine does not let it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._flags: Sequence[str] = ("--native",)

    def record(self, seconds: float, path: Path) -> Counter[flame.Stack]:
        done = self._run(seconds, path)
        if done.returncode and self._flags:
            say(f"without native frames: {done.stderr.strip().splitlines()[-1:]}")
            self._flags = ()
            done = self._run(seconds, path)
        if done.returncode:
            raise RuntimeError(f"py-spy failed: {done.stderr[-1000:]}")
        stacks = flame.read_stacks(path.read_text().splitlines())
        path.unlink()
        return stacks

    def _run(self, seconds: float, path: Path) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).with_name("py-spy"))
        words = ["record", "--pid", str(self._pid), "--duration", str(round(seconds)), "--function"]
        words += ["--format", "raw", "--rate", str(SAMPLES_PER_SECOND), "--output", str(path), *self._flags]
        return subprocess.run([program, *words], capture_output=True, text=True)


class Background:
    """A load that is kept up until the block ends."""

    def __init__(self, load: RawLoad, broker: Broker) -> None:
        self._load = load
        self._broker = broker
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.requests = 0
        self.error: Exception | None = None

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.requests += self._load.sustain(self._broker, SLACK_S)["requests"]
        except RuntimeError as error:  # Told by the thread that waits for this one.
            self.error = error

    def __enter__(self) -> "Background":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error


def look(load: RawLoad, broker: Broker, seconds: float, graph: Path, name: str) -> None:
    with broker.topics([TOPIC], load.partitions):
        load.fill(broker)
        load.sustain(broker, SLACK_S)
        before, system_before = cpu_seconds(broker.pid), system_seconds(broker.pid)
        alone = load.sustain(broker, SLACK_S)
        cpu, system = cpu_seconds(broker.pid) - before, system_seconds(broker.pid) - system_before
        with Background(load, broker):
            stacks = Spy(broker.pid).record(seconds, graph.with_suffix(".stacks"))
    cost = (
        f"{cpu / alone['requests'] * 1e6:.1f} us of CPU per request, {system / cpu:.0%} of it in the kernel"
    )
    graph.write_text(flame.draw(stacks, f"anabranch under {name}: {cost} (unwatched)"))
    tell(stacks, name)
    say(f"Unwatched: {cost}.\nThe flame graph is {graph}.")


def tell(stacks: Counter[flame.Stack], name: str) -> None:
    own, whole = flame.own_counts(stacks), flame.whole_counts(stacks)
    total = own.total()
    say(f"{name}: functions on top of the stack, of {total} samples")
    for function, count in own.most_common(SHOWN_MAX):
        say(f"  {count / total:6.1%}  {function}")
    say("our functions with all they call")
    ours = Counter({function: count for function, count in whole.items() if "(anabranch/" in function})
    for function, count in ours.most_common(SHOWN_MAX):
        say(f"  {count / total:6.1%}  {function}")


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.profile")
    parser.add_argument("row")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--flush", default="os")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--folder", type=Path, default=cache_folder() / "bench" / "profile")
    options = parser.parse_args(words)
    loads = raw_loads()
    if options.row not in loads:
        say(f"there is no raw load {options.row}; raw loads: {', '.join(loads)}")
        return 2
    options.results.mkdir(parents=True, exist_ok=True)
    graph = options.results / f"profile-{options.row}.svg"
    with Field(options.folder, lambda _: None).fresh(OURS, options.flush) as broker:
        broker.start()
        look(loads[options.row], broker, options.seconds, graph, options.row)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
