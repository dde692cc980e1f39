"""Many at once: a thousand subscribers hear everything in order, many small writers become few batches, and one that
stops reading costs no more than it was granted."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.clients.socket_subscribers import SECONDS_MAX, crowd
from bench.clients.socket_writers import run
from bench.measure import resident_mb

from anabranch.record.batch import BatchHeader, batch_spans, read_header
from anabranch.record.compression import Codec
from support.node_process import NodeProcess
from support.raw_client import RawClient
from support.raw_socket import RawSocket
from support.waiting import wait_until

SUBSCRIBERS = 1000
RECORDS = 200
WRITERS = 100
IDLE_SUBSCRIBERS = 10
BACKLOG_MB = 64
SUBSCRIBER_MB = 1


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    settings = {"http": "127.0.0.1:0", "gateway.subscriber.bytes.max": str(SUBSCRIBER_MB * 2**20)}
    with NodeProcess(tmp_path_factory.mktemp("node"), settings) as node:
        yield node


def http_port(node: NodeProcess) -> int:
    return int(str(node.ready["http"]).rpartition(":")[2])


def test_thousand_subscribers_each_hear_every_record_in_order(node: NodeProcess) -> None:
    with RawClient(node.bootstrap) as client:
        client.create_topic("crowd")
    work = crowd(http_port(node), "crowd", SUBSCRIBERS, RECORDS)
    assert asyncio.run(asyncio.wait_for(work, SECONDS_MAX))["deliveries"] == SUBSCRIBERS * RECORDS


def test_small_writers_become_few_compressed_batches(node: NodeProcess) -> None:
    with RawClient(node.bootstrap) as client:
        client.create_topic("gathered")
    answer = asyncio.run(run(http_port(node), "gathered", WRITERS, 100, seconds=1.5, warm_up=0.5))
    (path,) = (node.data_folder / "gathered-0").glob("*.log")
    headers = _headers(path)
    records = sum(header.record_count for header in headers)
    assert records >= answer["records"] > 0
    assert all(header.codec != Codec.NONE for header in headers)
    assert records / len(headers) >= 20, f"{records} records in {len(headers)} batches"


def _headers(path: Path) -> list[BatchHeader]:
    data = path.read_bytes()
    return [read_header(data, start) for start, _ in batch_spans(data)]


def test_subscriber_that_stops_reading_costs_bounded_memory(node: NodeProcess) -> None:
    """Each is sent as much as its socket and its share of memory take; what else waits lies in the log."""
    topic = "unread"
    with RawClient(node.bootstrap) as client:
        client.create_topic(topic)
        _fill(node, topic)
        links = [RawSocket(str(node.ready["http"]), receive_bytes=4096) for _ in range(IDLE_SUBSCRIBERS)]
        before_mb = resident_mb(node.pid)
        try:
            for link in links:
                message = {"type": "subscribe", "id": 1, "topic": topic, "from": "earliest", "credit": 10**9}
                link.say(message)
                assert link.hear()["type"] == "subscribed"
            with RawSocket(str(node.ready["http"])) as reader:
                _read_all(reader, topic)  # Whoever reads is not held up by those who do not.
            grown_mb = resident_mb(node.pid) - before_mb
        finally:
            for link in links:
                link.link.close()
        # The fan-out's own share of memory for all subscribers together, and what each may have unsent.
        assert grown_mb < 64 + IDLE_SUBSCRIBERS * 2 * SUBSCRIBER_MB, f"grown by {grown_mb:.0f} MB"
        wait_until(lambda: client.end_offset(topic) == BACKLOG_MB * 4, "the node to answer")


def _fill(node: NodeProcess, topic: str) -> None:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": node.bootstrap})
    for number in range(BACKLOG_MB * 4):
        producer.produce(topic, b"%08d" % number + b"x" * (256 * 1024 - 8))
        producer.poll(0)
    assert producer.flush(60) == 0


def _read_all(reader: RawSocket, topic: str) -> None:
    reader.say({"type": "subscribe", "id": 1, "topic": topic, "from": "earliest", "credit": 10**9})
    assert reader.hear()["type"] == "subscribed"
    expected = 0
    while expected < BACKLOG_MB * 4:
        for record in reader.hear_of("records")["records"]:
            assert int(record["offset"]) == int(record["value"][:8]) == expected
            expected += 1
