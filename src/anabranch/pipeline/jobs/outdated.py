"""Which letters come too late: a later record of their key has been in the table, or deleted it, since they were sent.

A row of the key tells by itself where it came from, and the sink compares. A deleted key has no row: there the log of
the topic knows, as far as it goes back. Of a letter's own record, by its partition and offset, it says one of three:

    it is there       So is everything after it: retention takes a log's beginning, and the cleaner takes a record only
                      for a later one of its key, and a deletion only after what it deletes. So the letter is outdated
                      if the log has a later record of its key, one that was not rejected itself.
    it was cleaned    There is a gap where it was, since a later record of its key came: the letter is outdated.
    it is too old     The log begins after it. Then only a key that has a row can be judged, and a letter of any other
                      is `undecided`: it might bring back what was deleted.

If none of this is so, because the log ends before it or has a gap that no cleaner made, then the letter is of an older
topic of this name, which was deleted and made again. Its offset compares with nothing: it is `undecided` too.

Tables that go by columns of the value need none of this: nothing is ever deleted from them.
"""

from typing import TYPE_CHECKING, NamedTuple

from anabranch.errors import TableMissingError
from anabranch.pipeline.client.client import EARLIEST, LATEST, Client
from anabranch.pipeline.jobs.table_rows import read_table
from anabranch.pipeline.jobs.topics import TopicAddress, read_range
from anabranch.pipeline.lake.settings import PipelineSettings
from anabranch.pipeline.lake.sink import offsets_option

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from anabranch.pipeline.lake.order import Place

VERDICT = "_verdict"
CURRENT, OUTDATED, UNDECIDED = "current", "outdated", "undecided"
_PLACE = ["partition", "offset"]


class LogRange(NamedTuple):
    """Of one partition."""

    start: int
    """The first offset that the log has."""
    end: int
    read_from: int
    """The first that a record later than one of the letters can have, or a letter's own."""


class Evidence(NamedTuple):
    """What letters are held against."""

    log: "DataFrame"
    """Key, partition, offset and timestamp of the topic's records."""
    rejected: "DataFrame"
    """Partition and offset of all records of the topic that were ever rejected."""
    keys: "DataFrame"
    """The keys that a row of the table has."""
    ranges: dict[int, LogRange]
    """By partition."""
    is_compacted: bool
    """Can there be gaps because of later records?"""


def with_verdicts(letters: "DataFrame", rejected: "DataFrame", settings: PipelineSettings) -> "DataFrame":
    """The letters with one more column; `rejected` are all letters there ever were. Both have the topic, partition and
    offset of their records. What has no key, or is of another topic, is current: nothing can be held against it."""
    from pyspark.sql import functions

    ours = functions.coalesce(functions.col("topic") == settings.topic, functions.lit(False))
    ours &= functions.col("key").isNotNull()
    own = letters.where(ours)
    with Client(settings.bootstrap) as client:
        ranges = log_ranges(client, own, settings.topic)
        is_compacted = bool(client.compacted_topics([settings.topic]))
    evidence = Evidence(
        _log(own, ranges, settings),
        rejected.where(ours).select(*_PLACE).distinct(),
        _keys_of_rows(own, settings),
        ranges,
        is_compacted,
    )
    others = letters.where(~ours).withColumn(VERDICT, functions.lit(CURRENT))
    return judged(own, evidence).unionByName(others)


def judged(letters: "DataFrame", evidence: Evidence) -> "DataFrame":
    """Letters of one topic, each with a key, and their verdicts."""
    from pyspark.sql import functions

    keys = evidence.keys.withColumn("_has_row", functions.lit(True))
    return (
        letters.join(_found_in_log(letters, evidence), _PLACE, "left")
        .join(keys, "key", "left")
        .withColumn(VERDICT, _verdict(evidence))
        .select(*letters.columns, VERDICT)
    )


def log_ranges(client: Client, letters: "DataFrame", name: str) -> dict[int, LogRange]:
    """By partition; empty if the topic is gone. In partitions without letters, too, a key can have later records."""
    from pyspark.sql import functions

    rows = letters.groupBy("partition").agg(
        functions.min("offset").alias("offset"),
        functions.unix_millis(functions.min("timestamp")).alias("timestamp_ms"),
    )
    firsts = {row["partition"]: (row["offset"], row["timestamp_ms"]) for row in rows.collect()}
    if not firsts:
        return {}
    since_ms = max(0, min(timestamp_ms for _, timestamp_ms in firsts.values()))
    topic = client.cluster([name]).topics.get(name)
    places = [] if topic is None else topic.partitions
    starts, ends, later = (
        client.offsets_at(dict.fromkeys(places, moment)) for moment in (EARLIEST, LATEST, since_ms)
    )
    return {
        place.partition: _range(starts[place], ends[place], later[place], firsts.get(place.partition))
        for place in places
    }


def _range(start: int, end: int, since: int, first: tuple[int, int] | None) -> LogRange:
    wanted = [offset for offset in (since, -1 if first is None else first[0]) if offset >= 0]
    return LogRange(start, end, max(start, min([*wanted, end])))


def _found_in_log(letters: "DataFrame", evidence: Evidence) -> "DataFrame":
    """For each letter whose key the log has: is its record there, and is there a later one?"""
    from pyspark.sql import functions

    from anabranch.pipeline.lake.order import comes_later

    rejected = evidence.rejected.withColumn("_rejected", functions.lit(True))
    log = evidence.log.join(rejected, _PLACE, "left").alias("log")
    letter = letters.select("key", *_PLACE, "timestamp").alias("letter")
    one, other = _place_in("log"), _place_in("letter")
    is_same = (one.partition == other.partition) & (one.offset == other.offset)
    is_later = comes_later(one, other) & functions.col("_rejected").isNull()
    return (
        letter.join(log, functions.col("letter.key") == functions.col("log.key"))
        .groupBy("letter.partition", "letter.offset")
        .agg(functions.bool_or(is_same).alias("_present"), functions.bool_or(is_later).alias("_replaced"))
    )


def _place_in(side: str) -> "Place":
    """All of them are of one topic."""
    from pyspark.sql import functions

    from anabranch.pipeline.lake.order import Place

    columns = (functions.col(f"{side}.{name}") for name in ("partition", "offset", "timestamp"))
    return Place(functions.lit(""), *columns)


def _log(letters: "DataFrame", ranges: dict[int, LogRange], settings: PipelineSettings) -> "DataFrame":
    columns = ("key", *_PLACE, "timestamp")
    if not ranges:
        return letters.limit(0).select(*columns)
    starting = {partition: found.read_from for partition, found in ranges.items()}
    ending = {partition: found.end for partition, found in ranges.items()}
    address = TopicAddress(settings.bootstrap, settings.topic, dict(settings.options))
    return read_range(
        letters.sparkSession,
        address,
        offsets_option(settings.topic, starting),
        offsets_option(settings.topic, ending),
    ).select(*columns)


def _keys_of_rows(letters: "DataFrame", settings: PipelineSettings) -> "DataFrame":
    """Of the table: the keys that a row has."""
    from pyspark.sql import functions

    from anabranch.pipeline.lake.upsert import RAW_KEY, RECORD_KEY

    column = RAW_KEY if settings.schema == "raw" else RECORD_KEY
    try:
        rows = read_table(letters.sparkSession, settings, (column,))
    except TableMissingError:
        return letters.limit(0).select("key")
    return rows.select(functions.col(column).cast("binary").alias("key")).distinct()


def _verdict(evidence: Evidence) -> "Column":
    from pyspark.sql import functions

    is_within = is_before = functions.lit(False)
    for partition, found in evidence.ranges.items():
        is_here, offset = functions.col("partition") == partition, functions.col("offset")
        is_before |= is_here & (offset < found.start)
        is_within |= is_here & offset.between(found.start, found.end - 1)
    return (
        functions.when(functions.col("_replaced"), OUTDATED)
        .when(functions.col("_present"), CURRENT)
        .when(is_within & functions.lit(evidence.is_compacted), OUTDATED)
        .when(is_before & functions.col("_has_row"), CURRENT)
        .otherwise(UNDECIDED)
    )
