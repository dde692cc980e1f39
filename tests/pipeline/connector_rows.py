"""Run by the environment of Spark's Kafka connector: reads topics through it and writes the rows as Parquet.

One argument, a JSON file: {"jars": [paths], "reads": [{"options": {...}, "folder": path}]}.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    settings = {
        "spark.jars": ",".join(job["jars"]),
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[2]").appName("connector")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for read in job["reads"]:
        rows = spark.read.format("kafka").options(**read["options"]).load()
        rows.write.mode("overwrite").parquet(read["folder"])
    spark.stop()


if __name__ == "__main__":
    main()
