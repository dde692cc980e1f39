"""A Kafka client that sends exactly what it is told, right or wrong, and blocks until it is answered."""

import socket
import struct
from typing import Any

from anabranch.wire.codec import decode_response, encode_request
from anabranch.wire.header import parse_response_header, request_header

TIMEOUT_SECONDS = 10.0


class ClosedByBroker(Exception):
    """The broker closed the connection."""


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

    def receive(self, api_key: int, version: int) -> dict[str, Any]:
        frame = self.receive_frame()
        correlation_id, body = parse_response_header(frame, 0, len(frame), api_key, version)
        assert correlation_id == self._correlation_id
        return decode_response(api_key, version, frame, body, len(frame))

    def ask(self, api_key: int, version: int, body: dict[str, Any]) -> dict[str, Any]:
        self.send(api_key, version, body)
        return self.receive(api_key, version)
