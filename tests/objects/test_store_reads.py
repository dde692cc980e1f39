"""A node that was restarted reads from S3 through a proxy: what faults of GET do to consumers, and how few it takes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.objects.layout.snapshots import GROUPS, METADATA
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.records import records_of
from anabranch.testing.store_proxy import StoreProxy, Trouble
from anabranch.wire.api_keys import ApiKey
from support.raw_client import RawClient, batch_of, fetch_body
from support.s3_server import S3Server
from support.wire_node import WireNode

TOPIC = "read"
PARTITIONS = 4
OBJECTS = 5
VALUES = {
    partition: [b"%d-%d" % (partition, number) for number in range(OBJECTS)]
    for partition in range(PARTITIONS)
}
SETTINGS = {"object.timeout.ms": "1000", "object.cache.disk.bytes": "0"}


class RecordProxy(StoreProxy):
    """Counts the requests for records apart from those for snapshots, which a node reads back when it has written
    one."""

    def _strike(self, kind: str, head: bytes) -> Trouble | None:
        line = head.partition(b"\r\n")[0]
        if any(f"/{folder}".encode() in line for folder in (METADATA, GROUPS)):
            self.requests[kind] -= 1
            return None
        return super()._strike(kind, head)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[StoreProxy]:
    with RecordProxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def node(tmp_path: Path, s3_server: S3Server, s3_bucket: str, proxy: StoreProxy) -> Iterator[WireNode]:
    """With records of each partition in each of a few objects, none of which it has in memory."""
    url = s3_server.url(s3_bucket, "reads", proxy.endpoint)
    with WireNode(tmp_path, {**SETTINGS, "object.store": url}) as node:
        with RawClient(node.bootstrap) as client:
            client.create_topic(TOPIC, PARTITIONS, anabranch_mode="object")
            for number in range(OBJECTS):
                batches = {partition: batch_of(VALUES[partition][number]) for partition in range(PARTITIONS)}
                produce_together(client, batches)
        node.stop()
        node.start()
        proxy.requests.clear()
        yield node


def produce_together(client: RawClient, batches: dict[int, bytes]) -> None:
    """One request, and so one object."""
    rows = [{"index": partition, "records": batch} for partition, batch in batches.items()]
    data = [{"name": TOPIC, "partition_data": rows}]
    body = {"transactional_id": None, "acks": -1, "timeout_ms": 10_000, "topic_data": data}
    answer = client.ask(ApiKey.PRODUCE, 9, body)
    assert {row["error_code"] for row in answer["responses"][0]["partition_responses"]} == {0}


def fetch(client: RawClient, partition: int, offset: int) -> dict[str, Any]:
    answer = client.ask(ApiKey.FETCH, 12, fetch_body(TOPIC, partition, offset, wait_ms=500))
    row: dict[str, Any] = answer["responses"][0]["partitions"][0]
    return row


def consume(client: RawClient, tries_max: int = 200) -> dict[int, list[bytes]]:
    """All partitions in turn until everything is here; no answer may be an error, or out of order."""
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    for _ in range(tries_max):
        for partition, values in found.items():
            row = fetch(client, partition, len(values))
            assert row["error_code"] == 0
            data = bytes(row["records"] or b"")
            for first, end in batch_spans(data):
                assert read_header(data, first).base_offset == len(values)
                values += [bytes(record.value or b"") for record in records_of(data[first:end])]
        if all(len(values) == OBJECTS for values in found.values()):
            break
    return found


def test_partitions_of_one_object_share_its_get(node: WireNode, proxy: StoreProxy) -> None:
    with RawClient(node.bootstrap) as client:
        assert consume(client) == VALUES
        assert proxy.requests["GET"] == OBJECTS
        assert consume(client) == VALUES
        assert proxy.requests["GET"] == OBJECTS


@pytest.mark.parametrize("trouble", [Trouble.ERROR, Trouble.TOO_MANY, Trouble.CUT_ANSWER, Trouble.DEAF])
def test_a_get_that_fails_a_few_times_only_delays(
    node: WireNode, proxy: StoreProxy, trouble: Trouble
) -> None:
    times = 1 if trouble is Trouble.DEAF else 3  # Each time it is deaf costs a whole time-out.
    proxy.fail(trouble, kind="GET", times=times)
    with RawClient(node.bootstrap) as client:
        assert consume(client) == VALUES
    assert proxy.struck[trouble] == times
    assert node.is_alive


def test_a_store_that_is_away_leaves_fetches_empty_and_is_said_once_each_way(
    node: WireNode, proxy: StoreProxy
) -> None:
    position = node.log_size()
    proxy.refuse()
    with RawClient(node.bootstrap) as client:
        for _ in range(5):
            row = fetch(client, 0, 0)
            assert (row["error_code"], row["high_watermark"], row["records"] or b"") == (0, OBJECTS, b"")
        proxy.heal()
        assert consume(client) == VALUES
    told = [line for line in node.log_since(position) if "the object store" in line]
    assert sum("so what is not in a cache cannot be read" in line for line in told) <= 1
    assert sum("answers again" in line for line in told) <= 1
