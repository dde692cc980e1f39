"""A broker with its HTTP port in the test's process, and a small HTTP client to ask it."""

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

from anabranch.testing import EmbeddedBroker

TIMEOUT_SECONDS = 20.0


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    """By names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of an error."""
        return str(self.json["error"]["code"])

    @property
    def lines(self) -> list[Any]:
        """Of NDJSON."""
        return [json.loads(line) for line in self.body.splitlines()]


@contextlib.contextmanager
def gateway_broker(**settings: object) -> Iterator[EmbeddedBroker]:
    """Settings with underscores for dots."""
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    with EmbeddedBroker(settings={"http": "127.0.0.1:0", **dotted}) as broker:
        yield broker


def ask(
    broker: EmbeddedBroker,
    method: str,
    target: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """One request on a connection of its own. A body that is not bytes is sent as JSON."""
    headers = dict(headers or {})
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        headers.setdefault("Content-Type", "application/json")
    assert broker.http_address is not None
    link = http.client.HTTPConnection(broker.http_address, timeout=TIMEOUT_SECONDS)
    try:
        link.request(method, target, body, headers)
        answer = link.getresponse()
        return Answer(
            answer.status, {name.lower(): held for name, held in answer.getheaders()}, answer.read()
        )
    finally:
        link.close()


def raw(broker: EmbeddedBroker, receive_bytes: int | None = None) -> socket.socket:
    """A connection to send whatever one likes; with a small buffer for what comes, if so wanted."""
    assert broker.http_address is not None
    host, _, port = broker.http_address.rpartition(":")
    link = socket.socket()
    if receive_bytes is not None:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    link.settimeout(TIMEOUT_SECONDS)
    link.connect((host, int(port)))
    return link


def all_of(link: socket.socket) -> bytes:
    """What comes until the other side closes."""
    found = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := link.recv(65536):
            found += piece
    return bytes(found)
