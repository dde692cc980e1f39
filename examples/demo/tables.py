"""The Spark half of the demo: each topic into an Iceberg table, and the three joined into one more.

    python -m examples.demo.tables BOOTSTRAP FOLDER PARENT

A process of its own, so that its JVM is gone when the work is done. Every table is a pipeline with a checkpoint and
goes on where it stopped; `planes` is an upsert, one row per plane. The joined table is small and is made anew each
time, in one commit. Progress goes to stdout, one JSON line per batch and per table.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from anabranch.errors import AnabranchError
from anabranch.local_cluster.exit_with_parent import exit_with_parent
from examples.demo.warehouse import JOINED, NAMESPACE, replace_table, warehouse_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.pipeline.jobs.run import Counts, PipelineSettings

RECORDS_PER_BATCH = 100_000
SPARK = {"spark.sql.shuffle.partitions": "4", "spark.driver.memory": "1g"}


def main(bootstrap: str, folder: Path) -> None:
    from anabranch.pipeline.spark.session import spark_session

    spark = spark_session(app="anabranch demo", config=SPARK)
    try:
        say(spark=spark.version, master=spark.sparkContext.master)
        for topic in ("flights", "weather", "planes"):
            fill(spark, settings_of(topic, bootstrap, folder))
        join(spark, bootstrap, folder)
    finally:
        spark.stop()


def settings_of(topic: str, bootstrap: str, folder: Path) -> "PipelineSettings":
    from anabranch.pipeline.jobs.run import PipelineSettings

    return PipelineSettings(
        bootstrap=bootstrap,
        topic=topic,
        to="iceberg",
        warehouse=str(warehouse_of(folder)),
        table=f"{NAMESPACE}.{topic}",
        mode="upsert" if topic == "planes" else "append",
        checkpoint=str(folder / "checkpoints" / topic),
        group=f"demo-{topic}",
        max_offsets_per_trigger=RECORDS_PER_BATCH,
        once=True,
    )


def fill(spark: "SparkSession", settings: "PipelineSettings") -> None:
    from anabranch.pipeline.jobs.run import run_pipeline

    def on_batch(_number: int, batch: "Counts") -> None:
        say(batch_of=settings.topic, read=batch.read)

    counts = run_pipeline(spark, settings, on_batch=on_batch)
    say(
        table=settings.table, read=counts.read, written=counts.written, dlq=counts.dlq, batches=counts.batches
    )


def join(spark: "SparkSession", bootstrap: str, folder: Path) -> None:
    from examples.demo.joined import delays_by_hour

    rows = delays_by_hour(spark, bootstrap).toArrow()
    replace_table(folder, JOINED, rows)
    say(table=f"{NAMESPACE}.{JOINED}", rows=rows.num_rows)


def say(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        exit_with_parent(int(sys.argv[3]))
        main(sys.argv[1], Path(sys.argv[2]))
    except AnabranchError as error:
        say(error=str(error))
        sys.exit(1)
