"""Topic to topic with state: flights, gathered into windows of one hour, as they come.

    python examples/hourly_delays.py [--bootstrap HOST:PORT] [--once] [--state DIR]

Reads `flights`, writes `hourly_delays`: key `EWR 2013-01-01T10:00:00Z`, value the figures of that hour so far, as JSON.
Each batch writes the windows it changed, and the topic is compacted: the last record of a key is what holds. So nothing
is lost or counted twice if the query is stopped in the middle: a batch that is repeated writes the same figures once
more. The state of a window is given up when flights a month later have been seen (the watermark); a flight that comes
later than that is left out, and the end of a run says whether there were any.
"""

import argparse
import sys

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from anabranch.pipeline.spark.session import spark_session

TOPIC = "hourly_delays"
FLIGHT = "origin string, dep_delay int"
LATEST = "30 days"


def main() -> None:
    options = parse_options()
    make_topic(options.bootstrap)
    spark = spark_session(app="hourly delays", config={"spark.sql.shuffle.partitions": "2"})
    try:
        records = (
            spark.readStream.format("anabranch")
            .option("bootstrap", options.bootstrap)
            .option("topic", "flights")
            .option("startingOffsets", "earliest")  # Where the first run begins; the next ones go on.
            .option("maxOffsetsPerTrigger", "100000")
            .load()
        )
        run(hourly(records), options)
    finally:
        spark.stop()


def hourly(records: DataFrame) -> DataFrame:
    """Key and value of what goes into the topic. The time of a record is the scheduled departure."""
    flight = F.from_json(F.col("value").cast("string"), FLIGHT)
    flights = records.select("timestamp", flight.alias("flight")).withWatermark("timestamp", LATEST)
    windows = flights.groupBy(F.window("timestamp", "1 hour"), F.col("flight.origin").alias("origin")).agg(
        F.count("*").alias("flights"),
        F.count("flight.dep_delay").alias("departed"),
        F.sum("flight.dep_delay").alias("delay_sum"),
    )
    hour = F.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'")
    return windows.select(
        F.concat_ws(" ", "origin", hour).cast("binary").alias("key"),
        F.to_json(F.struct("origin", hour.alias("hour"), "flights", "departed", "delay_sum"))
        .cast("binary")
        .alias("value"),
    )


def run(rows: DataFrame, options: argparse.Namespace) -> None:
    def write(windows: DataFrame, _batch: int) -> None:
        writer = windows.write.format("anabranch").mode("append")
        writer.option("bootstrap", options.bootstrap).option("topic", TOPIC).save()

    # Update mode, in which a batch brings the windows it changed, is not offered to sinks written in Python; a batch
    # on its own can be written to them all the same.
    stream = rows.writeStream.outputMode("update").foreachBatch(write)
    stream = stream.option("checkpointLocation", options.state)
    query = (
        stream.trigger(availableNow=True) if options.once else stream.trigger(processingTime="5 seconds")
    ).start()
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    report(query)


def report(query: StreamingQuery) -> None:
    batches = query.recentProgress
    read = sum(batch.numInputRows for batch in batches)
    late = sum(state.numRowsDroppedByWatermark for batch in batches for state in batch.stateOperators)
    sys.stdout.write(f"{read} flights read in {len(batches)} batches, {late} rows of windows given up\n")


def make_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(TOPIC, 2, config={"cleanup.policy": "compact"})])
    try:
        made[TOPIC].result(15)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Gather flights into hours, from topic to topic.")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--once", action="store_true", help="end when everything there is has been read")
    parser.add_argument("--state", default="hourly-delays-state", metavar="DIR")
    return parser.parse_args()


if __name__ == "__main__":
    main()
