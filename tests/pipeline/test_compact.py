"""A topic compacted by a Spark job on a real node: the last values stay, and the node has the last word."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from anabranch.errors import PipelineError, UnknownTopicOrPartitionError
from anabranch.pipeline.jobs.compact import compact_topic, plan_tasks
from anabranch.pipeline.jobs.compact_partition import await_outcome, offer_compacted
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import records_of
from support.node_process import NodeProcess
from support.raw_client import RawClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
KEYS = 50
ROUNDS = 40
# The cleaner is off: whatever is compacted here, the job has compacted.
SETTINGS = {"log.cleaner.enable": "false", "log.cleaner.backoff.ms": "50"}
Table = dict[tuple[int, bytes], bytes | None]


@pytest.fixture(scope="module")
def quiet_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("quiet-node"), SETTINGS) as node:
        yield node


def fill(node: NodeProcess, topic: str, **configs: str) -> None:
    """Every key again and again, over several segments and all codecs; some are deleted in the end."""
    with RawClient(node.bootstrap) as client:
        client.create_topic(
            topic, PARTITIONS, **{"cleanup_policy": "compact", "segment_bytes": "6000", **configs}
        )
        for number in range(ROUNDS):
            for partition in range(PARTITIONS):
                builder = BatchBuilder(codec=number % 5)
                for key in range(number % 3, KEYS, 1 + number % 3):
                    value = (
                        None if number == ROUNDS - 5 and key % 7 == 0 else b"%d of %d " % (number, key) * 5
                    )
                    timestamp_ms = 1_700_000_000_000 + number
                    builder.add(
                        b"key %d" % key, value, [("round", b"%d" % number)], timestamp_ms=timestamp_ms
                    )
                assert client.produce(topic, partition, bytes(builder.build()))["error_code"] == 0


def read(node: NodeProcess, topic: str) -> tuple[Table, int]:
    """The last value of each key as a reader from the beginning sees it, and how many records that took."""
    table: Table = {}
    count = 0
    with RawClient(node.bootstrap) as client:
        for partition in range(PARTITIONS):
            offset = 0
            while records := bytes(client.fetch(topic, partition, offset)["records"] or b""):
                for start, end in batch_spans(records):
                    batch = records[start:end]
                    offset = read_header(batch).next_offset
                    for record in records_of(batch):
                        assert record.key is not None
                        table[partition, record.key] = record.value
                        count += 1
    return table, count


def test_a_job_compacts_every_partition_and_loses_no_last_value(
    spark: "SparkSession", quiet_node: NodeProcess, unique: str
) -> None:
    fill(quiet_node, unique)
    before, count = read(quiet_node, unique)
    done = compact_topic(spark, quiet_node.bootstrap, unique)
    assert [(each.partition, each.taken, each.reason) for each in done] == [(0, True, ""), (1, True, "")]
    after, left = read(quiet_node, unique)
    assert after == before
    assert left < count / 3
    assert all(each.bytes_after < each.bytes_before / 3 for each in done)
    again = compact_topic(spark, quiet_node.bootstrap, unique)
    assert [each.offer_id for each in again] == ["", ""]
    assert all("not compacted before" in each.reason for each in again)
    quiet_node.kill()
    quiet_node.start()
    assert read(quiet_node, unique) == (after, left)


def test_an_offer_made_while_the_node_was_down_is_taken_when_it_is_up(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, SETTINGS) as node:
        fill(node, "t")
        before, count = read(node, "t")
        tasks = plan_tasks(node.bootstrap, "t")
        node.kill()
        offered = [offer_compacted(task) for task in tasks]
        node.start()
        settled = [
            await_outcome(task.folder, each, time.monotonic() + 30)
            for task, each in zip(tasks, offered, strict=True)
        ]
        assert [each.taken for each in settled] == [True, True]
        after, left = read(node, "t")
        assert after == before
        assert left < count


def test_an_offer_that_was_changed_on_its_way_is_refused_and_the_log_is_as_it_was(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, SETTINGS) as node:
        fill(node, "t")
        before = read(node, "t")
        task = plan_tasks(node.bootstrap, "t")[0]
        node.kill()
        offered = offer_compacted(task)
        spoiled = max((Path(task.folder) / "offered").glob("*.log"), key=lambda path: path.stat().st_size)
        spoiled.write_bytes(b"".join(_batches(spoiled.read_bytes())[:-1]))
        node.start()
        settled = await_outcome(task.folder, offered, time.monotonic() + 30)
        assert (settled.taken, "missing" in settled.reason) == (False, True)
        assert read(node, "t")[0] == before[0]


def _batches(data: bytes) -> list[bytes]:
    return [data[start:end] for start, end in batch_spans(data)]


def test_what_cannot_be_compacted_is_refused_before_spark_starts(
    quiet_node: NodeProcess, unique: str
) -> None:
    with RawClient(quiet_node.bootstrap) as client:
        client.create_topic(unique, 1)
    with pytest.raises(PipelineError, match=r"cleanup\.policy is delete"):
        plan_tasks(quiet_node.bootstrap, unique)
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic"):
        plan_tasks(quiet_node.bootstrap, "there_is_no_such_topic")
