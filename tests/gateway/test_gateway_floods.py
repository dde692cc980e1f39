"""Clients that send more than anybody would: the node bounds what it costs, and nobody else waits for it."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.gateway.http import bodies, doorkeeper, protocol, web
from anabranch.gateway.http.doorkeeper import Doorkeeper
from anabranch.gateway.http.protocol import BoundedProtocol
from anabranch.gateway.websocket import protocol as socket_protocol
from anabranch.gateway.websocket import session as socket_session
from anabranch.gateway.websocket.protocol import Incoming, SocketProtocol
from anabranch.gateway.websocket.session import SocketSession
from anabranch.testing import EmbeddedBroker
from support.gateway_client import all_of, ask, gateway_broker, raw
from support.raw_socket import CONTINUATION, PING, TEXT, RawSocket, frame
from support.waiting import wait_until

UPGRADE = (
    b"host: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with gateway_broker() as broker:
        broker.create_topic("t")
        yield broker


@pytest.fixture
def link(broker: EmbeddedBroker) -> Iterator[RawSocket]:
    assert broker.http_address is not None
    with RawSocket(broker.http_address) as link:
        yield link


@pytest.mark.parametrize("piece", [b"", b" "])
def test_message_in_countless_pieces_is_refused(link: RawSocket, piece: bytes) -> None:
    link.send_frame(TEXT, b"{", final=False)
    with contextlib.suppress(ConnectionError):
        link.link.sendall(frame(CONTINUATION, piece, final=False) * 10_000)
    assert link.closed()[0] == 1009


def test_message_in_a_few_pieces_is_taken(link: RawSocket) -> None:
    text = b'{"type": "publish", "id": 1, "topic": "t", "value": "whole"}'
    link.send_frame(TEXT, text[:1], final=False)
    for index in range(1, len(text)):
        link.send_frame(CONTINUATION, text[index : index + 1], final=index == len(text) - 1)
    assert link.hear()["type"] == "published"


def test_tiny_frames_are_read_a_little_at_a_time(link: RawSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    received = SocketProtocol.data_received

    def noted(self: SocketProtocol, data: bytes) -> None:
        read.append(len(data))
        received(self, data)

    monkeypatch.setattr(SocketProtocol, "data_received", noted)
    flood = frame(PING, b"") * 30_000
    link.link.sendall(flood)
    link.say({"type": "publish", "id": 1, "topic": "t"})
    link.hear_of("published")
    assert sum(read) >= len(flood)
    assert max(read) <= socket_protocol.READ_BYTES_MAX


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /v1/ws HTTP/1.1\r\n" + UPGRADE + b"content-length: 5\r\n\r\nhello", b"400"),
        (b"POST /v1/topics/t/records HTTP/1.1\r\n" + UPGRADE + b"content-length: 5\r\n\r\nhello", b"400"),
        (b"GET /v1/ws HTTP/1.1\r\n" + UPGRADE + b"cookie: " + b"c" * 9000 + b"\r\n\r\n", b"431"),
        (b"GET /v1/ws?" + b"q" * 9000 + b" HTTP/1.1\r\n" + UPGRADE + b"\r\n", b"414"),
    ],
)
def test_handshake_that_the_library_leaves_unanswered_is_refused(
    broker: EmbeddedBroker, head: bytes, status: bytes
) -> None:
    with raw(broker) as link:
        link.sendall(head)
        assert all_of(link).startswith(b"HTTP/1.1 " + status + b" ")


HANDSHAKE = b"GET /v1/ws HTTP/1.1\r\n" + UPGRADE + b"\r\n"
CHUNKED_POST = (
    b"POST /v1/topics/t/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize(
    "behind", [HANDSHAKE * 50, b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n", frame(PING, b"")]
)
def test_bytes_behind_a_handshake_are_served_by_nobody(broker: EmbeddedBroker, behind: bytes) -> None:
    """Each handshake of one packet used to make a WebSocket of its own, of which only one ever ended."""
    with raw(broker) as link:
        link.sendall(HANDSHAKE + behind)
        answers = all_of(link)
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert answers.count(b"HTTP/1.1 ") == 1
    wait_until(lambda: connections(broker) == 1, "every connection to be forgotten")


def test_handshake_behind_a_request_that_is_answered_later_is_refused(broker: EmbeddedBroker) -> None:
    with raw(broker) as link:
        link.sendall(CHUNKED_POST)
        link.sendall(b"5\r\nhello\r\n0\r\n\r\n" + HANDSHAKE)
        assert b"HTTP/1.1 101 " not in all_of(link)
    wait_until(lambda: connections(broker) == 1, "every connection to be forgotten")


def test_handshake_behind_an_answer_that_is_not_taken_is_refused(broker: EmbeddedBroker) -> None:
    """What the WebSocket sends would pile up behind it: nobody would tell its protocol that there is no room."""
    with raw(broker, receive_bytes=4096) as link:
        # Twice, as the system may hold one of them for the client.
        link.sendall(request_of_a_large_answer(broker) * 2 + HANDSHAKE)
        link.settimeout(10)
        answers = b""
        with contextlib.suppress(ConnectionResetError):
            while b"HTTP/1.1 101 " not in answers and (piece := link.recv(65536)):
                answers = answers[-20:] + piece
    assert b"HTTP/1.1 101 " not in answers
    wait_until(lambda: connections(broker) == 1, "every connection to be forgotten")


def request_of_a_large_answer(broker: EmbeddedBroker, more: bytes = b"") -> bytes:
    """Four megabytes in one piece: ten thousand errors, each with the name of the topic."""
    topic = b"t" * 240
    if topic.decode() not in broker.topics():
        broker.create_topic(topic.decode())
    body = b"[" + b",".join([b'{"partition":9}'] * 10_000) + b"]"
    return (
        b"POST /v1/topics/%s/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n%s"
        b"content-length: %d\r\n\r\n%s" % (topic, more, len(body), body)
    )


@pytest.mark.parametrize(
    "refused",
    [
        b"GET /v1/topics HTTP/1.1\r\nhost: evil.example\r\n\r\n",
        b"GET /v1/topics/no%20name HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"OPTIONS /v1/topics HTTP/1.1\r\nhost: localhost\r\naccess-control-request-method: GET\r\n\r\n",
    ],
)
def test_refusal_that_nobody_takes_is_given_up(
    broker: EmbeddedBroker, refused: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorkeeper, "SEND_SECONDS_MAX", 0.4)
    monkeypatch.setattr(doorkeeper, "CROWDED_SECONDS", 0.2)
    with raw(broker, receive_bytes=4096) as link:
        link.sendall(request_of_a_large_answer(broker) + refused)
        wait_until(lambda: connections(broker) == 2, "the connection")
        wait_until(lambda: connections(broker) == 1, "the connection to be given up")
    metrics = ask(broker, "GET", "/metrics").body
    assert b'reason="ANSWER_NOT_TAKEN"' in metrics
    assert b'reason="DEFECT"' not in metrics


@pytest.mark.parametrize("more", [b"connection: close\r\n", b""])
def test_last_answer_that_nobody_takes_is_given_up(more: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "UNSENT_SECONDS_MAX", 0.3)
    monkeypatch.setattr(web, "KEEP_ALIVE_SECONDS", 1)
    with gateway_broker() as broker, raw(broker, receive_bytes=4096) as link:
        link.sendall(request_of_a_large_answer(broker, more))
        wait_until(lambda: connections(broker) == 2, "the connection")
        wait_until(lambda: connections(broker) == 1, "the connection to be given up")


def test_client_that_closes_its_side_and_takes_nothing_is_given_up(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "UNSENT_SECONDS_MAX", 0.3)
    with raw(broker, receive_bytes=4096) as link:
        link.sendall(request_of_a_large_answer(broker))
        wait_until(lambda: link.recv(1, socket.MSG_PEEK) == b"H", "the answer to begin")
        link.shutdown(socket.SHUT_WR)
        wait_until(lambda: connections(broker) == 1, "the connection to be given up")


def test_handshake_behind_an_answered_request_is_taken(broker: EmbeddedBroker) -> None:
    with raw(broker) as link:
        link.sendall(HEALTH + HANDSHAKE)
        answers = b""
        while b"HTTP/1.1 101 " not in answers:
            answers += link.recv(65536)
    assert answers.startswith(b"HTTP/1.1 200 ")


def test_unfinished_messages_of_many_sockets_are_bounded_together(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_protocol, "INCOMING_BYTES_MAX", 400_000)
    seen: set[Incoming] = set()
    received = SocketProtocol.data_received

    def noted(self: SocketProtocol, data: bytes) -> None:
        received(self, data)
        seen.add(self.incoming)

    monkeypatch.setattr(SocketProtocol, "data_received", noted)
    assert broker.http_address is not None
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(RawSocket(broker.http_address)) for _ in range(5)]
        for each in links[:4]:
            each.link.sendall(frame(TEXT, b"x" * 200_000)[:90_000])
        wait_until(lambda: sum(each.bytes_held for each in seen) >= 350_000, "what was sent")
        links[4].link.sendall(frame(TEXT, b"x" * 200_000)[:90_000])
        assert links[4].closed()[0] == 1013
        links[0].link.close()
        with RawSocket(broker.http_address) as small:
            small.say({"type": "publish", "id": 1, "topic": "t"})
            assert small.hear()["type"] == "published"
    wait_until(lambda: sum(each.bytes_held for each in seen) == 0, "all of it to be forgotten")


WAITING = b"GET /v1/topics/t/partitions/0/records?from=latest&wait_ms=%d HTTP/1.1\r\nhost: localhost\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


def test_requests_that_wait_for_the_one_before_them_are_bounded(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a few KiB the connection is not read any further until there is an answer."""
    waiting: list[int] = []
    received = BoundedProtocol.data_received

    def noted(self: BoundedProtocol, data: bytes) -> None:
        received(self, data)
        waiting.append(len(self._unparsed))

    monkeypatch.setattr(BoundedProtocol, "data_received", noted)
    count = 20_000
    with raw(broker) as link:
        sending = threading.Thread(target=lambda: link.sendall(WAITING % 500 + HEALTH * count))
        sending.start()
        answers = b""
        while answers.count(b"HTTP/1.1 200 ") <= count:
            answers += link.recv(65536)
        sending.join()
    assert max(waiting) <= protocol.READ_AHEAD_BYTES_MAX + protocol.READ_BYTES_MAX


def test_requests_sent_ahead_on_many_connections_are_bounded_together(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "READ_AHEAD_TOTAL_BYTES_MAX", 20_000)
    ahead = HEALTH * 300
    with contextlib.ExitStack() as stack:
        first, second, third = (stack.enter_context(raw(broker)) for _ in range(3))
        first.sendall(WAITING % 20_000 + ahead)
        wait_until(lambda: figure(broker, "anabranch_gateway_arrived_bytes") == len(ahead), "what was sent")
        second.sendall(WAITING % 20_000 + ahead)
        assert all_of(second) == b""
        third.sendall(WAITING % 300 + HEALTH)
        answers = b""
        while answers.count(b"HTTP/1.1 200 ") < 2:
            answers += third.recv(4096)
        assert figure(broker, "anabranch_gateway_arrived_bytes") == len(ahead)
    wait_until(lambda: figure(broker, "anabranch_gateway_arrived_bytes") == 0, "all of it to be forgotten")


def test_body_of_a_get_is_not_kept(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = bodies_kept(monkeypatch)
    with raw(broker) as link:
        poll = WAITING.replace(b"\r\n\r\n", b"\r\ncontent-length: 1000000\r\n\r\n")
        link.sendall(poll % 300 + b"x" * 1_000_000 + HEALTH)
        answers = b""
        while answers.count(b"HTTP/1.1 200 ") < 2:
            answers += link.recv(4096)
    assert max(kept) == 0


def test_body_of_a_get_is_bounded(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PASS_OVER_BYTES_MAX", 100_000)
    with raw(broker) as link:
        poll = WAITING.replace(b"\r\n\r\n", b"\r\ncontent-length: 1000000\r\n\r\n")
        link.sendall(poll % 20_000 + b"x" * 110_000)
        assert all_of(link) == b""


def test_body_that_nobody_asks_for_yet_is_bounded_and_counted(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = bodies_kept(monkeypatch)
    may_ask = asyncio.Event()
    serve = Doorkeeper.__call__

    async def noted(self: Doorkeeper, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            await may_ask.wait()
        await serve(self, scope, receive, send)

    monkeypatch.setattr(Doorkeeper, "__call__", noted)
    body = b"x" * 1_000_000
    with raw(broker) as link:
        head = b"POST /v1/topics/t/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n"
        sending = threading.Thread(
            target=lambda: link.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        )
        sending.start()
        wait_until(
            lambda: figure(broker, "anabranch_gateway_arrived_bytes") > bodies.FREE_BYTES, "it to arrive"
        )
        broker._running().call(may_ask.set)
        assert link.recv(100).startswith(b"HTTP/1.1 200 ")
        sending.join()
        assert figure(broker, "anabranch_gateway_arrived_bytes") == 0
    assert max(kept) <= bodies.FREE_BYTES + protocol.READ_BYTES_MAX


def test_body_that_nobody_asks_for_is_forgotten_with_its_connection(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = Doorkeeper.__call__
    may_end = asyncio.Event()

    async def noted(self: Doorkeeper, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            await may_end.wait()
        await serve(self, scope, receive, send)

    monkeypatch.setattr(Doorkeeper, "__call__", noted)
    with raw(broker) as link:
        link.sendall(b"POST /v1/topics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n12345")
        wait_until(lambda: figure(broker, "anabranch_gateway_arrived_bytes") == 5, "it to arrive")
    wait_until(lambda: figure(broker, "anabranch_gateway_arrived_bytes") == 0, "it to be forgotten")
    broker._running().call(may_end.set)


def bodies_kept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes of a body that nobody has asked for are kept, after each piece."""
    kept: list[int] = []
    received = BoundedProtocol.on_body

    def noted(self: BoundedProtocol, body: bytes) -> None:
        received(self, body)
        kept.append(len(self.cycle.body))

    monkeypatch.setattr(BoundedProtocol, "on_body", noted)
    return kept


def test_requests_sent_all_at_once_are_begun_one_per_connection(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one turn of the loop: parsing all that many clients have sent would hold up everybody else."""
    connections, each = 20, 60
    turns = [0]
    begun = BoundedProtocol.on_headers_complete

    def end_turn() -> None:
        turns.append(0)

    def noted(self: BoundedProtocol) -> None:
        if not turns[-1]:
            asyncio.get_running_loop().call_soon(end_turn)
        turns[-1] += 1
        begun(self)

    monkeypatch.setattr(BoundedProtocol, "on_headers_complete", noted)
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(raw(broker)) for _ in range(connections)]
        is_sent = threading.Event()
        holding = threading.Thread(target=lambda: broker._running().call(lambda: is_sent.wait(20)))
        holding.start()
        for link in links:
            link.sendall(HEALTH * each)
        is_sent.set()
        holding.join()
        wait_until(lambda: sum(turns) == connections * each, "all requests")
    assert max(turns) <= connections + protocol.BEGUN_AT_ONCE + protocol.PIPELINED_AT_ONCE


def test_reader_that_goes_before_its_answers_are_written_causes_no_warnings(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.create_topic(broker.unused_name("large"))
    for _ in range(4):
        value = {"Content-Type": "application/octet-stream"}
        assert ask(broker, "POST", f"/v1/topics/{topic}/records", b"x" * 1_000_000, value).status == 200
    target = f"/v1/topics/{topic}/partitions/0/records?max_bytes=8000000"
    with raw(broker, receive_bytes=4096) as link:
        link.sendall(f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode() * 20)
        assert link.recv(100).startswith(b"HTTP/1.1 200 ")
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: connections(broker) == 1, "the connection to be forgotten")
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_reader_behind_an_answered_request_ends_with_its_client(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the task of the request before it is not done yet when it begins."""
    serve = Doorkeeper.__call__
    has_begun, has_ended, first_is_done = asyncio.Event(), threading.Event(), threading.Event()

    async def noted(self: Doorkeeper, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/v1/topics":
            has_begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                has_ended.set()
        await serve(self, scope, receive, send)
        if scope["path"] == "/first":
            await has_begun.wait()
            asyncio.get_running_loop().call_soon(first_is_done.set)

    monkeypatch.setattr(Doorkeeper, "__call__", noted)
    with raw(broker) as link:
        for path in (b"/first", b"/v1/topics"):
            link.sendall(b"GET %s HTTP/1.1\r\nhost: localhost\r\n\r\n" % path)
        assert first_is_done.wait(20)
    assert has_ended.wait(20)


def connections(broker: EmbeddedBroker) -> int:
    """With the one that asks."""
    return figure(broker, "anabranch_gateway_connections")


def figure(broker: EmbeddedBroker, name: str) -> int:
    lines = ask(broker, "GET", "/metrics").body.decode().splitlines()
    return next(int(float(line.split(" ")[1])) for line in lines if line.startswith(f"{name} "))


def test_requests_one_behind_the_other_are_answered_in_order(broker: EmbeddedBroker) -> None:
    with raw(broker) as link:
        link.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * 10)
        link.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        answers = all_of(link)
    assert answers.count(b"HTTP/1.1 200 OK") == 11
    assert answers.rstrip().endswith(b"/metrics  /healthz")


def test_messages_that_come_at_once_leave_others_their_turn(
    broker: EmbeddedBroker, link: RawSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the loop: whoever else asks for it meanwhile gets it before all of them are dealt with."""
    taken: list[str] = []
    take = SocketSession._take

    async def noted(self: SocketSession, text: str) -> None:
        if not taken:
            asyncio.get_running_loop().call_soon(lambda: taken.append("somebody else"))
        taken.append("message")
        await take(self, text)

    monkeypatch.setattr(SocketSession, "_take", noted)
    link.link.sendall(frame(TEXT, b"{}") * 300)
    wait_until(lambda: taken.count("message") == 300, "all messages")
    assert taken.index("somebody else") <= 2 * socket_session.TURN_MESSAGES


def test_connections_that_come_at_once_are_taken_a_few_at_a_time(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []
    made = BoundedProtocol.connection_made
    is_new_turn = True

    def end_turn() -> None:
        nonlocal is_new_turn
        is_new_turn = True

    def noted(self: BoundedProtocol, transport: asyncio.Transport) -> None:
        nonlocal is_new_turn
        if is_new_turn:
            is_new_turn = False
            turns.append(0)
            asyncio.get_running_loop().call_soon(end_turn)
        turns[-1] += 1
        made(self, transport)

    assert ask(broker, "GET", "/healthz").status == 200
    monkeypatch.setattr(BoundedProtocol, "connection_made", noted)
    is_open = threading.Event()
    holding = threading.Thread(target=lambda: broker._running().call(lambda: is_open.wait(20)))
    holding.start()
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(raw(broker))
        is_open.set()
        holding.join()
        wait_until(lambda: sum(turns) == 100, "all connections")
    assert max(turns) <= web.ACCEPTED_AT_ONCE


def test_defect_in_a_message_closes_its_socket_and_is_written_down(
    broker: EmbeddedBroker,
    link: RawSocket,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a defect")

    link.say({"type": "publish", "id": 1, "topic": "t"})
    link.hear_of("published")
    monkeypatch.setattr(socket_session, "message_of", broken)
    link.say({"type": "publish", "id": 2, "topic": "t"})
    assert link.closed()[0] == 1011
    assert "a WebSocket met something unexpected" in caplog.text
    assert ask(broker, "GET", "/healthz").status == 200
