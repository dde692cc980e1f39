"""Ranges and tables back into topics."""

import json
from dataclasses import replace

import confluent_kafka
import pytest

from anabranch.pipeline.jobs.replay import TableReplay, TopicReplay
from anabranch.pipeline.jobs.run import run_pipeline
from anabranch.pipeline.jobs.topics import TopicAddress
from anabranch.pipeline.lake.settings import PipelineSettings
from support.lake_tables import read_rows
from support.reading import read_all
from support.topics import make_topic, send

START_MS = 1_700_000_000_000
RECORDS = 60


@pytest.fixture
def filled(node, unique):
    """A topic of two partitions with keys, nulls, headers and times."""
    make_topic(node.bootstrap, unique, 2)
    producer = confluent_kafka.Producer({"bootstrap.servers": node.bootstrap})
    for number in range(RECORDS):
        producer.produce(
            unique,
            value=None if number % 7 == 0 else b"value %d" % number,
            key=None if number % 5 == 0 else b"key %d" % number,
            partition=number % 2,
            timestamp=START_MS + number,
            headers=[("n", b"%d" % number), ("nothing", None)] if number % 3 else None,
        )
    assert producer.flush(30) == 0
    return unique


def offsets(topic, *numbers):
    return json.dumps({topic: {str(partition): offset for partition, offset in enumerate(numbers)}})


def without_place(records):
    return sorted((one.key or b"", one.value or b"", one.timestamp_ms, str(one.headers)) for one in records)


def test_range_keeps_keys_values_headers_and_times(spark, node, filled):
    make_topic(node.bootstrap, f"{filled}.copy", 3)
    replay = TopicReplay(
        TopicAddress(node.bootstrap, filled), offsets(filled, 5, 0), offsets(filled, 20, 30), 2
    )
    assert replay.run(spark, TopicAddress(node.bootstrap, f"{filled}.copy")) == 45
    wanted = [one for one in read_all(node.bootstrap, filled) if one.partition == 1 or 5 <= one.offset < 20]
    assert without_place(read_all(node.bootstrap, f"{filled}.copy")) == without_place(wanted)


def test_partitions_are_kept_if_asked_for(spark, node, filled):
    make_topic(node.bootstrap, f"{filled}.copy", 2)
    source = TopicAddress(node.bootstrap, filled)
    replay = TopicReplay(source, offsets(filled, 0, 0), offsets(filled, 30, 30), 2, keep_partitions=True)
    assert replay.run(spark, TopicAddress(node.bootstrap, f"{filled}.copy")) == RECORDS
    for number in range(2):
        wanted = [one for one in read_all(node.bootstrap, filled) if one.partition == number]
        found = [one for one in read_all(node.bootstrap, f"{filled}.copy") if one.partition == number]
        assert without_place(found) == without_place(wanted)


@pytest.mark.parametrize("kind", ["iceberg", "delta", "parquet"])
def test_table_becomes_records(spark, node, unique, tmp_path, kind):
    make_topic(node.bootstrap, unique)
    make_topic(node.bootstrap, f"{unique}.copy")
    rows = [{"id": number, "city": "ab"[number % 2], "more": {"n": [number]}} for number in range(50)]
    send(node.bootstrap, unique, ((b"%d" % row["id"], json.dumps(row).encode()) for row in rows))
    settings = PipelineSettings(
        node.bootstrap, unique, str(tmp_path), "cities", to=kind, once=True, partition_by=("city",)
    )
    assert run_pipeline(spark, settings).written == 50
    replay = TableReplay(settings, key="id", timestamp="_timestamp")
    assert replay.run(spark, TopicAddress(node.bootstrap, f"{unique}.copy")) == 50
    found = {one.key: json.loads(one.value) for one in read_all(node.bootstrap, f"{unique}.copy")}
    assert found == {b"%d" % row["id"]: row for row in rows}
    before = sorted(one.timestamp_ms for one in read_all(node.bootstrap, unique))
    assert sorted(one.timestamp_ms for one in read_all(node.bootstrap, f"{unique}.copy")) == before


def test_table_goes_through_a_topic_into_another_table(spark, node, unique, tmp_path):
    make_topic(node.bootstrap, unique)
    make_topic(node.bootstrap, f"{unique}.copy")
    send(node.bootstrap, unique, [(b"a", b'{"n": 1}'), (b"b", b'{"n": 2, "o": {"x": [1]}}'), (b"c", b"{}")])
    first = PipelineSettings(node.bootstrap, unique, str(tmp_path), "first", to="parquet", once=True)
    again = replace(first, topic=f"{unique}.copy", table="again")
    assert run_pipeline(spark, first).written == 3
    assert TableReplay(first, "_key", "_timestamp").run(spark, TopicAddress(node.bootstrap, again.topic)) == 3
    counts = run_pipeline(spark, again)
    assert (counts.written, counts.dlq) == (3, 0)
    names = ["_key", "_timestamp", "n", "o"]
    before, after = (sorted(map(str, read_rows(one).select(names).to_pylist())) for one in (first, again))
    assert after == before
