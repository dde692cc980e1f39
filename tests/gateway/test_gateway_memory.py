"""What clients of the gateway can make it keep has a cap, an owner, and leaves with its client."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from anabranch.gateway import gateway
from anabranch.gateway.http import bodies
from anabranch.gateway.read import header_filter
from anabranch.gateway.read.header_filter import BYTES_MAX, VALUES_MAX
from anabranch.testing import EmbeddedBroker
from support.gateway_client import all_of, ask, gateway_broker, raw
from support.raw_socket import RawSocket
from support.waiting import wait_until

SOCKET_BYTES_MAX = 256 * 1024
NODE_BYTES_MAX = 1024 * 1024
PER_IP = 12


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    settings = {
        "gateway_socket_subscription_bytes_max": SOCKET_BYTES_MAX,
        "gateway_subscription_bytes_max": NODE_BYTES_MAX,
        "max_connections_per_ip": PER_IP,
    }
    with gateway_broker(**settings) as broker:
        broker.create_topic("t")
        broker.create_topic("wide", 200)
        yield broker


@pytest.fixture
def link(broker: EmbeddedBroker) -> Iterator[RawSocket]:
    assert broker.http_address is not None
    with RawSocket(broker.http_address) as link:
        yield link


def figure(broker: EmbeddedBroker, name: str) -> int:
    lines = ask(broker, "GET", "/metrics").body.decode().splitlines()
    return next(int(float(line.split(" ")[1])) for line in lines if line.startswith(f"{name} "))


def subscription_bytes(broker: EmbeddedBroker) -> int:
    return figure(broker, "anabranch_gateway_subscription_bytes")


def one_of(values: list[str]) -> dict[str, Any]:
    return {"header": "h", "one_of": values}


# --- filters ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (
            {"or": [one_of([f"{part}{each:x}" for each in range(1000)]) for part in range(60)]},
            str(VALUES_MAX),
        ),
        ({"header": "h", "equals": "x" * BYTES_MAX}, "gateway.filter.bytes.max"),
        ({"header": "h" * BYTES_MAX, "exists": True}, "gateway.filter.bytes.max"),
        ({"or": [{"header": "h" * 1000, "prefix": "p"}] * 60}, "gateway.filter.bytes.max"),
    ],
)
def test_filter_that_would_take_megabytes_is_refused(link: RawSocket, wanted: object, names: str) -> None:
    link.say({"type": "subscribe", "id": 1, "topic": "t", "filter": wanted})
    told = link.hear()
    assert (told["type"], told["id"]) == ("error", 1)
    assert names in told["message"]


def test_filter_of_a_thousand_values_is_taken_and_counted(link: RawSocket, broker: EmbeddedBroker) -> None:
    values = [f"v{each}" for each in range(VALUES_MAX)]
    link.say({"type": "subscribe", "id": 1, "topic": "t", "filter": one_of(values)})
    assert link.hear()["type"] == "subscribed"
    taken = subscription_bytes(broker)
    assert taken >= VALUES_MAX * header_filter.VALUE_BYTES
    link.say({"type": "unsubscribe", "id": 1})
    link.hear_of("unsubscribed")
    assert subscription_bytes(broker) == 0


# --- subscriptions of a socket, and of all -----------------------------------------------------------------------


def test_subscriptions_of_one_socket_are_bounded_in_bytes(link: RawSocket, broker: EmbeddedBroker) -> None:
    told = []
    for number in range(10):
        link.say({"type": "subscribe", "id": number, "topic": "wide"})
        told.append(link.hear())
    assert [message["type"] for message in told[:1]] == ["subscribed"]
    assert told[-1]["type"] == "error"
    assert "gateway.socket.subscription.bytes.max" in told[-1]["message"]
    assert 0 < subscription_bytes(broker) <= SOCKET_BYTES_MAX


def test_subscriptions_of_all_sockets_are_bounded_and_leave_with_their_sockets(
    broker: EmbeddedBroker,
) -> None:
    assert broker.http_address is not None
    refused: list[Any] = []
    with contextlib.ExitStack() as stack:
        for _ in range(PER_IP - 2):
            link = stack.enter_context(RawSocket(broker.http_address))
            for number in range(10):
                link.say({"type": "subscribe", "id": number, "topic": "wide"})
            refused += [told for told in (link.hear() for _ in range(10)) if told["type"] == "error"]
        assert any("gateway.subscription.bytes.max" in told["message"] for told in refused)
        assert subscription_bytes(broker) <= NODE_BYTES_MAX
    wait_until(lambda: subscription_bytes(broker) == 0, "all of them to be forgotten")


def test_socket_that_goes_before_its_subscriptions_begin_keeps_no_share(broker: EmbeddedBroker) -> None:
    assert broker.http_address is not None
    for _ in range(20):
        with RawSocket(broker.http_address) as link:
            for number in range(20):
                link.say({"type": "subscribe", "id": number, "topic": "t"})
    wait_until(lambda: subscription_bytes(broker) == 0, "all of them to be forgotten")


def test_subscription_whose_topic_outgrows_its_share_ends_and_says_why(
    broker: EmbeddedBroker, link: RawSocket
) -> None:
    topic = broker.create_topic(broker.unused_name("grows"), 1)
    link.say({"type": "subscribe", "id": 1, "topic": topic})
    link.hear_of("subscribed")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(topic, 300)])[topic].result(20)
    told = link.hear_of("error")
    assert "gateway.socket.subscription.bytes.max" in told["message"]
    assert link.hear()["type"] == "unsubscribed"


# --- connections of one address ----------------------------------------------------------------------------------


def test_address_with_too_many_connections_is_told_so_and_may_come_again(broker: EmbeddedBroker) -> None:
    assert broker.http_address is not None
    wait_until(lambda: figure(broker, "anabranch_gateway_connections") == 1, "the others to be gone")
    with contextlib.ExitStack() as stack:
        for number in range(PER_IP):  # WebSockets count on after their upgrade.
            stack.enter_context(RawSocket(broker.http_address) if number % 2 else raw(broker))
        with raw(broker) as link:
            answer = all_of(link)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"max.connections.per.ip" in answer
    wait_until(lambda: is_served(broker), "one to be welcome again")
    assert figure(broker, "anabranch_gateway_connections") <= PER_IP


def is_served(broker: EmbeddedBroker) -> bool:
    try:
        return ask(broker, "GET", "/healthz").status == 200
    except OSError:
        return False


LINES = (
    b"POST /v1/topics/t/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


# --- bodies that do not end ----------------------------------------------------------------------------------------


def test_unfinished_small_bodies_count_and_make_room_for_others(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "CROWDED_SECONDS", 0.2)
    room = 4 * (50_000 - bodies.FREE_BYTES)
    monkeypatch.setattr(web_gateway(broker).bodies, "bytes_max", room)
    head = b"POST /v1/topics/t/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n"
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(raw(broker)) for _ in range(4)]
        for link in slow:
            link.sendall(head + b"content-length: 50000\r\n\r\n" + b"x" * 49_000)
        wait_until(lambda: web_gateway(broker).bodies.bytes_taken == room, "all of them to count")
        assert ask(broker, "POST", "/v1/topics/t/records", {"value": "v" * 5000}).status == 200
        answers = [first_line(link) for link in slow]
    assert b"HTTP/1.1 408 " in answers
    wait_until(lambda: web_gateway(broker).bodies.bytes_taken == 0, "their room to be given back")


def test_body_that_holds_no_memory_is_waited_for_while_others_wait_for_some(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "CROWDED_SECONDS", 0.1)
    monkeypatch.setattr(gateway.Gateway, "is_crowded", True)
    head = b"POST /v1/topics/t/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n"
    with raw(broker) as small, raw(broker) as large:
        small.sendall(head + b"content-length: %d\r\n\r\nx" % bodies.FREE_BYTES)
        large.sendall(head + b"content-length: 50000\r\n\r\n" + b"x" * 20_000)
        assert large.recv(13) == b"HTTP/1.1 408 "
        assert first_line(small) == b"", "no answer before its body is whole"
        small.sendall(b"x" * (bodies.FREE_BYTES - 1))
        assert small.recv(13) == b"HTTP/1.1 200 "


def test_announced_length_of_a_body_takes_no_memory(broker: EmbeddedBroker) -> None:
    limit = web_gateway(broker).request_bytes_max
    head = b"POST /v1/topics/t/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            link = stack.enter_context(raw(broker))
            link.sendall(head + b"content-length: %d\r\n\r\n" % limit + b"x" * 100)
        assert ask(broker, "POST", "/v1/topics/t/records", {"value": "v" * 500_000}).status == 200
        assert web_gateway(broker).bodies.bytes_taken == 0


def test_bodies_that_come_at_once_do_not_wait_for_each_other(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has sent enough to hold a part of the memory, and together they want more than there is."""
    web = web_gateway(broker)
    monkeypatch.setattr(bodies, "CROWDED_SECONDS", 20.0)
    monkeypatch.setattr(gateway, "HOLD_SECONDS_MAX", 20.0)
    monkeypatch.setattr(web.bodies, "bytes_max", 10 * 2**18)
    size = 1_000_000
    head = b"POST /v1/topics/t/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n"
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(raw(broker)) for _ in range(PER_IP - 2)]
        for link in links:
            link.sendall(head + b"content-length: %d\r\n\r\n" % size + b"x" * 100_000)
        wait_until(lambda: web.bodies.bytes_taken > 2**21, "the memory to be taken")
        senders = [threading.Thread(target=link.sendall, args=(b"x" * (size - 100_000),)) for link in links]
        for sender in senders:
            sender.start()
        assert {link.recv(13) for link in links} == {b"HTTP/1.1 200 "}
        for sender in senders:
            sender.join()
    wait_until(lambda: web.bodies.bytes_taken == 0, "their room to be given back")


def test_unfinished_lines_count_and_leave_with_their_clients(broker: EmbeddedBroker) -> None:
    web = web_gateway(broker)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(raw(broker)).sendall(LINES + b"186a0\r\n" + b" " * 50_000)
        wait_until(lambda: web.bodies.bytes_taken >= 4 * 45_000, "all of them to count")
    wait_until(lambda: web.bodies.bytes_taken == 0, "their room to be given back")


def test_line_that_never_ends_is_given_up(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a byte of it comes."""
    monkeypatch.setattr(bodies, "BODY_SECONDS_MAX", 0.5)
    with raw(broker) as link:
        link.sendall(LINES + b"3\r\n{}\n\r\n")
        answer = b""
        link.settimeout(0.05)
        for _ in range(100):
            with contextlib.suppress(TimeoutError):
                answer += link.recv(4096)
            if b"REQUEST_TIMEOUT" in answer:
                break
            link.sendall(b"1\r\nx\r\n")
    assert b'"offset"' in answer
    assert b"REQUEST_TIMEOUT" in answer


def first_line(link: socket.socket) -> bytes:
    link.settimeout(1)
    try:
        return link.recv(13)
    except TimeoutError:
        return b""


def web_gateway(broker: EmbeddedBroker) -> gateway.Gateway:
    assert ask(broker, "GET", "/healthz").status == 200  # The gateway is loaded with the first connection.
    found = broker._running().node._http._web.gateway  # type: ignore[union-attr]
    assert isinstance(found, gateway.Gateway)
    return found
