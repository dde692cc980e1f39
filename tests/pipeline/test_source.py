"""Topics read as batches: the rows are what was produced, whichever way the bytes came."""

import json
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import confluent_kafka
import confluent_kafka.admin
import pytest

from anabranch.pipeline.source.options import reader_options
from anabranch.pipeline.source.planner import Planner
from anabranch.pipeline.source.reading import read_range
from anabranch.record.columns.columns import schema_of
from support.node_process import NodeProcess
from support.raw_client import RawClient
from support.topics import make_topic, send
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BOTH_WAYS = ("never", "require")


class Sent(NamedTuple):
    """A record as it was given to the producer."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 1_700_000_000_000
    partition: int = 0


def produce(bootstrap: str, topic: str, records: Iterable[Sent], **config: Any) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **config})
    for sent in records:
        producer.produce(
            topic,
            sent.value,
            sent.key,
            headers=list(sent.headers),
            timestamp=sent.timestamp_ms,
            partition=sent.partition,
        )
        producer.poll(0)
    assert producer.flush(30) == 0


def read(spark: "SparkSession", node: NodeProcess, **options: str) -> "DataFrame":
    return spark.read.format("anabranch").options(bootstrap=node.bootstrap, **options).load()


def rows(frame: "DataFrame") -> list[dict[str, Any]]:
    """By topic, partition and offset."""
    found = [row.asDict(recursive=True) for row in frame.collect()]
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def values(frame: "DataFrame") -> list[bytes]:
    return [bytes(row["value"]) for row in rows(frame)]


def several_segments(node: NodeProcess, topic: str, count: int = 400, partitions: int = 1) -> None:
    """A topic whose first segments are sealed."""
    make_topic(node.bootstrap, topic, partitions, segment_bytes="16384")
    for number in range(partitions):
        for start in range(0, count, 50):
            sent = [
                (b"k%d" % at, b"%d:%d " % (number, at) + b"v" * 200)
                for at in range(start, min(count, start + 50))
            ]
            send(node.bootstrap, topic, sent, partition=number)
    sealed = len(list(node.data_folder.glob(f"{topic}-0/*.log"))) - 1
    assert sealed >= 2, "the test needs sealed segments"


# --- rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_rows_are_what_was_produced(
    spark: "SparkSession", node: NodeProcess, unique: str, codec: str
) -> None:
    make_topic(node.bootstrap, unique)
    headers = (("a", b"1"), ("a", None), ("\u00fc", b""))
    sent = [
        Sent(b"key", b"value", headers, 1_700_000_000_123),
        Sent(None, b"no key", (), 1_700_000_000_001),
        Sent(b"tombstone", None, (), 1_600_000_000_000),
        Sent(b"", b"", (), 1_700_000_000_999),
        *(Sent(b"%d" % number, b"x" * number) for number in range(300)),
    ]
    produce(node.bootstrap, unique, sent, **{"compression.type": codec})
    found = rows(read(spark, node, topic=unique, includeHeaders="true"))
    assert [(row["key"], row["value"]) for row in found] == [(each.key, each.value) for each in sent]
    assert [row["offset"] for row in found] == list(range(len(sent)))
    assert [_ms(row["timestamp"]) for row in found] == [each.timestamp_ms for each in sent]
    assert [(each["key"], each["value"]) for each in found[0]["headers"]] == list(headers)
    assert found[1]["headers"] is None
    assert {(row["topic"], row["partition"], row["timestampType"], row["_branch"]) for row in found} == {
        (unique, 0, 0, None)
    }
    assert all(row["_generation"] >= 0 for row in found)


def _ms(moment: datetime) -> int:
    """Spark hands out the local time of the Python process."""
    return round(moment.astimezone(UTC).timestamp() * 1000)


def test_log_append_time_is_told(spark: "SparkSession", node: NodeProcess, unique: str) -> None:
    make_topic(node.bootstrap, unique, message_timestamp_type="LogAppendTime")
    produce(node.bootstrap, unique, [Sent(b"k", b"v", (), 1_000)])
    (row,) = rows(read(spark, node, topic=unique))
    assert row["timestampType"] == 1
    assert _ms(row["timestamp"]) > 1_700_000_000_000


def test_the_schema_is_sparks_and_headers_are_there_when_asked_for(
    spark: "SparkSession", node: NodeProcess, unique: str
) -> None:
    make_topic(node.bootstrap, unique)
    plain = read(spark, node, topic=unique).schema
    assert [f"{field.name} {field.dataType.simpleString()}" for field in plain.fields] == [
        "key binary",
        "value binary",
        "topic string",
        "partition int",
        "offset bigint",
        "timestamp timestamp",
        "timestampType int",
        "_generation int",
        "_branch string",
    ]
    full = read(spark, node, topic=unique, includeHeaders="true").schema
    assert full["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"


def test_an_empty_topic_has_no_rows(spark: "SparkSession", node: NodeProcess, unique: str) -> None:
    make_topic(node.bootstrap, unique, partitions=3)
    assert read(spark, node, topic=unique).count() == 0


def test_fewer_columns_can_be_named(spark: "SparkSession", node: NodeProcess, unique: str) -> None:
    make_topic(node.bootstrap, unique)
    send(node.bootstrap, unique, [(b"k", b"v")])
    reader = spark.read.format("anabranch").options(bootstrap=node.bootstrap, topic=unique)
    frame = reader.schema("partition int, value binary").load()
    assert [tuple(row) for row in frame.collect()] == [(0, b"v")]
    assert [tuple(row) for row in reader.schema("topic string").load().collect()] == [(unique,)]


# --- which partitions ---------------------------------------------------------------------------------------------


def test_several_topics_a_pattern_and_assigned_partitions(
    spark: "SparkSession", node: NodeProcess, unique: str
) -> None:
    for suffix in ("a", "b", "c"):
        make_topic(node.bootstrap, f"{unique}.{suffix}", partitions=2)
        for number in range(2):
            send(
                node.bootstrap, f"{unique}.{suffix}", [(None, f"{suffix}{number}".encode())], partition=number
            )
    both = read(spark, node, topic=f"{unique}.a, {unique}.c")
    assert values(both) == [b"a0", b"a1", b"c0", b"c1"]
    fitting = read(spark, node, subscribePattern=re.escape(unique) + r"\.[bc]")
    assert values(fitting) == [b"b0", b"b1", b"c0", b"c1"]
    assigned = read(spark, node, assign=json.dumps({f"{unique}.a": [1], f"{unique}.b": [0]}))
    assert values(assigned) == [b"a1", b"b0"]
    nothing = read(spark, node, subscribePattern=re.escape(unique) + "-none")
    assert nothing.count() == 0


def test_a_topic_that_does_not_exist_is_named(spark: "SparkSession", node: NodeProcess, unique: str) -> None:
    with pytest.raises(Exception, match=f"There is no topic {unique} at"):
        read(spark, node, topic=unique).count()
    with RawClient(node.bootstrap):
        pass
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.bootstrap})
    assert unique not in admin.list_topics(timeout=10).topics, "a read must not make a topic"


# --- offsets and times ---------------------------------------------------------------------------------------------


def test_offsets_and_times_bound_a_read(spark: "SparkSession", node: NodeProcess, unique: str) -> None:
    make_topic(node.bootstrap, unique, partitions=2)
    for number in range(2):
        sent = [Sent(None, b"%d" % at, (), 1_700_000_000_000 + at * 1000, number) for at in range(20)]
        produce(node.bootstrap, unique, sent)

    def count(**options: str) -> list[int]:
        found = rows(read(spark, node, topic=unique, **options))
        return [len([row for row in found if row["partition"] == number]) for number in range(2)]

    def both(first: int, second: int) -> str:
        return json.dumps({unique: {"0": first, "1": second}})

    assert count(startingOffsets=both(5, -2), endingOffsets=both(-1, 3)) == [15, 3]
    assert count(startingOffsets="latest") == [0, 0]
    assert count(startingTimestamp="1700000005000", endingTimestamp="1700000012000") == [7, 7]
    assert count(startingOffsets="2023-11-14T22:13:30Z") == [10, 10]
    by_time = both(1_700_000_001_500, 1_700_000_019_000)
    assert count(startingOffsetsByTimestamp=by_time) == [18, 1]
    assert count(endingOffsetsByTimestamp=by_time) == [2, 19]
    late = {"startingTimestamp": "1800000000000"}
    assert count(startingOffsetsByTimestampStrategy="latest", **late) == [0, 0]
    with pytest.raises(Exception, match="has no record at or after 1800000000000 ms"):
        count(**late)
    with pytest.raises(Exception, match="would end at 3, before its start 5"):
        count(startingOffsets=both(5, 0), endingOffsets=both(3, 1))


def test_offsets_beyond_the_log_are_a_loss(spark: "SparkSession", node: NodeProcess, unique: str) -> None:
    make_topic(node.bootstrap, unique)
    send(node.bootstrap, unique, [(None, b"%d" % at) for at in range(5)])
    ending = json.dumps({unique: {"0": 9}})
    with pytest.raises(Exception, match=r"DataLossError.* ends at offset 5, and 9 was to be reached"):
        read(spark, node, topic=unique, endingOffsets=ending).count()
    assert read(spark, node, topic=unique, endingOffsets=ending, failOnDataLoss="false").count() == 5


def test_offsets_that_were_deleted_are_a_loss(spark: "SparkSession", node: NodeProcess, unique: str) -> None:
    make_topic(node.bootstrap, unique)
    send(node.bootstrap, unique, [(None, b"%d" % at) for at in range(10)])
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.bootstrap})
    upto = confluent_kafka.TopicPartition(unique, 0, 4)
    next(iter(admin.delete_records([upto]).values())).result(10)
    assert read(spark, node, topic=unique).count() == 6
    starting = json.dumps({unique: {"0": 2}})
    with pytest.raises(Exception, match=r"DataLossError.* begins at offset 4 by now, and 2 was to be read"):
        read(spark, node, topic=unique, startingOffsets=starting).count()
    assert read(spark, node, topic=unique, startingOffsets=starting, failOnDataLoss="false").count() == 6


# --- files and the protocol ----------------------------------------------------------------------------------------


def test_both_ways_give_the_same_rows(spark: "SparkSession", node: NodeProcess, unique: str) -> None:
    several_segments(node, unique, partitions=2)
    by_protocol, by_files = (
        rows(read(spark, node, topic=unique, includeHeaders="true", direct=way)) for way in BOTH_WAYS
    )
    assert len(by_protocol) == 800
    assert by_files == by_protocol


@pytest.mark.parametrize("way", BOTH_WAYS)
def test_a_range_inside_of_a_segment(spark: "SparkSession", node: NodeProcess, unique: str, way: str) -> None:
    several_segments(node, unique)
    bounds = {
        "startingOffsets": json.dumps({unique: {"0": 57}}),
        "endingOffsets": json.dumps({unique: {"0": 311}}),
    }
    found = rows(read(spark, node, topic=unique, direct=way, minPartitions="7", **bounds))
    assert [row["offset"] for row in found] == list(range(57, 311))


def test_sealed_files_are_read_without_the_broker(node: NodeProcess, unique: str) -> None:
    several_segments(node, unique)
    options = reader_options({"bootstrap": node.bootstrap, "topic": unique})
    with closing(Planner(options)) as planner:
        (wanted,) = planner.batch_ranges()
    *sealed, tail = wanted.stretches
    assert all(stretch.file is not None for stretch in sealed)
    assert tail.file is None
    assert (sealed[0].start, tail.end) == (0, 400)
    nobody = replace(options, bootstrap="127.0.0.1:1", broker_seconds_max=0.1)
    task = wanted._replace(end=tail.start, stretches=tuple(sealed))
    found = list(read_range(nobody, task, schema_of(["offset"])))
    assert [at for batch in found for at in batch.column("offset").to_pylist()] == list(range(tail.start))


@pytest.fixture(scope="module")
def cleaning_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node whose cleaner does not rest, with a topic `compacted`."""
    with NodeProcess(tmp_path_factory.mktemp("cleaning"), {"log.cleaner.backoff.ms": "100"}) as node:
        compact(node, "compacted")
        yield node


@pytest.mark.parametrize("way", BOTH_WAYS)
def test_gaps_of_compaction(spark: "SparkSession", cleaning_node: NodeProcess, way: str) -> None:
    found = rows(read(spark, cleaning_node, topic="compacted", direct=way))
    assert [(row["offset"], row["key"], row["value"]) for row in found] == consumed(
        cleaning_node, "compacted"
    )


def compact(node: NodeProcess, topic: str) -> None:
    """2000 records, of which every third has a key of its own; the cleaner has removed most of the others."""
    make_topic(
        node.bootstrap,
        topic,
        cleanup_policy="compact",
        segment_bytes="16384",
        min_cleanable_dirty_ratio="0.01",
        min_compaction_lag_ms="0",
    )
    for start in range(0, 2000, 100):
        keys = [b"%d" % (at if at % 3 == 0 else at % 10) for at in range(start, start + 100)]
        send(node.bootstrap, topic, [(key, b"%d" % start + b"v" * 100) for key in keys])
    wait_until(lambda: len(consumed(node, topic)) < 900, "the cleaner", 60)


def consumed(node: NodeProcess, topic: str) -> list[tuple[int, bytes, bytes]]:
    """What librdkafka reads of partition 0: offsets, keys and values."""
    settings = {
        "bootstrap.servers": node.bootstrap,
        "group.id": f"look-{topic}",
        "enable.partition.eof": True,
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = []
    while (record := consumer.poll(10)) is not None and record.error() is None:
        found.append((record.offset(), record.key(), record.value()))
    assert record is not None, "the end of the partition was not reached"
    consumer.close()
    return found


# --- options and filters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"startingOffset": "latest"}, r"There is no option startingoffset\. Did you mean startingOffsets\?"),
        (
            {"kafka.sasl.mechanism": "PLAIN"},
            "kafka.sasl.mechanism: brokers have no encryption and no log-in yet",
        ),
        ({"subscribe": "other"}, "say different things"),
    ],
)
def test_wrong_options_are_refused_when_the_source_is_loaded(
    spark: "SparkSession", node: NodeProcess, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(Exception, match=complaint):
        spark.read.format("anabranch").options(bootstrap=node.bootstrap, topic="t", **options).load()


def test_a_schema_that_is_not_ours_is_refused(spark: "SparkSession", node: NodeProcess) -> None:
    reader = spark.read.format("anabranch").options(bootstrap=node.bootstrap, topic="t")
    with pytest.raises(Exception, match="A topic has no column 'amount'"):
        reader.schema("amount int").load().count()
    with pytest.raises(Exception, match="The column offset is of type bigint, not int"):
        reader.schema("offset int").load().count()


def test_a_wrong_address_is_told_soon(spark: "SparkSession") -> None:
    began = time.monotonic()
    with pytest.raises(Exception, match=r"BrokerUnreachableError.*127\.0\.0\.1:1"):
        spark.read.format("anabranch").options(
            bootstrap="127.0.0.1:1", topic="t", brokerTimeoutSeconds="1"
        ).load().count()
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_one_query_does_not_filter_the_next_on_the_same_frame(
    spark: "SparkSession", node: NodeProcess, unique: str, pushdown: str
) -> None:
    make_topic(node.bootstrap, unique, partitions=2)
    for number in range(2):
        sent = [Sent(None, b"%d" % at, (), 1_700_000_000_000 + at * 1000, number) for at in range(20)]
        produce(node.bootstrap, unique, sent)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
    try:
        frame = read(spark, node, topic=unique)
        conditions = {
            "partition = 1": 20,
            "partition in (0, 1) and offset >= 15": 10,
            "offset > 3 and offset <= 5": 4,
            "offset in (1, 7)": 4,
            "timestamp >= timestamp'2023-11-14 22:13:25Z'": 30,
            "timestamp < timestamp'2023-11-14 22:13:25Z' and partition = 0": 5,
            f"topic = '{unique}' and offset = 2": 2,
            "topic = 'other'": 0,
            "value = X'37' or offset = 1": 4,
        }
        assert {text: frame.where(text).count() for text in conditions} == conditions
        assert frame.count() == 40
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_ranges_are_split_when_more_tasks_are_wanted(
    spark: "SparkSession", node: NodeProcess, unique: str
) -> None:
    make_topic(node.bootstrap, unique)
    send(node.bootstrap, unique, [(None, b"%d" % at) for at in range(100)])
    frame = read(spark, node, topic=unique, minPartitions="4")
    assert frame.rdd.getNumPartitions() == 4
    assert values(frame) == [b"%d" % at for at in range(100)]
    assert read(spark, node, topic=unique, maxRecordsPerPartition="30").rdd.getNumPartitions() == 4


def test_the_source_registers_itself(spark: "SparkSession") -> None:
    """Nobody called spark.dataSource.register: Spark found pyspark_anabranch."""
    import pyspark_anabranch

    assert pyspark_anabranch.DefaultSource.name() == "anabranch"
    with pytest.raises(Exception, match="The option bootstrap is missing"):
        spark.read.format("anabranch").option("topic", "t").load()
