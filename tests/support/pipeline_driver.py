"""One pipeline as a process of its own, which can be told to die at a step of a batch: the driver of the kill tests.

    python -m support.pipeline_driver '{"settings": {...}, "kill": {"step": "written", "batch": 1}}'

It dies with everything it started: it leads a process group, and the JVM is in it. Workers of Spark end when the JVM's
pipe to them closes. At the end, if it comes to that, it prints its counts as JSON.
"""

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from anabranch.pipeline.jobs.run import run_pipeline
from anabranch.pipeline.lake.settings import PipelineSettings
from anabranch.pipeline.spark.session import spark_session

LOOK_S = 0.001


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    chosen = given["settings"]
    for name in ("key", "partition_by"):
        chosen[name] = tuple(chosen.get(name, ()))
    config = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    spark = spark_session(master="local[2]", app="driver", config=config)
    settings = PipelineSettings(**chosen)
    counts = run_pipeline(spark, settings, on_step=_Killer(settings, given.get("kill")))
    sys.stdout.write(json.dumps(asdict(counts)) + "\n")
    sys.stdout.flush()
    spark.stop()


class _Killer:
    """Counts the batches that were begun, and kills the process group at the step it was told."""

    def __init__(self, settings: PipelineSettings, told: dict[str, Any] | None) -> None:
        self._told = told
        self._begun = -1
        self._warehouse = Path(settings.warehouse)

    def __call__(self, step: str) -> None:
        self._begun += step == "writing"
        if self._told is None or (step, self._begun) != (self._told["step"], self._told["batch"]):
            return
        if step == "writing":
            before = self._files()
            threading.Thread(target=self._kill_once_files_appear, args=(before,), daemon=True).start()
        else:
            _die()

    def _files(self) -> set[Path]:
        return set(self._warehouse.rglob("*.parquet"))

    def _kill_once_files_appear(self, before: set[Path]) -> None:
        while self._files() <= before:
            time.sleep(LOOK_S)
        _die()


def _die() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
