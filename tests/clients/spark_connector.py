"""Spark's own Kafka connector, with the Spark it belongs to, in an environment of its own.

Maven has the newest connector only in part: 4.0.0 is the last release of which all jars are there. Its Spark comes
from pip in the same version; the Kafka client and the pool are those that Spark release names.
"""

from pathlib import Path
from typing import NamedTuple

from clients.registries import jars_alone, python_environment

SPARK_VERSION = "4.0.0"
ARTIFACTS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}",
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{SPARK_VERSION}",
    "org.apache.kafka:kafka-clients:3.9.0",
    "org.apache.commons:commons-pool2:2.12.0",
)


class Connector(NamedTuple):
    python: Path
    jars: list[Path]


def spark_connector() -> Connector:
    """Raises Unavailable where Maven or pip cannot bring it."""
    jars = jars_alone(f"spark-kafka-{SPARK_VERSION}", ARTIFACTS)
    return Connector(python_environment(f"spark-{SPARK_VERSION}", [f"pyspark=={SPARK_VERSION}"]), jars)
