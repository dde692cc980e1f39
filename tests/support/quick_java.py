"""Spark's JVMs for tests: they live for seconds, so they had better begin at once.

Three quarters of what a small job costs go into loading Spark's classes and into compiling them as if for hours. Here
the classes come from an archive that is made once and that every later JVM maps, the quick compiler alone is at work,
and one thread collects what is thrown away. Spark's start script takes such flags from the environment, so whatever
processes a test starts inherit them. A JVM that the archive was not made for (another Java, another Spark) does
without.
"""

import os
import subprocess
import sys
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

from anabranch.pipeline.spark.java import find_java
from clients.registries import cache_folder, filled_once

FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""Else a JVM that cannot use the archive says so on its stdout."""
SECONDS_MAX = 300
ARCHIVE = "classes.jsa"


def quick_java() -> dict[str, str]:
    """What to add to the environment. Makes the archive if it is not there yet."""
    folder = cache_folder() / "spark-classes" / _identity()
    archive = folder / ARCHIVE
    with filled_once(folder) as missing:
        if missing:
            _make(archive)
    return _environment(f"-XX:SharedArchiveFile={archive}")


def _identity() -> str:
    """Of the Java and the Spark that an archive is for."""
    import pyspark

    home = find_java().home
    java = (home / "bin" / "java").resolve()
    parts = (java, java.stat().st_mtime_ns, pyspark.__file__, pyspark.__version__, FLAGS)
    return f"{zlib.crc32(repr(parts).encode()):08x}"


def _environment(archive_flag: str) -> dict[str, str]:
    return {
        "SPARK_SUBMIT_OPTS": f"{FLAGS} {QUIET} {archive_flag}",
        "SPARK_LAUNCHER_OPTS": f"{FLAGS} {QUIET}",
    }


def _make(archive: Path) -> None:
    environment = {
        **os.environ,
        **_environment(f"-XX:ArchiveClassesAtExit={archive}"),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run(
        [sys.executable, "-m", "support.quick_java"],
        env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"Spark did not run as it does in the tests: {done.stderr[-3000:]}")


def load_classes() -> None:
    """A little of what the tests do, in a JVM that writes down its classes when it ends."""
    from anabranch.pipeline.spark.session import spark_session

    spark = spark_session(master="local[1]", app="classes")
    jvm = spark.sparkContext._gateway.proc
    with TemporaryDirectory() as folder:
        rows = spark.range(10).selectExpr("id % 3 AS key", "to_json(named_struct('id', id)) AS value")
        rows.groupBy("key").count().collect()
        rows.write.parquet(f"{folder}/rows")
        stream = spark.readStream.schema(rows.schema).parquet(f"{folder}/rows")
        query = (
            stream.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .foreachBatch(lambda batch, _: batch.mapInArrow(lambda parts: parts, batch.schema).collect())
            .start()
        )
        query.awaitTermination()
    spark.stop()
    jvm.stdin.close()
    jvm.wait()


if __name__ == "__main__":
    load_classes()
