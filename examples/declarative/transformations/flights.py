"""The topic `flights` as a streaming table: every run appends what is new in the topic.

What does not parse becomes a row with nothing but its place in the topic, rather than stopping the pipeline:
`anabranch pipeline run` would send it to a dead letter topic instead.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

FLIGHT = """
    carrier string, flight int, tailnum string, origin string, dest string,
    hour int, dep_delay int, arr_delay int, distance int
"""


@dp.table(comment="One row per flight, with where it stands in the topic.", format="parquet")
def flights() -> DataFrame:
    spark = SparkSession.active()  # The one spark-pipelines made.
    bootstrap = spark.conf.get("spark.anabranch.bootstrap")
    records = (
        spark.readStream.format("anabranch")
        .option("bootstrap", bootstrap)
        .option("topic", "flights")
        .option("startingOffsets", "earliest")  # Where the first run begins; the next ones go on.
        .load()
    )
    flight = F.from_json(F.col("value").cast("string"), FLIGHT).alias("flight")
    return records.select("partition", "offset", F.col("timestamp").alias("scheduled"), flight).select(
        "partition", "offset", "scheduled", "flight.*"
    )
