"""Columns through a real node: it keeps what is written from them, librdkafka reads it, a fetch is columns again."""

from collections.abc import Iterator

import confluent_kafka
import pyarrow as pa
import pytest

from anabranch.record.columns.columns import batches, columns, schema_of
from anabranch.record.compression import Codec
from support.node_process import NodeProcess
from support.raw_client import RawClient

FIELDS = ("key", "value", "headers", "offset", "timestamp")
COUNT = 1000


def table() -> pa.RecordBatch:
    rows = [
        {
            "key": None if number % 5 == 0 else b"key %d" % number,
            "value": None if number % 7 == 0 else b"value %d " % number * (number % 30),
            "headers": [{"key": "hö", "value": b"%d" % number}, {"key": "", "value": None}]
            if number % 3
            else None,
            "offset": number,
            "timestamp": (1_700_000_000_000 + number) * 1000,
        }
        for number in range(COUNT)
    ]
    return pa.RecordBatch.from_pylist(rows, schema_of(FIELDS))


def consumed(bootstrap: str, topic: str) -> Iterator[tuple[object, ...]]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    try:
        for _ in range(COUNT):
            message = consumer.poll(10)
            assert message is not None, "no more records came"
            assert message.error() is None, message.error()
            headers = [{"key": key, "value": value} for key, value in message.headers() or []]
            time_ms = message.timestamp()[1]
            yield message.key(), message.value(), headers or None, message.offset(), time_ms
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", list(Codec))
def test_rows_pass_through_a_node_unchanged(node: NodeProcess, unique: str, codec: Codec) -> None:
    rows = table()
    expected = [
        (*row[:4], row[4] // 1000)
        for row in zip(
            *(rows.column(place).to_pylist() for place in range(4)),
            rows.column("timestamp").view(pa.int64()).to_pylist(),
            strict=True,
        )
    ]
    with RawClient(node.bootstrap) as client:
        client.create_topic(unique)
        for batch in batches(rows, codec=codec, batch_bytes_max=2**14):
            assert client.produce(unique, 0, batch)["error_code"] == 0
        fetched = bytes(client.fetch(unique, 0, 0)["records"])
    assert list(consumed(node.bootstrap, unique)) == expected
    assert pa.Table.from_batches(columns(fetched, fields=FIELDS)).equals(pa.Table.from_batches([rows]))
