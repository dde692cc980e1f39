"""kill -9 at random moments of a running pipeline, again and again; then every record must be in the table, once.

    python tools/chaos_pipeline.py [--kills 10] [--to iceberg --to delta] [--seed 1]

A node runs, records are sent all the time, and a pipeline (a process group: Python and JVM) is killed at a moment drawn
between its first sign of life and a few batches later, as often as asked. The last run is left to finish. Then the
table is compared with the log by count and by a checksum over partition, offset, key and value; orphans are counted,
swept, and the table is compared again. Exits with 1 if anything differs.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import confluent_kafka

from anabranch.pipeline.lake.formats.storage import listed
from anabranch.pipeline.lake.formats.table import open_table
from anabranch.pipeline.lake.maintain import sweep_orphans
from anabranch.pipeline.lake.settings import PipelineSettings
from support.lake_tables import read_rows
from support.node_process import NodeProcess
from support.topics import make_topic

PARTITIONS = 3
PER_BATCH = 2000
RECORDS_PER_SECOND = 400
SIGN_S_MAX = 300
BATCHES_MAX = 3
"""A kill comes at most about so many batches after the first sign of life."""

Place = tuple[int, int, bytes, bytes]


class Sender:
    """Sends records until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 20}
        )
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self.count = 0
        self._thread.start()

    def _send(self) -> None:
        while not self._stop.is_set():
            for _ in range(RECORDS_PER_SECOND // 10):
                value = os.urandom(60) + b"%d" % self.count
                self._producer.produce(
                    self._topic, value, b"%d" % (self.count % 997), self.count % PARTITIONS
                )
                self.count += 1
            self._producer.poll(0)
            time.sleep(0.1)

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0, "the node does not take the last records"


class Driver:
    """One pipeline as a process group of its own."""

    def __init__(self, given: dict[str, Any], log: Path) -> None:
        self._log = log.open("a")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.pipeline_driver", json.dumps({"settings": given})],
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def kill(self) -> None:
        assert self._process.poll() is None, "the pipeline stopped by itself: see its log"
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def wait(self) -> int:
        code = self._process.wait()
        self._log.close()
        return code


def state_batch(settings: PipelineSettings) -> int:
    from anabranch.errors import TableError

    try:
        state = open_table(settings).state()
    except TableError:
        return -1
    return -1 if state is None else state.batch


def wait_for_life(settings: PipelineSettings, files_before: int) -> None:
    """Until this run has begun to write something."""
    deadline = time.monotonic() + SIGN_S_MAX
    while count_files(settings) <= files_before:
        assert time.monotonic() < deadline, f"no file was written within {SIGN_S_MAX} s"
        time.sleep(0.05)


def count_files(settings: PipelineSettings) -> int:
    return sum(1 for _ in Path(settings.warehouse).rglob("*.parquet"))


def kill_often(given: dict[str, Any], kills: int, rng: random.Random, log: Path) -> list[dict[str, Any]]:
    settings = PipelineSettings(**given)
    batch_seconds = 3.0
    story = []
    for number in range(kills):
        before, files = state_batch(settings), count_files(settings)
        driver = Driver(given, log)
        wait_for_life(settings, files)
        alive = time.monotonic()
        delay = rng.uniform(0, BATCHES_MAX * batch_seconds)
        time.sleep(delay)
        driver.kill()
        batches = state_batch(settings) - before
        if batches > 0:
            batch_seconds = (time.monotonic() - alive) / batches
        story.append({"kill": number + 1, "after_s": round(delay, 2), "batches": batches})
        say(f"  kill {number + 1} of {kills}, {delay:.1f} s after its first file: {batches} batches further")
    return story


def log_rows(bootstrap: str, topic: str) -> list[Place]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "chaos-check"})
    places = [confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)]
    total = sum(consumer.get_watermark_offsets(place)[1] for place in places)
    consumer.assign(places)
    rows: list[Place] = []
    while len(rows) < total:
        for message in consumer.consume(10_000, 10):
            assert message.error() is None, message.error()
            rows.append((message.partition(), message.offset(), message.key(), message.value()))
    consumer.close()
    return rows


def table_rows(settings: PipelineSettings) -> list[Place]:
    rows = read_rows(settings)
    columns = [rows[name].to_pylist() for name in ("_partition", "_offset", "key", "value")]
    return list(zip(*columns, strict=True))


def checksum(rows: list[Place]) -> str:
    return hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()


def compare(node: NodeProcess, settings: PipelineSettings) -> dict[str, Any]:
    log, table = log_rows(node.bootstrap, settings.topic), table_rows(settings)
    places = {row[:2] for row in table}
    return {
        "log": len(log),
        "rows": len(table),
        "duplicates": len(table) - len(places),
        "same_checksum": checksum(log) == checksum(table),
    }


def orphans(settings: PipelineSettings) -> int:
    table = open_table(settings)
    live = {file.path for file in table.files()}
    files = [found.path for found in listed(table.data_folder) if found.path.endswith(".parquet")]
    return sum(path not in live for path in files)


def run(to: str, kills: int, seed: int, folder: Path) -> dict[str, Any]:
    rng = random.Random(seed)
    node = NodeProcess(folder)
    node.start()
    topic = f"chaos-{to}"
    make_topic(node.bootstrap, topic, PARTITIONS)
    given = {
        "bootstrap": node.bootstrap,
        "topic": topic,
        "warehouse": str(folder / "warehouse"),
        "table": "kept",
        "to": to,
        "schema": "raw",
        "max_offsets_per_trigger": PER_BATCH,
        "trigger_seconds": 0,
    }
    sender = Sender(node.bootstrap, topic)
    try:
        story = kill_often(given, kills, rng, folder / "driver.log")
    finally:
        sender.finish()
    last = {**given, "once": True, "max_offsets_per_trigger": 20 * PER_BATCH}
    finished = Driver(last, folder / "driver.log").wait()
    settings = PipelineSettings(**given)
    before, left = compare(node, settings), orphans(settings)
    swept = len(sweep_orphans(settings, older_than_seconds=0))
    after = compare(node, settings)
    remaining = orphans(settings)
    node.stop()
    good = (
        finished == 0
        and remaining == 0
        and all(
            found["same_checksum"] and not found["duplicates"] and found["log"] == found["rows"]
            for found in (before, after)
        )
    )
    return {
        "to": to,
        "seed": seed,
        "good": good,
        "kills": story,
        "batches": state_batch(settings) + 1,
        "before_sweep": before,
        "orphans": left,
        "files_swept": swept,
        "after_sweep": after,
        "orphans_left": remaining,
    }


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--to", action="append", choices=["iceberg", "delta", "parquet"])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args()
    results = []
    for to in chosen.to or ["iceberg", "delta"]:
        say(f"{to}, seed {chosen.seed}:")
        folder = Path(tempfile.mkdtemp(prefix=f"chaos-{to}-"))
        results.append(run(to, chosen.kills, chosen.seed, folder))
        say(json.dumps(results[-1]))
        if results[-1]["good"]:
            shutil.rmtree(folder)
        else:
            say(f"  everything is kept in {folder}")
    sys.exit(0 if all(result["good"] for result in results) else 1)


if __name__ == "__main__":
    main()
