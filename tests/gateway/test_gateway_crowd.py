"""Many at once: a thousand subscribers hear everything in order, many small writers become few batches, and one that
stops reading costs no more than it was granted."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.clients.socket_writers import HANDSHAKE, TEXT, frame, frames_of, run
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
OFFSETS = re.compile(rb'"offset":"(\d+)"')
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


class Subscriber(asyncio.Protocol):
    """Counts what it hears, and checks that it is the next."""

    def __init__(self, port: int, topic: str, count: int) -> None:
        self._port = port
        self._message = json.dumps(
            {"type": "subscribe", "id": 1, "topic": topic, "credit": 2**31 - 1}
        ).encode()
        self._count = count
        self._buffer = bytearray()
        self._is_open = False
        self.next_offset = 0
        loop = asyncio.get_running_loop()
        self.subscribed: asyncio.Future[None] = loop.create_future()
        self.heard_all: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(HANDSHAKE.format(port=self._port).encode())

    def connection_lost(self, error: Exception | None) -> None:
        for each in (self.subscribed, self.heard_all):
            if not each.done():
                each.set_exception(ConnectionError(f"lost after {self.next_offset} records"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._is_open:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            assert self._buffer.startswith(b"HTTP/1.1 101"), bytes(self._buffer)
            del self._buffer[: end + 4]
            self._is_open = True
            self.transport.write(frame(TEXT, self._message))
        for opcode, payload in frames_of(self._buffer):
            if opcode == TEXT:
                self._hear(payload)

    def _hear(self, payload: bytes) -> None:
        if b'"type":"subscribed"' in payload:
            self.subscribed.set_result(None)
            return
        assert b'"type":"records"' in payload, payload
        offsets = [int(each) for each in OFFSETS.findall(payload)]
        assert offsets == list(range(self.next_offset, self.next_offset + len(offsets)))
        self.next_offset += len(offsets)
        if self.next_offset == self._count:
            self.heard_all.set_result(None)


async def _crowd(node: NodeProcess, topic: str) -> list[int]:
    """How many records each has heard."""
    loop, port = asyncio.get_running_loop(), http_port(node)
    crowd = [
        (await loop.create_connection(lambda: Subscriber(port, topic, RECORDS), "127.0.0.1", port))[1]
        for _ in range(SUBSCRIBERS)
    ]
    try:
        await asyncio.gather(*(each.subscribed for each in crowd))
        publishing = asyncio.create_task(asyncio.to_thread(_publish, node, topic))
        await asyncio.gather(*(each.heard_all for each in crowd), publishing)
        return [each.next_offset for each in crowd]
    finally:
        for each in crowd:
            each.transport.abort()


def _publish(node: NodeProcess, topic: str) -> None:
    """In several bursts, so that they are heard in many messages and not in one."""
    with RawSocket(str(node.ready["http"])) as link:
        for number in range(RECORDS):
            link.say({"type": "publish", "id": number, "topic": topic, "value": f"record {number}"})
            if number % 20 == 19:
                for _ in range(20):
                    assert link.hear()["type"] == "published"


def test_thousand_subscribers_each_hear_every_record_in_order(node: NodeProcess) -> None:
    with RawClient(node.bootstrap) as client:
        client.create_topic("crowd")
    assert asyncio.run(asyncio.wait_for(_crowd(node, "crowd"), 120)) == [RECORDS] * SUBSCRIBERS


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
