"""How far a Spark job is: counted in finished tasks, asked of Spark a few times a second.

The answer goes to a function of the caller's, from a thread of our own. Stages appear as Spark comes to them, so the
total may grow; a stage that is skipped because its result is there already counts for nothing.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

SECONDS_BETWEEN = 0.25

OnTasks = Callable[[int, int], None]
"""Told how many tasks are done, and of how many."""


@contextmanager
def watched(spark: "SparkSession", name: str, on_tasks: OnTasks | None) -> Iterator[None]:
    """While the block runs, its jobs belong to the group `name` and `on_tasks` hears of them."""
    context = spark.sparkContext
    context.setJobGroup(name, name, interruptOnCancel=False)
    if on_tasks is None:
        yield
        return
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(context, name, on_tasks, over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(context: "SparkContext", name: str, on_tasks: OnTasks, over: threading.Event) -> None:
    while not over.wait(SECONDS_BETWEEN):
        done, total = counted(context, name)
        if total:
            on_tasks(done, total)


def counted(context: "SparkContext", name: str) -> tuple[int, int]:
    """Tasks done and tasks in all, over the jobs of this group."""
    tracker = context.statusTracker()
    done = total = 0
    for job_id in tracker.getJobIdsForGroup(name):
        job = tracker.getJobInfo(job_id)
        for stage_id in job.stageIds if job is not None else ():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                done += stage.numCompletedTasks
                total += stage.numTasks
    return done, total
