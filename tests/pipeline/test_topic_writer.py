"""Rows written to topics, as batches and as streams, and read back by another client."""

import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest

from anabranch.errors import OptionError, PipelineError
from anabranch.pipeline.source.options import WriterOptions
from anabranch.pipeline.writer.topic_writer import Written, checked_columns, write_all
from support.node_process import NodeProcess
from support.topics import make_topic, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Read = tuple[int, bytes | None, bytes | None, int, Any]
"""Partition, key, value, timestamp in ms, headers."""


def consume(bootstrap: str, topic: str, partitions: int = 1) -> list[Read]:
    """Everything in the topic, by partition and offset."""
    settings = {"bootstrap.servers": bootstrap, "group.id": f"look-{topic}", "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(settings)
    found: list[Read] = []
    for number in range(partitions):
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0)])
        while (record := consumer.poll(10)) is not None and record.error() is None:
            found.append((number, record.key(), record.value(), record.timestamp()[1], record.headers()))
        assert record is not None, "the end of the partition was not reached"
    consumer.close()
    return found


def write(frame: "DataFrame", node: NodeProcess, **options: str) -> None:
    frame.write.format("anabranch").options(bootstrap=node.bootstrap, **options).mode("append").save()


def test_every_column_arrives(spark: "SparkSession", node: NodeProcess, unique: str) -> None:
    make_topic(node.bootstrap, unique, partitions=3)
    moment = datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    headers = [("a", b"1"), ("a", None)]
    rows = [
        (b"k", b"v", headers, 2, moment),
        (None, b"no key", None, 1, moment),
        (b"tombstone", None, [], 0, moment),
    ]
    schema = (
        "key binary, value binary, headers array<struct<key:string,value:binary>>, partition int, "
        "timestamp timestamp, extra int"
    )
    frame = spark.createDataFrame([(*row, 5) for row in rows], schema)
    write(frame, node, topic=unique)
    stamp = 1_700_000_000_123
    assert consume(node.bootstrap, unique, 3) == [
        (0, b"tombstone", None, stamp, None),
        (1, None, b"no key", stamp, None),
        (2, b"k", b"v", stamp, headers),
    ]


def test_texts_and_a_topic_in_each_row(spark: "SparkSession", node: NodeProcess, unique: str) -> None:
    for suffix in ("a", "b"):
        make_topic(node.bootstrap, f"{unique}.{suffix}")
    frame = spark.createDataFrame(
        [(f"{unique}.a", "\u00fc"), (f"{unique}.b", None), (f"{unique}.b", "x")], "topic string, value string"
    )
    write(frame, node)
    assert [row[2] for row in consume(node.bootstrap, f"{unique}.a")] == ["\u00fc".encode()]
    assert sorted(row[2] or b"" for row in consume(node.bootstrap, f"{unique}.b")) == [b"", b"x"]
    write(frame, node, topic=f"{unique}.a")
    assert len(consume(node.bootstrap, f"{unique}.a")) == 4, "the option wins over the column"


def test_keys_go_where_javas_clients_send_them(spark: "SparkSession", node: NodeProcess, unique: str) -> None:
    make_topic(node.bootstrap, unique, partitions=5)
    keys = [b"key-%d" % number for number in range(50)]
    write(
        spark.createDataFrame([(key, b"v") for key in keys], "key binary, value binary"), node, topic=unique
    )
    found = {row[1]: row[0] for row in consume(node.bootstrap, unique, 5)}
    assert found == {key: (_murmur2(key) & 0x7FFFFFFF) % 5 for key in keys}


def _murmur2(data: bytes) -> int:
    """As Kafka's Java clients compute it."""
    mask, factor = 0xFFFFFFFF, 0x5BD1E995
    mixed = 0x9747B28C ^ len(data)
    for (word,) in struct.iter_unpack("<I", data[: len(data) & ~3]):
        part = word * factor & mask
        part = (part ^ part >> 24) * factor & mask
        mixed = (mixed * factor & mask) ^ part
    tail = data[len(data) & ~3 :]
    if tail:
        mixed = (mixed ^ int.from_bytes(tail, "little")) * factor & mask
    mixed = (mixed ^ mixed >> 13) * factor & mask
    return mixed ^ mixed >> 15


def test_what_was_read_can_be_written_as_it_is(spark: "SparkSession", node: NodeProcess, unique: str) -> None:
    for suffix in ("from", "to"):
        make_topic(node.bootstrap, f"{unique}.{suffix}", partitions=2)
    for number in range(2):
        send(
            node.bootstrap,
            f"{unique}.from",
            [(b"%d" % at, b"v%d" % at) for at in range(500)],
            partition=number,
        )
    source = spark.read.format("anabranch").options(bootstrap=node.bootstrap, topic=f"{unique}.from").load()
    write(source, node, topic=f"{unique}.to", **{"kafka.compression.type": "zstd"})
    assert consume(node.bootstrap, f"{unique}.to", 2) == consume(node.bootstrap, f"{unique}.from", 2)


def test_a_stream_from_topic_to_topic(
    spark: "SparkSession", node: NodeProcess, unique: str, tmp_path: Path
) -> None:
    for suffix in ("from", "to"):
        make_topic(node.bootstrap, f"{unique}.{suffix}")

    def run() -> None:
        source = spark.readStream.format("anabranch").options(
            bootstrap=node.bootstrap, topic=f"{unique}.from", startingOffsets="earliest"
        )
        sink = source.load().select("key", "value").writeStream.format("anabranch")
        query = (
            sink.options(bootstrap=node.bootstrap, topic=f"{unique}.to")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(90)

    for start in (0, 100):
        sent = [(b"%d" % at, b"v%d" % at) for at in range(start, start + 100)]
        send(node.bootstrap, f"{unique}.from", sent)
        run()
    found = [row[2] for row in consume(node.bootstrap, f"{unique}.to")]
    assert found == [b"v%d" % at for at in range(200)]


@pytest.mark.parametrize(
    ("schema", "options", "complaint"),
    [
        ("v string", {"topic": "t"}, "A column value is needed, of type string or binary; there are v"),
        ("value int", {"topic": "t"}, "The column value must be of type binary or string, not int"),
        (
            "value string, partition bigint",
            {"topic": "t"},
            "The column partition must be of type int, not bigint",
        ),
        ("value string", {}, "Where to\\? Give the option topic"),
        ("value string", {"topic": "t", "kafka.acks": "0"}, "kafka.acks is not an option here"),
    ],
)
def test_what_cannot_be_written_is_refused_before_a_task_runs(
    spark: "SparkSession", node: NodeProcess, schema: str, options: dict[str, str], complaint: str
) -> None:
    frame = spark.createDataFrame([], schema)
    with pytest.raises(Exception, match=complaint):
        write(frame, node, **options)


def test_overwriting_a_topic_is_refused(spark: "SparkSession", node: NodeProcess) -> None:
    frame = spark.createDataFrame([("v",)], "value string")
    with pytest.raises(Exception, match="appended to a topic, never overwritten"):
        frame.write.format("anabranch").options(bootstrap=node.bootstrap, topic="t").mode("overwrite").save()


# --- without Spark -------------------------------------------------------------------------------------------------


def batch_of(**columns: Any) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_pydict(columns)


def test_a_record_that_is_not_acknowledged_fails_the_task(node: NodeProcess, unique: str) -> None:
    make_topic(node.bootstrap, unique)
    options = WriterOptions(node.bootstrap, unique, {})
    batch = batch_of(value=[b"v"], partition=_int32([9]))
    with pytest.raises(
        PipelineError, match=f"A record for {unique} was not acknowledged: .*[Uu]nknown partition"
    ):
        write_all(options, ("value", "partition"), [batch])


def test_a_broker_that_is_away_fails_the_task() -> None:
    options = WriterOptions("127.0.0.1:1", "t", {"delivery.timeout.ms": "500", "linger.ms": "0"})
    with pytest.raises(PipelineError, match="was not acknowledged"):
        write_all(options, ("value",), [batch_of(value=[b"v"])])


def test_more_rows_than_the_producers_queue_holds(node: NodeProcess, unique: str) -> None:
    make_topic(node.bootstrap, unique)
    options = WriterOptions(node.bootstrap, unique, {"queue.buffering.max.messages": "100"})
    batch = batch_of(value=[b"%d" % number for number in range(1000)])
    assert write_all(options, ("value",), [batch, batch]) == Written(2000)
    assert len(consume(node.bootstrap, unique)) == 2000


def test_a_row_without_a_topic_is_refused(node: NodeProcess) -> None:
    with pytest.raises(PipelineError, match="A row has no topic"):
        write_all(
            WriterOptions(node.bootstrap, None, {}),
            ("value", "topic"),
            [batch_of(value=[b"v"], topic=_text([None]))],
        )


@pytest.mark.parametrize("milliseconds", [0, -1, -5000])
def test_a_time_that_the_producer_cannot_send_is_refused(node: NodeProcess, milliseconds: int) -> None:
    import pyarrow as pa

    times = pa.array([milliseconds * 1000], pa.timestamp("us", "UTC"))
    with pytest.raises(PipelineError, match=f"timestamp is {milliseconds} ms"):
        write_all(
            WriterOptions(node.bootstrap, "t", {}),
            ("value", "timestamp"),
            [batch_of(value=[b"v"], timestamp=times)],
        )


def test_columns_are_used_in_their_own_order() -> None:
    kinds = {"timestamp": "timestamp", "value": "string", "other": "int", "key": "binary"}
    assert checked_columns(kinds, "t") == ("value", "key", "timestamp")
    with pytest.raises(
        OptionError, match="The column timestamp must be of type timestamp, not timestamp_ntz"
    ):
        checked_columns({**kinds, "timestamp": "timestamp_ntz"}, "t")


def _int32(numbers: list[int]) -> Any:
    import pyarrow as pa

    return pa.array(numbers, pa.int32())


def _text(texts: list[str | None]) -> Any:
    import pyarrow as pa

    return pa.array(texts, pa.string())
