"""The compaction job against the same work in two plain processes, and the broker's check against its own cleaning.

Both sides run `offer_compacted` over the same two partitions, warm and in turns: as tasks in a Spark session of this
process, and in a pool of two processes that have done it before. The offers are thrown away after each round. What
the broker does with one is measured in this process, on a copy of a partition: CPU time of checking and taking in,
against that of cleaning the same log.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from anabranch.log.cleaner import CleanPlan, map_keys, plan, rewrite
from anabranch.log.disk.real_files import RealFiles
from anabranch.log.external_compaction import matched, read_offer, take
from anabranch.log.log import Log
from anabranch.log.settings import LogConfig
from anabranch.pipeline.jobs.compact import plan_tasks
from anabranch.pipeline.jobs.compact_partition import CompactTask, offer_compacted
from anabranch.pipeline.spark.session import spark_session
from anabranch.record.compaction.offer_format import FOLDER
from anabranch.values import Offset
from bench.brokers import Broker
from bench.pipeline.topics import send

PARTITIONS = 2
RECORD_BYTES = 100
KEYS = 50_000
SEGMENT_BYTES = 16 * 2**20
KEYS_MAX = 500_000


def fill(node: Broker, name: str, megabytes: int) -> int:
    """A compacted topic in which every key comes again and again; the number of records."""
    records = megabytes * 2**20 // RECORD_BYTES
    with node.client() as client:
        client.create_topic(
            name,
            PARTITIONS,
            cleanup_policy="compact",
            segment_bytes=str(SEGMENT_BYTES),
            min_compaction_lag_ms="0",
        )
    rows = (
        (b"%010d" % (number * 7919 % KEYS), b"%d " % number * 12, number % PARTITIONS)
        for number in range(records)
    )
    send(node, name, rows)
    return records


def measure(node: Broker, topic: str, rounds: int, warm_rounds: int) -> list[dict[str, Any]]:
    tasks = plan_tasks(node.bootstrap, topic)
    spark = spark_session(master="local[2]", app="bench-compaction", config={"spark.driver.memory": "1g"})
    context = spark.sparkContext
    told = []
    with ProcessPoolExecutor(len(tasks), get_context("spawn")) as pool:
        sides: dict[str, Callable[[], Sequence[Any]]] = {
            "spark": lambda: context.parallelize(tasks, len(tasks)).map(offer_compacted).collect(),
            "processes": lambda: list(pool.map(offer_compacted, tasks)),
        }
        for number in range(-warm_rounds, rounds):
            for side in list(sides) if number % 2 else list(sides)[::-1]:
                started = time.monotonic()
                done = sides[side]()
                seconds = time.monotonic() - started
                if not all(each.offer_id for each in done):
                    raise RuntimeError(f"nothing was offered: {done}")
                discard(tasks)
                if number >= 0:
                    told.append({"load": "compaction", "side": side, "round": number, "seconds": seconds})
    spark.stop()
    return told


def discard(tasks: Sequence[CompactTask]) -> None:
    for task in tasks:
        shutil.rmtree(Path(task.folder) / FOLDER)


# --- what the broker spends ------------------------------------------------------------------------------------


def measure_check(task: CompactTask, folder: Path, rounds: int) -> list[dict[str, Any]]:
    """On a copy of one partition, whose node must not run."""
    copy = folder / "copy-0"
    shutil.copytree(task.folder, copy)
    own = CompactTask(**{**vars(task), "folder": str(copy)})
    offer_compacted(own)
    files = RealFiles()
    config = LogConfig(segment_bytes=task.segment_bytes, compacted=True)
    log = Log.open(files, str(copy), config, clean=True)
    now_ms = int(time.time() * 1000)
    due = plan(log, Offset(0), now_ms)
    assert due is not None
    told = []
    for number in range(rounds):
        for side, work in (("cleaning", _clean), ("checking", _check)):
            started = time.process_time()
            work(files, log, due)
            seconds = time.process_time() - started
            told.append({"load": "take in", "side": side, "round": number, "seconds": seconds})
    log.close()
    shutil.rmtree(copy)
    return told


def _clean(files: RealFiles, log: Log, due: CleanPlan) -> None:
    mapped = map_keys(due, KEYS_MAX, {})
    for group in mapped.groups:
        log.prepare_rewrite()
        rewrite(files, mapped, group)
    log.prepare_rewrite()


def _check(files: RealFiles, log: Log, due: CleanPlan) -> None:
    offer = read_offer(files, log.folder)
    assert offer is not None
    mapped = matched(offer, due, KEYS_MAX, {})
    for group in mapped.groups:
        log.prepare_rewrite()
        take(files, mapped, group)
    log.prepare_rewrite()
