"""The replay-dlq job: what lies in a topic's dead letter topic is tried again as if it came from the topic itself.

Each record gets back the partition and offset it had, which the headers of `lake.dlq` tell. A rejected batch may have
been sent twice, and a letter may be older than a retry that worked: so letters are taken once per record, and those
whose record is a row of the table already are left out. A table kept by upsert takes only letters that no later record
of their key has overtaken: see `outdated`. What does not fit this time either goes to the end of the dead letter topic.

    read = written + dlq + repeated + outdated + undecided

Progress is kept in a checkpoint of its own: the next run begins with the letters that came since. If the dead letter
topic was deleted meanwhile, it begins at the beginning of the one that has its name now.
"""

import logging
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from anabranch.errors import TableMissingError, TableMovedError
from anabranch.pipeline.jobs.backfill import named
from anabranch.pipeline.jobs.outdated import CURRENT, OUTDATED, UNDECIDED, VERDICT, with_verdicts
from anabranch.pipeline.jobs.table_rows import read_table
from anabranch.pipeline.jobs.topics import FORMAT, TopicAddress, read_range
from anabranch.pipeline.lake.settings import PipelineSettings
from anabranch.pipeline.source.same_topic import is_of_another, named_topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HEADER = "anabranch.dlq."
LOSS_OPTION = "failOnDataLoss"
NO_ROWS: tuple[object, ...] = (None, frozenset())
"""The moment of a table that nobody has written to."""
JUDGED_MAX = 5
"""How often letters are judged anew because the table changed meanwhile."""

logger = logging.getLogger("anabranch.pipeline")


@dataclass
class RetryCounts:
    read: int = 0
    written: int = 0
    dlq: int = 0
    batches: int = 0
    repeated: int = 0
    """Letters of records that are in the table already, or that there are several of."""
    outdated: int = 0
    """Letters whose key has a later record: they would undo it."""
    undecided: int = 0
    """Letters of which the log can no longer tell what became of their key since. They stay where they are."""


def retry_dead_letters(spark: "SparkSession", settings: PipelineSettings) -> RetryCounts:
    """Tries everything that is there now; `settings` are those of the pipeline that rejected it."""
    letters = settings.dlq_topic
    place = named(settings, letters, letters)
    retries = Retries(spark, settings)
    query = (
        spark.readStream.format(FORMAT)
        .options(**_options(place))
        .option("bootstrap", settings.bootstrap)
        .option("topic", letters)
        .option("includeHeaders", "true")
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(retries.take)
        .option("checkpointLocation", place.checkpoint_uri)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return retries.counts


def _options(place: PipelineSettings) -> dict[str, str]:
    """Those of the source. Letters that were deleted with their topic are no loss that should stop later ones."""
    if not is_of_another(place, named_topic(place)):
        return dict(place.options)
    logger.warning(
        "The topic %s was deleted and made again since its letters were last tried: beginning at the beginning of the "
        "new one.",
        place.topic,
    )
    kept = {name: value for name, value in place.options.items() if name.lower() != LOSS_OPTION.lower()}
    return {**kept, LOSS_OPTION: "false"}


class Retries:
    """What Spark calls for each batch of letters."""

    def __init__(self, spark: "SparkSession", settings: PipelineSettings) -> None:
        from anabranch.pipeline.lake.sink import LakeSink

        self._settings = settings
        self._place = named(settings, settings.dlq_topic, settings.dlq_topic)
        self._sink = LakeSink(spark, self._place, before_commit=self._check_still)
        self._judged_at: tuple[object, ...] = NO_ROWS
        self.counts = RetryCounts()

    def take(self, letters: "DataFrame", batch: int) -> None:
        """Judged again if the table changes before the letters are in it: what came may be later than they are."""
        for _ in range(JUDGED_MAX):
            try:
                self._take_once(letters, batch)
                return
            except TableMovedError as error:
                logger.info("the letters are judged again: %s", error)
        raise TableMovedError(
            f"The table {self._settings.table} changed {JUDGED_MAX} times while letters were tried again: "
            "stop the pipeline that fills it until this is done."
        )

    def _take_once(self, letters: "DataFrame", batch: int) -> None:
        self._judged_at = self._moment()
        records = restored(letters).persist()
        judged = self._judged(once_each(records)).persist()
        try:
            there = records.count()
            found = {row[VERDICT]: row["count"] for row in judged.groupBy(VERDICT).count().collect()}
            counts = self._sink.write(judged.where(f"{VERDICT} = '{CURRENT}'").drop(VERDICT), batch)
        finally:
            judged.unpersist()
            records.unpersist()
        if not counts.skipped:
            self._add(there, found, counts)

    def _judged(self, records: "DataFrame") -> "DataFrame":
        """With a verdict for each."""
        from pyspark.sql import functions

        if self._settings.mode == "append":
            records = self._without_rows(records)
        elif not self._settings.key:
            return with_verdicts(records, restored(self._all_letters(records.sparkSession)), self._settings)
        return records.withColumn(VERDICT, functions.lit(CURRENT))

    def _all_letters(self, spark: "SparkSession") -> "DataFrame":
        address = TopicAddress(
            self._settings.bootstrap, self._settings.dlq_topic, dict(self._settings.options)
        )
        return read_range(spark, address, "earliest", "latest")

    def _moment(self) -> tuple[object, ...]:
        """How far the table's pipeline is, and which rows it has. One that is not there yet has none, and the sink
        itself may make it."""
        from anabranch.pipeline.lake.formats.table import open_table

        try:
            table = open_table(self._settings)
        except TableMissingError:
            return NO_ROWS
        return table.state(), frozenset(file.path for file in table.files())

    def _check_still(self) -> None:
        """Only what an upsert deletes can go unnoticed: rows that came are compared when files are rewritten. And by
        columns of the value it deletes nothing."""
        if self._settings.mode == "append" or self._settings.key:
            return
        if self._moment() != self._judged_at:
            raise TableMovedError(
                f"The table {self._settings.table} has changed since the letters were judged."
            )

    def _add(self, there: int, found: dict[str, int], counts: Any) -> None:
        self.counts.read += there
        self.counts.repeated += there - sum(found.values())
        self.counts.outdated += found.get(OUTDATED, 0) + counts.outdated
        self.counts.undecided += found.get(UNDECIDED, 0)
        self.counts.written += counts.written - counts.outdated
        self.counts.dlq += counts.dlq
        self.counts.batches += 1

    def _without_rows(self, records: "DataFrame") -> "DataFrame":
        """A row that is older than the column `_topic` is taken for a record's own if it has the same time too."""
        from pyspark.sql import functions

        from anabranch.pipeline.lake import order

        names = order.COLUMNS
        try:
            rows = read_table(records.sparkSession, self._settings, names)
        except TableMissingError:
            return records  # No table yet: nothing of it can be repeated.
        row = order.Place(*(functions.col(name) for name in names))
        same_place = (records["partition"] == row.partition) & (records["offset"] == row.offset)
        same_time = row.topic.isNull() & (records["timestamp"] == row.timestamp)
        return records.join(rows, same_place & ((records["topic"] == row.topic) | same_time), "left_anti")


def restored(letters: "DataFrame") -> "DataFrame":
    """The records as they were before they were rejected; a letter that does not tell is a record of its own."""
    from pyspark.sql import functions

    own = functions.filter("headers", lambda header: ~header["key"].startswith(HEADER))
    place = {
        "topic": _told("topic"),
        "partition": _told("partition").try_cast("int"),
        "offset": _told("offset").try_cast("long"),
    }
    # Half a place, of a letter that is not ours, could be that of another record.
    is_told = reduce(and_, (column.isNotNull() for column in place.values()))
    columns = {
        name: functions.when(is_told, told).otherwise(functions.col(name)) for name, told in place.items()
    }
    return letters.withColumns({**columns, "headers": functions.when(functions.size(own) > 0, own)})


def _told(name: str) -> "Column":
    """What a header of the letter says; null if it has none such."""
    from pyspark.sql import functions

    found = functions.filter("headers", lambda header: header["key"] == HEADER + name)
    return functions.get(found, functions.lit(0))["value"].cast("string")


def once_each(records: "DataFrame") -> "DataFrame":
    return records.dropDuplicates(["topic", "partition", "offset"])
