"""Compacted topics that go into the object store and out of it: a key that was deleted stays deleted."""

from collections.abc import Iterator

import pytest

from anabranch.record.builder import BatchBuilder
from anabranch.record.records import records_of
from anabranch.wire.api_keys import ApiKey
from support.broker_cluster import close_all
from support.form_cluster import LATEST, FormCluster

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
}
CLEANED_MS = 40_000
"""Enough for two runs of the cleaner: the first one gives a deletion its time, the second finds that it has come."""


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


def send(cluster: FormCluster, key: bytes, value: bytes | None) -> None:
    builder = BatchBuilder()
    builder.add(key, value, timestamp_ms=cluster.clock.wall_ms())
    rows = [{"index": 0, "records": bytes(builder.build())}]
    topics = [{"name": "t", "partition_data": rows}]
    body = {"transactional_id": None, "acks": -1, "timeout_ms": 5000, "topic_data": topics}

    def work(leader: int) -> int:
        answer = cluster.ask(leader, ApiKey.PRODUCE, 9, body)
        return int(answer["responses"][0]["partition_responses"][0]["error_code"])

    cluster._retried(0, work)


def held(cluster: FormCluster) -> dict[bytes, bytes]:
    """What a reader that begins now knows at the end."""
    known: dict[bytes, bytes] = {}
    at, end = 0, cluster.offset(LATEST)
    while at < end:
        data, position = cluster.fetch(at)["records"] or b"", 0
        if not data:
            break
        while position < len(data):
            size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
            batch = data[position : position + size]
            for record in records_of(batch):
                assert record.key is not None
                known.pop(bytes(record.key), None)
                if record.value is not None:
                    known[bytes(record.key)] = bytes(record.value)
            at = int.from_bytes(batch[:8], "big") + int.from_bytes(batch[23:27], "big") + 1
            position += size
    return known


def clean(cluster: FormCluster) -> None:
    """Let segments roll, and the cleaner run over them."""
    for number in range(3):
        cluster.run(2000)
        send(cluster, b"other", b"%d" % number)
        cluster.run(CLEANED_MS)


def test_a_key_that_was_deleted_after_its_topic_left_the_store_does_not_come_back() -> None:
    cluster = FormCluster("object", **COMPACTED)
    send(cluster, b"gone", b"1")
    send(cluster, b"stays", b"1")
    cluster.alter("ring")
    cluster.until(lambda: cluster.is_done("kept"))
    send(cluster, b"gone", None)
    clean(cluster)
    expected = {b"stays": b"1", b"other": b"2"}
    assert held(cluster) == expected
    cluster.alter("object")
    cluster.until(lambda: cluster.is_done("stored"))
    assert held(cluster) == expected
