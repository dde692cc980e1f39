"""Spark over topics in an object store: batches and streams straight out of a folder and a bucket, while the broker
hands out not one record."""

import json
import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from anabranch.pipeline.jobs.merge import plan_merges, run_merge
from support.node_process import NodeProcess
from support.s3_server import CREDENTIALS
from support.topics import make_topic, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 3
COUNT = 300
STREAM_SECONDS_MAX = 180
SETTINGS = {"object.gather.ms": "40", "log.cleaner.enable": "false", "http": "127.0.0.1:0"}


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[NodeProcess, dict[str, str]]]:
    """A node with a store, and the options to read it with: tasks have no credentials in their environment."""
    url = f"file://{tmp_path}/store"
    options: dict[str, str] = {}
    if request.param == "bucket":
        url = request.getfixturevalue("s3_url")
        secrets = tmp_path / "credentials"
        secrets.write_text("".join(f"{name}={value}\n" for name, value in CREDENTIALS.items()))
        os.chmod(secrets, 0o600)
        options = {"credentialsFile": str(secrets)}
    with NodeProcess(tmp_path, {**SETTINGS, "object.store": url}) as node:
        yield node, {"bootstrap": node.bootstrap, "topic": "orders", **options}


def bytes_out(node: NodeProcess) -> float:
    """Of records that were fetched."""
    with urllib.request.urlopen(f"http://{node.ready['http']}/metrics", timeout=30) as answer:
        found = re.search(
            r"^anabranch_bytes_out_total(?:\{.*\})? (\S+)$", answer.read().decode(), re.MULTILINE
        )
    assert found is not None
    return float(found[1])


def rows(frame: "DataFrame") -> list[dict[str, Any]]:
    found = [row.asDict(recursive=True) for row in frame.collect()]
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def test_batches_and_streams_come_out_of_the_store_alone(
    spark: "SparkSession", store: tuple[NodeProcess, dict[str, str]], tmp_path: Path
) -> None:
    node, options = store
    make_topic(node.bootstrap, "orders", PARTITIONS, anabranch_mode="object")
    for start in range(0, COUNT, 100):
        send(node.bootstrap, "orders", [(b"%d" % at, b"v" * 50) for at in range(start, start + 100)])
    batch = spark.read.format("anabranch").options(**options, includeHeaders="true")
    expected = rows(batch.option("direct", "never").load())
    assert len(expected) == COUNT
    before = bytes_out(node)
    assert before > 0

    frame = batch.option("direct", "require").load()
    assert rows(frame) == expected
    assert frame.rdd.getNumPartitions() == 1  # They share their objects.

    found: list[dict[str, Any]] = []
    stream = spark.readStream.format("anabranch").options(**options, direct="require", includeHeaders="true")
    query = (
        stream.options(startingOffsets="earliest", maxOffsetsPerTrigger="120")
        .load()
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .foreachBatch(lambda each, _: found.extend(rows(each)))
        .start()
    )
    assert query.awaitTermination(STREAM_SECONDS_MAX)
    assert sorted(found, key=lambda row: (row["partition"], row["offset"])) == expected

    credentials = options.get("credentialsFile")
    (task,) = plan_merges(node.bootstrap, ["orders"], credentials)
    assert run_merge(task).replaced == PARTITIONS
    bounds = json.dumps({"orders": {str(number): 17 for number in range(PARTITIONS)}})
    merged = batch.options(direct="require", startingOffsets=bounds, minPartitions="5").load()
    assert rows(merged) == [row for row in expected if row["offset"] >= 17]
    assert bytes_out(node) == before
