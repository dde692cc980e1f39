"""Topics read as streams: limits, restarts, and what happens when the topic does not stay as it was."""

import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from anabranch.pipeline.client.client import Client
from anabranch.values import TopicPartition
from support.node_process import NodeProcess
from support.topics import make_topic, send
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

STREAM_SECONDS_MAX = 90.0
"""A query on a busy machine takes its time; none of these tests is about speed."""


class Stream:
    """A query whose batches are kept as lists of (partition, offset, value)."""

    def __init__(self, spark: "SparkSession", bootstrap: str, checkpoint: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._checkpoint = checkpoint
        self.batches: list[list[tuple[int, int, bytes]]] = []
        self.query: StreamingQuery | None = None

    def start(self, *, available_now: bool = False, **options: str) -> "StreamingQuery":
        reader = self._spark.readStream.format("anabranch").options(bootstrap=self._bootstrap, **options)
        writer = reader.load().writeStream.option("checkpointLocation", str(self._checkpoint))
        trigger: dict[str, Any] = (
            {"availableNow": True} if available_now else {"processingTime": "100 milliseconds"}
        )
        self.query = writer.trigger(**trigger).foreachBatch(self._keep).start()
        return self.query

    def _keep(self, frame: "DataFrame", number: int) -> None:
        found = frame.select("partition", "offset", "value").collect()
        self.batches.append([(row.partition, row.offset, bytes(row.value)) for row in found])

    def run(self, **options: str) -> list[list[tuple[int, int, bytes]]]:
        """Everything there is now, and then the end; the batches of this run that had rows."""
        self.batches = []
        query = self.start(available_now=True, **options)
        assert query.awaitTermination(STREAM_SECONDS_MAX)
        return [batch for batch in self.batches if batch]

    def offsets(self) -> list[tuple[int, int]]:
        return sorted((number, offset) for batch in self.batches for number, offset, _ in batch)

    def wait_for(self, count: int) -> None:
        self.wait(lambda: len(self.offsets()) >= count, f"{count} rows")

    def wait(self, check: Callable[[], object], what: str) -> None:
        query = self.query
        assert query is not None

        def done() -> bool:
            assert query.isActive, f"the query ended: {query.exception()}"
            return bool(check())

        wait_until(done, what, STREAM_SECONDS_MAX)

    def wait_idle(self) -> None:
        """Until the query knows where it began, and waits for more."""
        query = self.query
        assert query is not None
        self.wait(lambda: query.status["message"].startswith("Waiting"), "an idle query")

    def failure(self) -> str:
        """What the query failed with."""
        query = self.query
        assert query is not None
        wait_until(lambda: not query.isActive, "the query to fail", STREAM_SECONDS_MAX)
        return str(query.exception())


@pytest.fixture
def stream(spark: "SparkSession", node: NodeProcess, tmp_path: Path) -> Iterator[Stream]:
    made = Stream(spark, node.bootstrap, tmp_path / "checkpoint")
    yield made
    if made.query is not None:
        made.query.stop()


def send_numbers(bootstrap: str, topic: str, start: int, end: int, partition: int = 0) -> None:
    send(bootstrap, topic, [(None, b"%d" % number) for number in range(start, end)], partition=partition)


def admin_of(bootstrap: str) -> confluent_kafka.admin.AdminClient:
    return confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = admin_of(bootstrap)
    admin.delete_topics([topic])[topic].result(15)


# --- limits and restarts -------------------------------------------------------------------------------------------


def test_a_limit_per_trigger_is_kept_and_shared_in_proportion(
    stream: Stream, node: NodeProcess, unique: str
) -> None:
    make_topic(node.bootstrap, unique, partitions=2)
    send_numbers(node.bootstrap, unique, 0, 90, 0)
    send_numbers(node.bootstrap, unique, 0, 10, 1)
    batches = stream.run(topic=unique, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    assert [len(batch) for batch in batches] == [20] * 5
    assert len([row for row in batches[0] if row[0] == 1]) == 2
    assert stream.offsets() == [(0, at) for at in range(90)] + [(1, at) for at in range(10)]


def test_available_now_goes_on_where_the_last_run_ended(
    stream: Stream, node: NodeProcess, unique: str
) -> None:
    make_topic(node.bootstrap, unique)
    send_numbers(node.bootstrap, unique, 0, 10)
    (first,) = stream.run(topic=unique, startingOffsets="earliest")
    assert [value for _, _, value in first] == [b"%d" % number for number in range(10)]
    assert stream.run(topic=unique, startingOffsets="earliest") == []
    send_numbers(node.bootstrap, unique, 10, 15)
    (second,) = stream.run(topic=unique, startingOffsets="earliest")
    assert [offset for _, offset, _ in second] == list(range(10, 15))


def test_a_stream_starts_at_the_end_unless_told_otherwise(
    stream: Stream, node: NodeProcess, unique: str
) -> None:
    make_topic(node.bootstrap, unique)
    send_numbers(node.bootstrap, unique, 0, 10)
    assert stream.run(topic=unique) == []
    send_numbers(node.bootstrap, unique, 10, 12)
    (batch,) = stream.run(topic=unique)
    assert [offset for _, offset, _ in batch] == [10, 11]


def test_an_empty_topic_is_waited_for(stream: Stream, node: NodeProcess, unique: str) -> None:
    make_topic(node.bootstrap, unique)
    stream.start(topic=unique, startingOffsets="earliest")
    stream.wait_idle()
    assert stream.offsets() == []
    send_numbers(node.bootstrap, unique, 0, 3)
    stream.wait_for(3)
    assert stream.offsets() == [(0, 0), (0, 1), (0, 2)]


def test_progress_shows_as_a_consumer_group(stream: Stream, node: NodeProcess, unique: str) -> None:
    make_topic(node.bootstrap, unique)
    send_numbers(node.bootstrap, unique, 0, 10)
    stream.start(topic=unique, startingOffsets="earliest", group=f"{unique}-group")
    place = TopicPartition(unique, 0)
    with Client(node.bootstrap) as client:
        stream.wait(
            lambda: client.committed_offsets(f"{unique}-group", [place]).get(place) == 10, "the commit"
        )


def test_admission_counts_records_and_not_the_gaps_of_compaction(
    spark: "SparkSession", tmp_path: Path
) -> None:
    with NodeProcess(tmp_path, {"log.cleaner.backoff.ms": "100"}) as node:
        make_topic(
            node.bootstrap,
            "thinned",
            cleanup_policy="compact",
            segment_bytes="16384",
            min_cleanable_dirty_ratio="0.01",
        )
        for start in range(0, 2000, 50):
            sent = [(b"k%d" % (at % 500), b"v" * 100) for at in range(start, start + 50)]
            send(node.bootstrap, "thinned", sent)
        stream = Stream(spark, node.bootstrap, tmp_path / "checkpoint")
        wait_until(lambda: _first_gap(node.bootstrap) > 500, "the cleaner", 60)
        batches = stream.run(topic="thinned", startingOffsets="earliest", maxOffsetsPerTrigger="100")
    offsets = [offset for _, offset in stream.offsets()]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == 1999
    assert max(len(batch) for batch in batches) <= 100
    assert len(batches) < 20, "by offsets it would have been one for each hundred"


def _first_gap(bootstrap: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex})
    consumer.assign([confluent_kafka.TopicPartition("thinned", 0, 0)])
    first = consumer.consume(1, 5)
    consumer.close()
    return first[0].offset() if first else 0


# --- what is new ---------------------------------------------------------------------------------------------------


def test_new_partitions_are_read_from_their_beginning(stream: Stream, node: NodeProcess, unique: str) -> None:
    make_topic(node.bootstrap, unique)
    stream.start(topic=unique)
    stream.wait_idle()
    admin = admin_of(node.bootstrap)
    admin.create_partitions([confluent_kafka.admin.NewPartitions(unique, 3)])[unique].result(15)
    send_numbers(node.bootstrap, unique, 0, 5, partition=2)
    stream.wait(lambda: [at for at in stream.offsets() if at[0] == 2] == [(2, at) for at in range(5)], "it")


def test_new_topics_that_fit_a_pattern_are_read_from_their_beginning(
    stream: Stream, node: NodeProcess, unique: str
) -> None:
    stream.start(subscribePattern=re.escape(unique) + r"\..*")
    stream.wait_idle()
    make_topic(node.bootstrap, f"{unique}.late")
    send_numbers(node.bootstrap, f"{unique}.late", 0, 5)
    stream.wait_for(5)


# --- what goes away ------------------------------------------------------------------------------------------------


def test_a_topic_deleted_under_a_query_fails_it(stream: Stream, node: NodeProcess, unique: str) -> None:
    make_topic(node.bootstrap, unique)
    send_numbers(node.bootstrap, unique, 0, 5)
    stream.start(topic=unique, startingOffsets="earliest")
    stream.wait_for(5)
    delete_topic(node.bootstrap, unique)
    assert re.search(f"DataLossError: {unique}-0 does not exist any more", stream.failure())


def test_a_topic_deleted_under_a_query_that_does_not_mind_is_read_again_when_it_is_back(
    stream: Stream, node: NodeProcess, unique: str
) -> None:
    make_topic(node.bootstrap, unique)
    send_numbers(node.bootstrap, unique, 0, 5)
    stream.start(topic=unique, startingOffsets="earliest", failOnDataLoss="false")
    stream.wait_for(5)
    delete_topic(node.bootstrap, unique)
    make_topic(node.bootstrap, unique)
    send_numbers(node.bootstrap, unique, 100, 103)
    stream.wait_for(8)
    assert sorted(int(value) for batch in stream.batches for *_, value in batch) == [
        *range(5),
        *range(100, 103),
    ]


def test_a_topic_made_again_under_its_name_is_not_mistaken_for_the_old_one(
    stream: Stream, node: NodeProcess, unique: str
) -> None:
    """It has more records than the old one had: only its identity tells."""
    make_topic(node.bootstrap, unique)
    send_numbers(node.bootstrap, unique, 0, 5)
    stream.run(topic=unique, startingOffsets="earliest")
    delete_topic(node.bootstrap, unique)
    make_topic(node.bootstrap, unique)
    send_numbers(node.bootstrap, unique, 0, 9)
    stream.start(topic=unique)
    assert f"Topic {unique} was deleted and made again under the same name" in stream.failure()


@pytest.fixture
def overtaken(stream: Stream, node: NodeProcess, unique: str) -> Stream:
    """A stream that has read 10 of 50 records, of which only the last 20 are left."""
    make_topic(node.bootstrap, unique)
    send_numbers(node.bootstrap, unique, 0, 10)
    stream.run(topic=unique, startingOffsets="earliest")
    send_numbers(node.bootstrap, unique, 10, 50)
    upto = confluent_kafka.TopicPartition(unique, 0, 30)
    admin = admin_of(node.bootstrap)
    next(iter(admin.delete_records([upto]).values())).result(10)
    return stream


def test_retention_that_outruns_the_reader_fails_the_query(overtaken: Stream, unique: str) -> None:
    overtaken.start(topic=unique)
    assert (
        f"DataLossError: {unique}-0 begins at offset 30 by now, and 10 was to be read" in overtaken.failure()
    )


def test_retention_that_outruns_a_reader_that_does_not_mind_costs_what_is_gone(
    overtaken: Stream, unique: str
) -> None:
    overtaken.run(topic=unique, failOnDataLoss="false")
    assert overtaken.offsets() == [(0, at) for at in range(30, 50)]


# --- a broker that goes away ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", ["auto", "never"])
def test_a_restart_of_the_broker_is_waited_out(spark: "SparkSession", tmp_path: Path, direct: str) -> None:
    (tmp_path / "node").mkdir()
    node = NodeProcess(tmp_path / "node")
    with node:
        make_topic(node.bootstrap, "orders")
        send_numbers(node.bootstrap, "orders", 0, 200)
        stream = Stream(spark, node.bootstrap, tmp_path / "checkpoint")
        stream.start(topic="orders", startingOffsets="earliest", maxOffsetsPerTrigger="20", direct=direct)
        stream.wait_for(40)
        node.kill()
        node.start()
        send_numbers(node.bootstrap, "orders", 200, 220)
        stream.wait_for(220)
        assert stream.query is not None
        stream.query.stop()
    assert stream.offsets() == [(0, at) for at in range(220)]


def test_a_broker_that_stays_away_fails_the_query(spark: "SparkSession", tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    with NodeProcess(tmp_path / "node") as node:
        make_topic(node.bootstrap, "orders")
        send_numbers(node.bootstrap, "orders", 0, 5)
        stream = Stream(spark, node.bootstrap, tmp_path / "checkpoint")
        stream.start(topic="orders", startingOffsets="earliest", brokerTimeoutSeconds="2")
        stream.wait_for(5)
    assert "BrokerUnreachableError" in stream.failure()


# --- options -------------------------------------------------------------------------------------------------------


def test_an_end_is_refused(stream: Stream, node: NodeProcess, unique: str) -> None:
    make_topic(node.bootstrap, unique)
    stream.start(topic=unique, endingOffsets=json.dumps({unique: {"0": 5}}))
    assert "endingOffsets is for batches" in stream.failure()
