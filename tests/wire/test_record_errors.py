"""Which records of a refused batch were at fault (KIP-467), in every version of Produce that can say it."""

import time
from typing import Any

import pytest

from anabranch.record.builder import BatchBuilder
from anabranch.record.compression import Codec
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.raw_client import RawClient, produce_body

pytestmark = pytest.mark.usefixtures("others_served")

HOUR_MS = 3_600_000


def batch(*records: tuple[bytes | None, int], codec: Codec = Codec.NONE) -> bytes:
    """Records by key and distance from now."""
    builder = BatchBuilder(codec=codec)
    now_ms = time.time_ns() // 1_000_000
    for key, ahead_ms in records:
        builder.add(key, b"v", timestamp_ms=now_ms + ahead_ms)
    return bytes(builder.build())


def produced(client: RawClient, topic: str, records: bytes, version: int = 9) -> dict[str, Any]:
    body = produce_body(topic, 0, records)
    if version >= 13:
        rows = client.ask(ApiKey.METADATA, 12, {"topics": [{"name": topic}]})["topics"]
        body["topic_data"][0] = {**body["topic_data"][0], "topic_id": rows[0]["topic_id"]}
    answer = client.ask(ApiKey.PRODUCE, version, body)
    row: dict[str, Any] = answer["responses"][0]["partition_responses"][0]
    return row


def places(row: dict[str, Any]) -> list[int]:
    return [each["batch_index"] for each in row["record_errors"]]


@pytest.fixture
def compacted(client: RawClient, topic: str) -> str:
    name = f"{topic}-c"
    client.create_topic(name, cleanup_policy="compact")
    return name


@pytest.mark.parametrize("version", [8, 9, 12, 13])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_records_without_a_key_are_named(
    client: RawClient, compacted: str, version: int, codec: Codec
) -> None:
    row = produced(client, compacted, batch((b"a", 0), (None, 0), (b"b", 0), (None, 0), codec=codec), version)
    assert row["error_code"] == E.INVALID_RECORD
    assert places(row) == [1, 3]
    assert all("key" in each["batch_index_error_message"] for each in row["record_errors"])
    assert "2 of the batch (at 1, 3)" in row["error_message"]
    assert client.end_offset(compacted) == 0
    assert produced(client, compacted, batch((b"a", 0), (b"b", 0)), version)["record_errors"] == []


@pytest.mark.parametrize("ahead_ms", [2 * HOUR_MS, -2 * HOUR_MS])
def test_records_out_of_time_are_named(client: RawClient, topic: str, ahead_ms: int) -> None:
    name = f"{topic}-t"
    client.create_topic(name, message_timestamp_before_max_ms=str(HOUR_MS))
    row = produced(client, name, batch((b"a", 0), (b"b", ahead_ms), (None, 0)))
    assert row["error_code"] == E.INVALID_TIMESTAMP
    assert places(row) == [1]
    assert "message.timestamp" in row["error_message"]


def test_one_wrong_time_decides_the_code_and_both_records_are_named(
    client: RawClient, compacted: str
) -> None:
    row = produced(client, compacted, batch((None, 0), (b"b", 2 * HOUR_MS), (b"c", 0)))
    assert row["error_code"] == E.INVALID_TIMESTAMP
    assert places(row) == [0, 1]


def test_no_single_record_is_blamed_for_a_broken_batch(client: RawClient, compacted: str) -> None:
    broken = bytearray(batch((b"a", 0), (b"b", 0)))
    broken[-1] ^= 1
    row = produced(client, compacted, bytes(broken))
    assert (row["error_code"], row["record_errors"]) == (E.CORRUPT_MESSAGE, [])


def test_large_batches_of_wrong_records_name_a_bounded_number_of_them(
    client: RawClient, compacted: str
) -> None:
    """Looked at in a worker, because they are large; compressed, they are a few kilobytes."""
    builder = BatchBuilder(codec=Codec.ZSTD)
    now_ms = time.time_ns() // 1_000_000
    for _ in range(30_000):
        builder.add(None, None, timestamp_ms=now_ms)
    row = produced(client, compacted, bytes(builder.build()))
    assert row["error_code"] == E.INVALID_RECORD
    assert places(row) == list(range(10_000))
    assert "30000 of the batch" in row["error_message"]
