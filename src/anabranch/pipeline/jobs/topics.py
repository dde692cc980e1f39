"""Topics as the jobs see them: an address to write to or read from through the data source, and counting on the way."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "anabranch"


@dataclass(frozen=True)
class TopicAddress:
    bootstrap: str
    topic: str
    options: dict[str, str] = field(default_factory=dict)
    """Further options of the data source."""

    def all_options(self) -> dict[str, str]:
        return {"bootstrap": self.bootstrap, "topic": self.topic, **self.options}


def read_range(spark: "SparkSession", address: TopicAddress, starting: str, ending: str) -> "DataFrame":
    """The records between two sets of offsets, each as JSON like {"topic": {"0": 17}}, headers included."""
    return (
        spark.read.format(FORMAT)
        .options(**address.all_options())
        .option("includeHeaders", "true")
        .option("startingOffsets", starting)
        .option("endingOffsets", ending)
        .load()
    )


def write_records(records: "DataFrame", to: TopicAddress) -> int:
    """Writes them all, at least once, and says how many there were."""
    from pyspark.sql import Observation, functions

    counted = Observation()
    observed = records.observe(counted, functions.count(functions.lit(1)).alias("records"))
    observed.write.format(FORMAT).options(**to.all_options()).mode("append").save()
    return int(counted.get["records"])
