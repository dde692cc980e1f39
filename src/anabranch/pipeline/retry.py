"""The replay-dlq job: what lies in a topic's dead letter topic is tried again as if it came from the topic itself.

Each record gets back the partition and offset it had, which the headers of `lake.dlq` tell. A rejected batch may have
been sent twice, and a letter may be older than a retry that worked: so letters are taken once per record, and those
whose record is a row of the table already are left out (a table kept by upsert takes them again: they change nothing
that a repeated record would not). What does not fit this time either goes to the end of the dead letter topic.

Progress is kept in a checkpoint of its own: the next run begins with the letters that came since.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anabranch.errors import TableError
from anabranch.pipeline.backfill import named
from anabranch.pipeline.lake.settings import DLQ_SUFFIX, PipelineSettings
from anabranch.pipeline.table_rows import read_table
from anabranch.pipeline.topics import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from anabranch.pipeline.lake.sink import LakeSink

HEADER = "anabranch.dlq."


@dataclass
class RetryCounts:
    read: int = 0
    written: int = 0
    dlq: int = 0
    batches: int = 0
    repeated: int = 0
    """Letters of records that are in the table already, or that there are several of."""


def retry_dead_letters(spark: "SparkSession", settings: PipelineSettings) -> RetryCounts:
    """Tries everything that is there now; `settings` are those of the pipeline that rejected it."""
    from anabranch.pipeline.lake.sink import LakeSink

    letters = settings.topic + DLQ_SUFFIX
    retries = Retries(LakeSink(spark, named(settings, letters, letters)), settings)
    query = (
        spark.readStream.format(FORMAT)
        .options(**settings.options)
        .option("bootstrap", settings.bootstrap)
        .option("topic", letters)
        .option("includeHeaders", "true")
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(retries.take)
        .option("checkpointLocation", named(settings, letters, letters).checkpoint_uri)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return retries.counts


class Retries:
    """What Spark calls for each batch of letters."""

    def __init__(self, sink: "LakeSink", settings: PipelineSettings) -> None:
        self._sink, self._settings = sink, settings
        self.counts = RetryCounts()

    def take(self, letters: "DataFrame", batch: int) -> None:
        records = once_each(restored(letters))
        if self._settings.mode == "append":
            records = self._without_rows(records)
        records = records.persist()
        try:
            there, wanted = letters.count(), records.count()
            counts = self._sink.write(records, batch)
        finally:
            records.unpersist()
        if not counts.skipped:
            self._add(there, there - wanted, counts)

    def _add(self, there: int, repeated: int, counts: Any) -> None:
        self.counts.read += there
        self.counts.repeated += repeated
        self.counts.written += counts.written
        self.counts.dlq += counts.dlq
        self.counts.batches += 1

    def _without_rows(self, records: "DataFrame") -> "DataFrame":
        from pyspark.sql import functions

        try:
            rows = read_table(records.sparkSession, self._settings, ("_partition", "_offset"))
        except TableError:
            return records  # No table yet: nothing of it can be repeated.
        same = (records["partition"] == functions.col("_partition")) & (
            records["offset"] == functions.col("_offset")
        )
        return records.join(rows, same, "left_anti")


def restored(letters: "DataFrame") -> "DataFrame":
    """The records as they were before they were rejected."""
    from pyspark.sql import functions

    own = functions.filter("headers", lambda header: ~header["key"].startswith(HEADER))
    return letters.withColumns(
        {
            "topic": functions.coalesce(_told("topic"), "topic"),
            "partition": functions.coalesce(_told("partition").cast("int"), "partition"),
            "offset": functions.coalesce(_told("offset").cast("long"), "offset"),
            "headers": functions.when(functions.size(own) > 0, own),
        }
    )


def _told(name: str) -> "Column":
    """What a header of the letter says; null if it has none such."""
    from pyspark.sql import functions

    found = functions.filter("headers", lambda header: header["key"] == HEADER + name)
    return functions.get(found, functions.lit(0))["value"].cast("string")


def once_each(records: "DataFrame") -> "DataFrame":
    return records.dropDuplicates(["topic", "partition", "offset"])
