"""A topic in mode branch as a source: `_branch` says which branch a record was written to, whichever way it came, and
limits count records although offsets jump from one branch to the next."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka
import confluent_kafka.admin
import pytest

from anabranch.pipeline.source.options import reader_options
from anabranch.pipeline.source.planner import Planner
from support.node_process import SETTINGS, NodeProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "branched"
COUNTS = {0: 40, 1024: 25, 2048: 5}
"""How many records each branch has, one after the other."""
STREAM_SECONDS_MAX = 90.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("branched"), {**SETTINGS, "log.retention.ms": "-1"}) as node:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.bootstrap})
        config = {"anabranch.mode": "branch", "segment.bytes": "2048"}
        new = confluent_kafka.admin.NewTopic(TOPIC, 1, 1, config=config)
        admin.create_topics([new])[TOPIC].result(20)
        for lane, count in COUNTS.items():
            if lane:
                node.stop()
                node.start()
            fill(node, lane, count)
        yield node


def fill(node: NodeProcess, lane: int, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": node.bootstrap, "batch.num.messages": 3})
    for number in range(count):
        producer.produce(TOPIC, b"%d/%d " % (lane, number) + b"x" * 400, partition=0)
    assert producer.flush(30) == 0


def rows(frame: "DataFrame") -> list[tuple[str | None, int, str]]:
    found = frame.select("_branch", "offset", "value").collect()
    return [(row._branch, row.offset, bytes(row.value).split()[0].decode()) for row in found]


EXPECTED = [
    (str(lane), (lane << 32) + number, f"{lane}/{number}")
    for lane, count in COUNTS.items()
    for number in range(count)
]


@pytest.mark.parametrize("way", ["never", "auto", "require"])
def test_every_record_says_its_branch_whichever_way_it_came(
    spark: "SparkSession", node: NodeProcess, way: str
) -> None:
    frame = spark.read.format("anabranch").options(bootstrap=node.bootstrap, topic=TOPIC, direct=way).load()
    assert sorted(rows(frame), key=lambda row: row[1]) == EXPECTED
    counted = {row._branch: row["count"] for row in frame.groupBy("_branch").count().collect()}
    assert counted == {str(lane): count for lane, count in COUNTS.items()}


def test_sealed_files_of_every_branch_are_read_without_the_broker(node: NodeProcess) -> None:
    options = reader_options({"bootstrap": node.bootstrap, "topic": TOPIC, "direct": "auto"})
    with closing(Planner(options)) as planner:
        (task,) = planner.batch_ranges()
    lanes = {Path(stretch.file.path).parent.name for stretch in task.stretches if stretch.file is not None}
    assert lanes == {"lane-0000000000", "lane-0000001024", "lane-0000002048"}
    assert task.size == sum(COUNTS.values())


def test_tasks_share_the_records_alike(node: NodeProcess) -> None:
    options = reader_options({"bootstrap": node.bootstrap, "topic": TOPIC, "minPartitions": "7"})
    with closing(Planner(options)) as planner:
        assert [task.size for task in planner.batch_ranges()] == [10] * 7


def test_a_branch_is_read_as_a_topic_of_its_own(spark: "SparkSession", node: NodeProcess) -> None:
    frame = spark.read.format("anabranch").options(bootstrap=node.bootstrap, topic=f"{TOPIC}@1024").load()
    assert sorted(rows(frame), key=lambda row: row[1]) == EXPECTED[:65]


def test_a_stream_takes_as_many_records_as_it_may_across_branches(
    spark: "SparkSession", node: NodeProcess, tmp_path: Path
) -> None:
    batches: list[list[tuple[str | None, int, str]]] = []
    reader = spark.readStream.format("anabranch").options(
        bootstrap=node.bootstrap, topic=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger="30"
    )
    writer = reader.load().writeStream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    query = writer.foreachBatch(lambda frame, _: batches.append(rows(frame))).start()
    assert query.awaitTermination(STREAM_SECONDS_MAX)
    assert [len(batch) for batch in batches if batch] == [30, 30, 10]
    assert sorted((row for batch in batches for row in batch), key=lambda row: row[1]) == EXPECTED
