"""Flights, weather and planes joined, with Spark, straight from their topics.

One row per airport, month, hour and kind of weather. Left joins: a flight whose weather or plane is not known is
counted all the same, so the sums over this table equal those over the flights. Of the planes, a compacted topic, the
last record of each key counts, whether the cleaner has been there or not.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FLIGHT = "month int, hour int, origin string, tailnum string, time_hour string, dep_delay long, year int"
WEATHER = "origin string, time_hour string, precip double, visib double, wind_speed double"
PLANE = "tailnum string, year int, seats int"
LATE_MINUTES = 15
POOR_VISIBILITY_MILES = 5


def delays_by_hour(spark: "SparkSession", bootstrap: str) -> "DataFrame":
    from pyspark.sql import functions as F

    flights = _rows(_topic(spark, bootstrap, "flights"), FLIGHT)
    weather = _rows(_topic(spark, bootstrap, "weather"), WEATHER)
    planes = _planes(spark, bootstrap)
    joined = (
        flights.join(F.broadcast(weather), ["origin", "time_hour"], "left")
        .join(F.broadcast(planes), "tailnum", "left")
        .withColumn("sky", _sky())
    )
    return (
        joined.groupBy("origin", "month", "hour", "sky")
        .agg(*_measures())
        .orderBy("origin", "month", "hour", "sky")
    )


def _topic(spark: "SparkSession", bootstrap: str, topic: str) -> "DataFrame":
    return spark.read.format("anabranch").option("bootstrap", bootstrap).option("topic", topic).load()


def _rows(records: "DataFrame", fields: str) -> "DataFrame":
    from pyspark.sql import functions as F

    value = F.from_json(F.col("value").cast("string"), fields, {"mode": "FAILFAST"})
    return records.select(value.alias("row")).select("row.*")


def _planes(spark: "SparkSession", bootstrap: str) -> "DataFrame":
    from pyspark.sql import functions as F

    last = _topic(spark, bootstrap, "planes").groupBy("key").agg(F.max_by("value", "offset").alias("value"))
    planes = _rows(last.where("value is not null"), PLANE)
    return planes.withColumnRenamed("year", "built")


def _sky() -> "Column":
    from pyspark.sql import functions as F

    return (
        F.when(F.col("visib").isNull(), "unknown")
        .when(F.col("precip") > 0, "rain or snow")
        .when(F.col("visib") < POOR_VISIBILITY_MILES, "poor visibility")
        .otherwise("clear")
    )


def _measures() -> "list[Column]":
    from pyspark.sql import functions as F

    return [
        F.count("*").alias("flights"),
        F.count("dep_delay").alias("departed"),
        F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("delay_sum"),
        F.count_if(F.col("dep_delay") > LATE_MINUTES).alias("late"),
        F.count("seats").alias("plane_known"),
        F.coalesce(F.sum("seats"), F.lit(0)).alias("seats"),
        F.avg(F.col("year") - F.col("built")).alias("plane_age_years"),
        F.avg("wind_speed").alias("wind_speed_mph"),
    ]
