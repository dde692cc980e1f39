"""Clients that stop reading, or are gone without a word: they cost little, for a while, and harm nobody."""

import base64
import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from anabranch.gateway.http import web
from anabranch.gateway.http.web import Web
from anabranch.gateway.read.fan_out import BUDGET_BYTES
from anabranch.gateway.websocket import protocol as socket_protocol
from anabranch.gateway.websocket.sockets import Sockets
from anabranch.testing import EmbeddedBroker
from support.gateway_client import gateway_broker, raw
from support.socket_client import socket_client
from support.waiting import wait_until

UNSENT_BYTES_MAX = 200_000
PING_SECONDS = 0.2

Result = TypeVar("Result")


def stalling_socket(broker: EmbeddedBroker, *messages: dict[str, object]) -> socket.socket:
    """A WebSocket that says these messages and then neither reads nor speaks."""
    link = raw(broker)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    key = base64.b64encode(os.urandom(16)).decode()
    link.sendall(
        b"GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key.encode() + b"\r\n\r\n"
    )
    assert link.recv(12) == b"HTTP/1.1 101"
    for message in messages:
        link.sendall(frame(0x81, json.dumps(message).encode()))
    return link


def frame(head: int, data: bytes) -> bytes:
    """From a client, masked with zeros."""
    length = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return bytes([head]) + length + bytes(4) + data


def served(broker: EmbeddedBroker, look: Callable[[Web, Sockets], Result]) -> Result:
    """What the node's web server knows, asked in its own thread."""

    def looked() -> Result:
        node = broker._running().node
        assert node is not None
        assert node._http is not None
        found = node._http._web
        assert found is not None
        assert found.gateway.sockets is not None
        return look(found, found.gateway.sockets)

    return broker._running().call(looked)


def unsent_bytes(broker: EmbeddedBroker) -> list[int]:
    """Of each connection: in its buffer, and held for it."""

    def look(web: Web, sockets: Sockets) -> list[int]:
        held = max((session.outlet.held_bytes for session in sockets.sessions), default=0)
        return [each.transport.get_write_buffer_size() + held for each in web._state.connections]

    return served(broker, look)


def buffered_bytes(web: Web, sockets: Sockets) -> list[int]:
    return [each.transport.get_write_buffer_size() for each in web._state.connections]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with gateway_broker(gateway_subscriber_bytes_max=UNSENT_BYTES_MAX) as broker:
        yield broker


def test_subscribers_that_stop_reading_cost_bounded_memory_and_the_others_get_everything(
    broker: EmbeddedBroker,
) -> None:
    topic = broker.create_topic("stalls", partitions=3)
    subscribe: dict[str, object] = {"type": "subscribe", "id": "s", "topic": topic, "credit": 10**9}
    links = [stalling_socket(broker, subscribe) for _ in range(20)]
    with socket_client(broker) as lively:
        lively.subscribe("s", topic, credit=10**9)
        wait_until(
            lambda: served(broker, lambda _, sockets: subscriptions(sockets)) == 21, "21 subscriptions"
        )
        highest = 0
        for number in range(360):
            broker.produce(topic, [b"x" * 30_000], partition=number % 3)
            highest = max(highest, *unsent_bytes(broker))
        assert len(lively.records(360)) == 360
        assert 50_000 < highest <= UNSENT_BYTES_MAX
        assert served(broker, lambda _, sockets: sockets.fan_out.bytes_at_hand) <= BUDGET_BYTES
    for link in links:
        link.close()
    wait_until(lambda: served(broker, lambda _, sockets: len(sockets.sessions)) == 0, "sessions to end")


def subscriptions(sockets: Sockets) -> int:
    return sum(session.subscriptions for session in sockets.sessions)


def test_one_who_reads_on_after_a_while_misses_nothing(broker: EmbeddedBroker) -> None:
    topic = broker.create_topic("pauses")
    with socket_client(broker, max_queue=1) as client:
        client.subscribe("s", topic, credit=10**9)
        for _ in range(100):
            broker.produce(topic, [b"x" * 50_000])
        assert [int(record["offset"]) for record in client.records(100)] == list(range(100))


def test_pings_of_one_who_reads_nothing_fill_no_memory(broker: EmbeddedBroker) -> None:
    topic = broker.create_topic("pings")
    subscribe: dict[str, object] = {"type": "subscribe", "id": "s", "topic": topic, "from": "earliest"}
    wait_until(lambda: served(broker, lambda _, sockets: len(sockets.sessions)) == 0, "the others to be gone")
    with stalling_socket(broker, subscribe) as link:
        fill(broker, topic)
        for _ in range(100):
            link.sendall(frame(0x89, b"x" * 120) * 100)  # More than a megabyte of pongs, were they sent.
        link.sendall(frame(0x81, b'{"type": "credit", "id": "s", "records": 1000000}'))
        wait_until(lambda: served(broker, lambda _, sockets: granted(sockets)) > 500_000, "the grant")
        assert max(unsent_bytes(broker)) <= UNSENT_BYTES_MAX


def fill(broker: EmbeddedBroker, topic: str) -> None:
    """Write until a client that does not read has all that the node has room for."""
    for _ in range(100):
        broker.produce(topic, [b"x" * 40_000 for _ in range(5)])
        if max(served(broker, buffered_bytes), default=0) > 50_000:
            return
    pytest.fail("twenty megabytes have gone to somebody who does not read")


def granted(sockets: Sockets) -> int:
    (session,) = sockets.sessions
    return session._running["s"]._subscription.credit


def test_a_publisher_that_reads_no_answers_is_not_read_any_more(broker: EmbeddedBroker) -> None:
    topic = broker.create_topic("deaf")
    link = stalling_socket(broker)
    message = frame(0x81, json.dumps({"type": "publish", "id": "x" * 100, "topic": topic}).encode())
    link.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        for _ in range(1000):
            link.sendall(message * 500)
        pytest.fail("the node has taken 500,000 messages of one who reads no answers")
    assert max(unsent_bytes(broker)) <= UNSENT_BYTES_MAX
    link.close()
    wait_until(lambda: served(broker, lambda _, sockets: len(sockets.sessions)) == 0, "sessions to end")


def test_one_who_answers_no_ping_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "PING_SECONDS", PING_SECONDS)
    with gateway_broker() as broker, stalling_socket(broker):
        wait_until(lambda: served(broker, lambda web, _: not web._state.connections), "the cut")
        assert served(broker, lambda _, sockets: len(sockets.sessions)) == 0


def test_one_who_answers_no_ping_is_cut_off_though_a_close_would_never_reach_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket_protocol, "CLOSING_SECONDS_MAX", PING_SECONDS)
    with gateway_broker() as broker:
        topic = broker.create_topic("half-open")
        with stalling_socket(broker, {"type": "subscribe", "id": "s", "topic": topic, "from": "earliest"}):
            fill(broker, topic)
            served(broker, lambda web, _: [each.keepalive_timeout() for each in web._state.connections])
            wait_until(lambda: served(broker, lambda web, _: not web._state.connections), "the cut")
            wait_until(lambda: served(broker, lambda _, sockets: not sockets.sessions), "the session's end")


def test_a_node_stops_without_a_word_though_a_client_does_not_read(caplog: pytest.LogCaptureFixture) -> None:
    with gateway_broker() as broker:
        topic = broker.create_topic("stops")
        with stalling_socket(broker, {"type": "subscribe", "id": "s", "topic": topic}):
            wait_until(
                lambda: served(broker, lambda _, sockets: subscriptions(sockets)) == 1, "the subscription"
            )
            fill(broker, topic)
            with caplog.at_level("WARNING"):
                broker.restart()
            assert caplog.text == ""
