"""The Spark session that jobs and tests run in: embedded unless a master is named.

Workers run the Python that runs us, times are UTC, rows travel as Arrow, and the web page of Spark stays off unless
it is asked for. Whatever the caller's `config` says wins.
"""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from anabranch.errors import ExtraMissingError
from anabranch.pipeline.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.log.level": "ERROR",
}
EMBEDDED_MASTER = "local[*]"


def spark_session(
    *, master: str | None = None, app: str = "anabranch", config: Mapping[str, str] | None = None
) -> "SparkSession":
    """A session, new or the one that is already there. The extra and a Java must be installed."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ExtraMissingError(
            "The pipeline runs on Spark, which is not installed: pip install 'anabranch[spark]'."
        ) from error
    prepare_environment()
    builder = SparkSession.builder.appName(app).master(master or os.environ.get("MASTER") or EMBEDDED_MASTER)
    for name, value in {**CONFIG, **(config or {})}.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session


def prepare_environment() -> None:
    """Let Spark find its Java, and workers our Python."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["PATH"] = f"{java.home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
