"""A Kafka client that sends exactly what it is told, right or wrong, and blocks until it is answered."""

import socket
import struct
import time
from typing import Any

from anabranch.record.builder import BatchBuilder
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import decode_response, encode_request
from anabranch.wire.header import parse_response_header, request_header

TIMEOUT_SECONDS = 10.0


class ClosedByBroker(Exception):
    """The broker closed the connection."""


def batch_of(*values: bytes, **fields: Any) -> bytes:
    """One batch with these values, stamped now; `fields` are the builder's."""
    builder = BatchBuilder(**fields)
    for value in values:
        builder.add(b"key", value, timestamp_ms=time.time_ns() // 1_000_000)
    return bytes(builder.build())


def produce_body(topic: str, partition: int, batch: bytes | None, acks: int = -1) -> dict[str, Any]:
    """A Produce request for one partition, by topic name."""
    rows = [{"index": partition, "records": batch}]
    return {"acks": acks, "timeout_ms": 10_000, "topic_data": [{"name": topic, "partition_data": rows}]}


def fetch_body(topic: str, partition: int, offset: int, wait_ms: int = 0) -> dict[str, Any]:
    """A Fetch request for one partition, by topic name, without a session."""
    row = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 2**20}
    topics = [{"topic": topic, "partitions": [row]}]
    return {"max_wait_ms": wait_ms, "min_bytes": 1, "max_bytes": 2**22, "topics": topics}


class RawClient:
    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self.sock = socket.create_connection((host, int(port)), TIMEOUT_SECONDS)
        self._correlation_id = 0

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send_bytes(self, data: bytes) -> None:
        self.sock.sendall(data)

    def send_frame(self, frame: bytes) -> None:
        self.send_bytes(struct.pack(">i", len(frame)) + frame)

    def receive_exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                chunk = self.sock.recv(count - len(data))
            except ConnectionError as error:
                raise ClosedByBroker from error
            if not chunk:
                raise ClosedByBroker
            data += chunk
        return bytes(data)

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self.receive_exactly(4))
        return self.receive_exactly(size)

    def receive_all(self) -> bytes:
        """Everything until the broker closes."""
        data = bytearray()
        while True:
            try:
                chunk = self.sock.recv(65536)
            except ConnectionError:
                return bytes(data)
            if not chunk:
                return bytes(data)
            data += chunk

    def send(self, api_key: int, version: int, body: dict[str, Any]) -> int:
        self._correlation_id += 1
        header = request_header(api_key, version, self._correlation_id, "raw")
        self.send_frame(header + encode_request(api_key, version, body))
        return self._correlation_id

    def receive(self, api_key: int, version: int, correlation_id: int | None = None) -> dict[str, Any]:
        """The next answer, which must be the one to the last request unless told otherwise."""
        frame = self.receive_frame()
        answered, body = parse_response_header(frame, 0, len(frame), api_key, version)
        assert answered == (self._correlation_id if correlation_id is None else correlation_id)
        return decode_response(api_key, version, frame, body, len(frame))

    def ask(self, api_key: int, version: int, body: dict[str, Any]) -> dict[str, Any]:
        self.send(api_key, version, body)
        return self.receive(api_key, version)

    def produce(self, topic: str, partition: int, batch: bytes | None, acks: int = -1) -> dict[str, Any]:
        """The partition's row of a Produce v9 answer."""
        answer = self.ask(ApiKey.PRODUCE, 9, produce_body(topic, partition, batch, acks))
        row: dict[str, Any] = answer["responses"][0]["partition_responses"][0]
        return row

    def fetch(self, topic: str, partition: int, offset: int) -> dict[str, Any]:
        """The partition's row of a Fetch v12 answer."""
        answer = self.ask(ApiKey.FETCH, 12, fetch_body(topic, partition, offset))
        row: dict[str, Any] = answer["responses"][0]["partitions"][0]
        return row

    def create_topic(self, name: str, partitions: int = 1, copies: int = 1, **configs: str) -> Any:
        """Make a topic (configs with underscores for dots); its id."""
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": copies,
            "configs": rows,
        }
        (row,) = self.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [topic]})["topics"]
        assert row["error_code"] == 0, row
        return row["topic_id"]

    def end_offset(self, topic: str, partition: int = 0) -> int:
        asked = {"partition_index": partition, "timestamp": -1}
        topics = [{"name": topic, "partitions": [asked]}]
        answer = self.ask(ApiKey.LIST_OFFSETS, 7, {"replica_id": -1, "topics": topics})
        row = answer["topics"][0]["partitions"][0]
        assert row["error_code"] == 0, row
        offset: int = row["offset"]
        return offset

    def expect_closed(self) -> None:
        """Fails unless the broker closes the connection without another word."""
        assert self.receive_all() == b""
