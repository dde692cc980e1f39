"""Run by the Python of the connector's environment: the same queries through both sources, in turns.

One argument, a JSON file: jars, bootstrap, node_pid, topics (name, records, bytes), rounds, warm_rounds, results. All
sides run in one session, so on one Spark, one JVM and one heap; the order of a round is the reverse of the one before.
Each run says its wall time, the CPU time of Spark with its Python workers, and that of the node. What an aggregate
finds must be what was written, or the run ends.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from anabranch.pipeline.source.reading import read_ranges
from anabranch.pipeline.source.source import AnabranchSource, BatchReader, RangePartition, checked
from anabranch.pipeline.spark.workers import settle
from bench.measure import cpu_seconds, tree_cpu_seconds

SIDES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "connector": ("kafka", {}),
    "files": ("anabranch_bench", {"direct": "auto"}),
    "protocol": ("anabranch_bench", {"direct": "never"}),
}


class OlderSparkReader(BatchReader):
    """Reads as ours does; Arrow's schema is made by hand, for this Spark's helper takes other arguments."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from pyspark.sql.pandas.types import to_arrow_schema

        settle()
        if not isinstance(partition, RangePartition):
            return iter(())  # What Spark makes up where there is nothing to read.
        return read_ranges(self.options, partition.ranges, to_arrow_schema(self.schema))


class OlderSparkSource(AnabranchSource):
    """Our source in the Spark of the connector, which has no filters for Python sources yet."""

    @classmethod
    def name(cls) -> str:
        return "anabranch_bench"

    def reader(self, schema: StructType) -> OlderSparkReader:
        return OlderSparkReader(checked(self.options, schema), schema)


def aggregate(rows: DataFrame) -> tuple[int, int]:
    """Touches every column that both sides have; how many rows, and the bytes in keys and values."""
    found = rows.agg(
        F.count(F.lit(1)),
        F.sum(F.length("key") + F.length("value")),
        F.max("topic"),
        F.max("partition"),
        F.max("offset"),
        F.max("timestamp"),
        F.max("timestampType"),
    ).collect()[0]
    return int(found[0]), int(found[1] or 0)


def noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


LOADS: Mapping[str, Callable[[DataFrame], tuple[int, int] | None]] = {"aggregate": aggregate, "noop": noop}


class Bench:
    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.spark = session(job["jars"])
        self.spark.dataSource.register(OlderSparkSource)
        self.rounds: list[dict[str, Any]] = []

    def run(self) -> None:
        for topic in self.job["topics"]:
            for load in LOADS if topic["records"] else ["aggregate"]:
                for number in range(-self.job["warm_rounds"], self.job["rounds"]):
                    sides = list(SIDES) if number % 2 else list(SIDES)[::-1]
                    for side in sides:
                        self.measure(topic, load, side, number)
        self.spark.stop()

    def measure(self, topic: dict[str, Any], load: str, side: str, number: int) -> None:
        name, options = SIDES[side]
        options = {"kafka.bootstrap.servers": self.job["bootstrap"], "subscribe": topic["name"], **options}
        node, ours = self.job["node_pid"], os.getpid()
        node_before, spark_before, started = cpu_seconds(node), tree_cpu_seconds(ours), time.monotonic()
        found = LOADS[load](self.spark.read.format(name).options(**options).load())
        figures = {
            "seconds": time.monotonic() - started,
            "spark_cpu_seconds": tree_cpu_seconds(ours) - spark_before,
            "node_cpu_seconds": cpu_seconds(node) - node_before,
        }
        if found is not None and found != (topic["records"], topic["bytes"]):
            raise RuntimeError(f"{side} found {found} in {topic}")
        told = {"topic": topic["name"], "load": load, "side": side, "round": number, **figures}
        sys.stderr.write(f"{json.dumps(told)}\n")
        if number >= 0:
            self.rounds.append(told)
            Path(self.job["results"]).write_text(json.dumps(self.rounds))


def session(jars: list[str]) -> SparkSession:
    settings = {
        "spark.jars": ",".join(jars),
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[2]").appName("bench-pipeline")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    Bench(json.loads(Path(sys.argv[1]).read_text())).run()
