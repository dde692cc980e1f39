"""`python -m bench.pipeline`: measure reading, decoding and compaction, and tell. `make bench-pipeline` calls it.

    --rounds 5         of each side                 --megabytes 1024    in each topic that is read
    --warm-rounds 2    of each, not counted         --compact-megabytes 96
    --folder DIR       where the node keeps its data
    --document FILE    put the table into it        --results DIR       where the results go
    --report           tell again what is already measured

Exit codes: 0 measured (whatever the figures), 1 something could not be run, 2 the command line is wrong.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from anabranch.pipeline.jobs.compact import plan_tasks
from anabranch.pipeline.spark.java import find_java
from anabranch.record.compression import Codec
from bench import decoder
from bench.brokers import Ours
from bench.machine import busy_warning, describe_machine, describe_node, source_commit
from bench.pipeline import compaction, report
from bench.pipeline.topics import Filled, fill
from clients.registries import Unavailable, cache_folder, python_libraries
from clients.spark_connector import SPARK_VERSION, spark_connector

TREE = Path(__file__).parent.parent.parent
RESULTS = TREE / "bench" / "results"
SIZES = {"100b": 100, "1kb": 1000}
QUERIES_SECONDS_MAX = 3600.0
LIBRARIES = (
    "pyarrow>=18",
    "pandas>=2.2,<3",
    "crc32c>=2.7",
    "lz4>=4.3",
    "cramjam>=2.9",
    "backports.zstd>=1.0",
)


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.pipeline", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-rounds", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--compact-megabytes", type=int, default=96)
    parser.add_argument("--folder", type=Path, default=cache_folder() / "bench" / "pipeline")
    parser.add_argument("--document", type=Path)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true")
    return parser.parse_args(words)


class Node(Ours):
    """A node that leaves compaction to the jobs, and does not look for their offers."""

    def command(self) -> Sequence[str]:
        settings = ("log.cleaner.enable=false", "log.cleaner.backoff.ms=86400000")
        return [*super().command(), *(word for setting in settings for word in ("--set", setting))]


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def about(options: argparse.Namespace) -> list[str]:
    java = find_java()
    lines = [
        f"{describe_node()}, commit {source_commit(TREE)}",
        f"Spark {SPARK_VERSION} for both sources, local[2], 2 GB, Java {java.version}; {describe_machine()}",
        f"{options.megabytes} MB of keys and values in each topic, 4 partitions, batches of 16 KB, no compression, "
        "segments of 16 MB",
    ]
    return [*lines, *([busy_warning()] if busy_warning() else [])]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    head = about(options)
    shutil.rmtree(options.folder, ignore_errors=True)
    node = Node(options.folder / "node")
    measured: list[dict[str, Any]] = decoder_rounds(options)
    try:
        node.start()
        say("filling the topics")
        topics = [fill(node, name, size, options.megabytes) for name, size in SIZES.items()]
        topics.append(fill(node, "nothing", SIZES["100b"], 0))
        compaction.fill(node, "compacted", options.compact_megabytes)
        measured += queries(options, node, topics)
        say("compaction")
        measured += compaction.measure(node, "compacted", options.rounds, options.warm_rounds)
        task = plan_tasks(node.bootstrap, "compacted")[0]
        node.stop()
        measured += compaction.measure_check(task, options.folder, options.rounds)
    finally:
        node.remove()
        shutil.rmtree(options.folder, ignore_errors=True)
    topics_told = [topic._asdict() for topic in topics]
    return {"about": head, "topics": topics_told, "rounds": measured}


def decoder_rounds(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Records per CPU-second of both forms, at 100 B and without compression."""
    say("decoder")
    wanted = decoder.parse([])
    log, count = decoder.log_of(wanted, SIZES["100b"], Codec.NONE)
    told = []
    for number in range(options.rounds):
        for form in wanted.forms:
            decode = partial(decoder.decoded, decoder.FORMS[form], log, wanted.fields, True)
            seconds = decoder.cpu_seconds_of(decode, count)
            told.append({"load": "decoder", "side": form, "round": number, "records_per_s": count / seconds})
    return told


def queries(options: argparse.Namespace, node: Ours, topics: list[Filled]) -> list[dict[str, Any]]:
    """Both sources in the environment of Spark's connector."""
    connector = spark_connector()
    libraries = python_libraries(f"spark-{SPARK_VERSION}-reader", connector.python, LIBRARIES)
    job, results = options.folder / "job.json", options.folder / "rounds.json"
    wanted = {
        "jars": [str(jar) for jar in connector.jars],
        "bootstrap": node.bootstrap,
        "node_pid": node.pid,
        "topics": [topic._asdict() for topic in topics],
        "rounds": options.rounds,
        "warm_rounds": options.warm_rounds,
        "results": str(results),
    }
    job.write_text(json.dumps(wanted))
    paths = os.pathsep.join(str(path) for path in (TREE / "src", TREE, libraries))
    python = str(connector.python)
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "PYTHONPATH": paths,
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
    }
    command = [python, "-m", "bench.pipeline.queries", str(job)]
    subprocess.run(command, env=environment, check=True, timeout=QUERIES_SECONDS_MAX)
    told: list[dict[str, Any]] = json.loads(results.read_text())
    return told


def main(words: Sequence[str]) -> int:
    options = parse(words)
    path = options.results / "pipeline.json"
    try:
        whole = json.loads(path.read_text()) if options.report else measure(options)
    except Unavailable as reason:
        say(f"The comparison cannot be run: {reason}")
        return 1
    lines = report.lines(whole)
    table = report.as_text(whole["about"], lines)
    sys.stdout.write(table)
    options.results.mkdir(parents=True, exist_ok=True)
    whole["figures"] = [asdict(line) for line in lines]
    path.write_text(json.dumps(whole, indent=1) + "\n")
    (options.results / "pipeline.txt").write_text(table)
    if options.document:
        report.put_into(options.document, whole["about"], lines)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
