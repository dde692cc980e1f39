"""The HTTP port itself: metrics and health, what is loaded when, and nobody holds a connection for ever."""

import http.client
import socket
import time

import pytest

from anabranch.gateway.calls import Calls
from anabranch.gateway.http import protocol, web
from support.gateway_client import all_of, ask, gateway_broker, raw
from support.raw_socket import BINARY, TEXT, RawSocket
from support.waiting import wait_until


@pytest.fixture(scope="module")
def broker():
    with gateway_broker() as broker:
        yield broker


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/metrics", 200),
        ("GET", "/metrics?x=1", 200),
        ("HEAD", "/metrics", 200),
        ("GET", "/healthz", 200),
        ("GET", "/", 200),
        ("GET", "/nothing", 404),
        ("GET", "/metrics/", 404),
        ("POST", "/metrics", 405),
    ],
)
def test_status_of(broker, method: str, target: str, status: int) -> None:
    answer = ask(broker, method, target)
    assert answer.status == status
    assert (answer.body == b"") == (method == "HEAD")


def test_metrics_and_health_are_what_they_were_before_there_was_a_gateway(broker) -> None:
    metrics = ask(broker, "GET", "/metrics")
    assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "anabranch_fenced_partitions 0.0" in metrics.body.decode().splitlines()
    assert ask(broker, "GET", "/healthz").json == {"status": "ok", "fenced_partitions": [], "groups": "ok"}


def test_what_is_not_http_is_told_so(broker) -> None:
    with raw(broker) as link:
        link.sendall(b"hello\r\n\r\n")
        assert all_of(link).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("sent", [b"GET /heal", b"", b"GET /healthz HTTP/1.1\r\nx: y\r\n"])
def test_head_that_is_never_finished_is_dropped(broker, sent: bytes, monkeypatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS_MAX", 0.5)
    with raw(broker) as link:
        link.sendall(sent)
        assert all_of(link)[:13] == (b"HTTP/1.1 408 " if sent else b"")


def test_second_head_on_a_connection_has_its_time_too(broker, monkeypatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS_MAX", 1.0)
    with raw(broker) as link:
        link.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert link.recv(65536).startswith(b"HTTP/1.1 200 ")
        link.sendall(b"GET /")
        assert b"HTTP/1.1 408 " in all_of(link)


@pytest.mark.parametrize("head", [b"x: y\r\n" * 10_000, b"x: " + b"y" * 100_000 + b"\r\n"])
def test_head_that_is_too_large_is_refused(broker, head: bytes) -> None:
    with raw(broker) as link:
        link.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + head + b"\r\n")
        assert all_of(link).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("error", [KeyError("a defect"), OSError("a defect")])
def test_defect_is_answered_and_written_down(error: Exception, caplog, monkeypatch) -> None:
    with gateway_broker() as broker:
        assert ask(broker, "GET", "/v1/topics").status == 200

        def broken(*_: object) -> None:
            raise error

        monkeypatch.setattr(Calls, "topics", broken)
        answer = ask(broker, "GET", "/v1/topics")
        assert (answer.status, answer.code) == (500, "DEFECT")
        assert type(error).__name__ not in answer.body.decode(), "what is inside stays inside"
        wait_until(lambda: "this is a defect" in caplog.text, "the line in the log")
        assert refusals(broker) == {"DEFECT": 1}


def test_more_connections_than_allowed_are_refused_and_leave_room_again() -> None:
    with gateway_broker(gateway_connections_max=2) as broker:
        first, second = raw(broker), raw(broker)
        for link in (first, second):
            link.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert link.recv(65536).startswith(b"HTTP/1.1 200 ")
        with raw(broker) as third:
            assert all_of(third).startswith(b"HTTP/1.1 503 ")
        first.close()
        wait_until(lambda: is_served(broker), "room for another connection")
        second.close()


def is_served(broker) -> bool:
    try:
        return ask(broker, "GET", "/healthz").status == 200
    except (OSError, http.client.HTTPException):
        return False  # Whoever is refused at once may not even get to hear it.


def test_broker_stops_with_connections_open_and_with_none_ever_made() -> None:
    with gateway_broker() as broker:
        link = raw(broker)
        link.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert link.recv(65536).startswith(b"HTTP/1.1 200 ")
    with link:
        assert b"HTTP/1.1" not in all_of(link), "it was closed, and nothing else was said"
    with gateway_broker():
        pass


POST = b"POST /v1/topics/%s/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: %s\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
BYTES, LINES = b"application/octet-stream", b"application/x-ndjson"


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (POST % (b"ended", BYTES) + CHUNKED + b"5\r\nhello\r\n0\r\n\r\n", 1),
        (POST % (b"ended", LINES) + CHUNKED + b"3\r\n{}\n\r\n0\r\n\r\n", 1),
        (POST % (b"ended", BYTES) + b"content-length: 5\r\n\r\nhello", 1),
        (b"GET /v1/topics HTTP/1.1\r\nhost: localhost\r\n\r\n", 1),
        (b"GET /v1/topics HTTP/1.1\r\nhost: localhost\r\n\r\n" * 5, 5),
        (b"GET /v1/topics HTTP/1.1\r\nhost: localhost\r\n\r\nGET /v1/to", 1),
    ],
)
def test_client_that_closes_its_side_gets_its_answers(broker, sent: bytes, answers: int) -> None:
    with raw(broker) as link:
        link.sendall(sent)
        link.shutdown(socket.SHUT_WR)
        assert all_of(link).count(b"HTTP/1.1 200 ") == answers
    wait_until(lambda: connections(broker) == 1, "the end of the connection")


WHOLE = [
    POST % (b"ended", BYTES) + CHUNKED + b"5\r\nhello\r\n0\r\n\r\n",
    POST % (b"ended", BYTES) + b"content-length: 5\r\n\r\nhello",
    b"GET /v1/topics HTTP/1.1\r\nhost: localhost\r\n\r\n",
]
CUT = [
    POST % (b"ended", BYTES) + b"content-length: 50\r\n\r\nhel",
    POST % (b"ended", BYTES) + CHUNKED + b"5\r\nhello\r\n",
    b"GET /v1/to",
]


@pytest.mark.parametrize("cut", CUT)
@pytest.mark.parametrize("whole", WHOLE)
def test_request_in_front_of_one_that_is_cut_off_is_answered(broker, whole: bytes, cut: bytes) -> None:
    if "ended" not in broker.topics():
        broker.create_topic("ended")
    before = broker.records("ended")
    begun = time.monotonic()
    with raw(broker) as link:
        link.sendall(whole + cut)
        link.shutdown(socket.SHUT_WR)
        answers = all_of(link)
    assert answers.count(b"HTTP/1.1 ") == answers.count(b"HTTP/1.1 200 ") == 1
    assert len(broker.records("ended")) - len(before) == whole.startswith(b"POST")
    assert time.monotonic() - begun < 10
    wait_until(lambda: connections(broker) == 1, "the end of the connection")


def test_client_that_closes_its_side_is_not_waited_for(broker) -> None:
    """It may be gone: nothing else is seen of that."""
    topic = broker.create_topic(broker.unused_name("waited"))
    begun = time.monotonic()
    with raw(broker) as link:
        target = f"/v1/topics/{topic}/partitions/0/records?wait_ms=20000"
        link.sendall(f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        link.shutdown(socket.SHUT_WR)
        assert b'"records":[]' in all_of(link)
    assert time.monotonic() - begun < 10


def test_body_that_ends_with_its_connection_is_not_written(broker) -> None:
    topic = broker.create_topic(broker.unused_name("cut"))
    for rest in (b"content-length: 50\r\n\r\nhello", CHUNKED + b"5\r\nhello\r\n"):
        with raw(broker) as link:
            link.sendall(POST % (topic.encode(), BYTES) + rest)
            link.shutdown(socket.SHUT_WR)
            assert all_of(link) == b""
    assert broker.records(topic) == []


NOWHERE = b"POST /v1/nope HTTP/1.1\r\nhost: localhost\r\n"
LENGTH = b"content-length: 100000\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
CHUNK = b"8\r\nxxxxxxxx\r\n"


def test_connection_whose_body_comes_after_its_answer_does_not_stay_idle_for_ever(monkeypatch) -> None:
    monkeypatch.setattr(web, "KEEP_ALIVE_SECONDS", 0.5)
    with gateway_broker() as broker, raw(broker) as link:
        link.sendall(NOWHERE + LENGTH)
        assert status_of_answer(link) == 404
        link.sendall(b"x" * 100_000)
        assert all_of(link) == b""


def test_body_that_nobody_read_is_not_held_after_its_answer(broker) -> None:
    with raw(broker) as link:
        link.sendall(NOWHERE + LENGTH + b"x" * 50_000)
        assert status_of_answer(link) == 404
        web_server = broker._running().node._http._web
        cycles = [connection._serving for connection in web_server._state.connections]
        wait_until(lambda: not any(cycle.body for cycle in cycles if cycle), "the body to be freed")


@pytest.mark.parametrize(("head", "piece"), [(LENGTH, b"x"), (CHUNKED, CHUNK)])
def test_body_that_comes_slowly_after_its_answer_is_given_up(
    broker, head: bytes, piece: bytes, monkeypatch
) -> None:
    monkeypatch.setattr(protocol, "BODY_SECONDS_MAX", 0.5)
    with raw(broker) as link:
        link.sendall(NOWHERE + head)
        assert status_of_answer(link) == 404
        begun = time.monotonic()
        with pytest.raises(ConnectionError):
            send_again_and_again(link, piece, count=500, pause_seconds=0.02)
        assert 0.4 < time.monotonic() - begun < 5
    wait_until(lambda: connections(broker) == 1, "the end of the connection")


@pytest.mark.parametrize(
    ("head", "piece"),
    [(b"content-length: 1000000000\r\n\r\n", b"x" * 10_000), (CHUNKED, CHUNK * 1000)],
)
def test_body_that_goes_on_after_its_answer_is_not_read_without_limit(
    broker, head: bytes, piece: bytes, monkeypatch
) -> None:
    monkeypatch.setattr(protocol, "PASS_OVER_BYTES_MAX", 100_000)
    with raw(broker) as link:
        link.sendall(NOWHERE + head)
        assert status_of_answer(link) == 404
        with pytest.raises(ConnectionError):
            send_again_and_again(link, piece, count=10_000)
    wait_until(lambda: connections(broker) == 1, "the end of the connection")


def test_bodies_that_come_after_their_answers_are_discarded(broker, monkeypatch) -> None:
    """Each has the whole limit."""
    monkeypatch.setattr(protocol, "PASS_OVER_BYTES_MAX", 150_000)
    with raw(broker) as link:
        for _ in range(3):
            for head, body in (
                (LENGTH, b"x" * 100_000),
                (CHUNKED, b"186a0\r\n" + b"x" * 100_000 + b"\r\n0\r\n\r\n"),
            ):
                link.sendall(NOWHERE + head)
                assert status_of_answer(link) == 404
                link.sendall(body)
        link.sendall(HEALTH)
        assert status_of_answer(link) == 200


@pytest.mark.parametrize("empty", [b"\r\n", b"\r", b"\r\n" * 1000])
def test_empty_lines_before_a_request_are_passed_over(broker, empty: bytes, monkeypatch) -> None:
    """RFC 9112, 2.2: some clients send one after a body."""
    monkeypatch.setattr(protocol, "HEAD_SECONDS_MAX", 0.5)
    with raw(broker) as link:
        for _ in range(2):
            link.sendall(POST % (b"ended", BYTES) + b"content-length: 5\r\n\r\nhello" + empty)
            assert status_of_answer(link) == 200
            time.sleep(0.7)
            link.sendall(empty)
            time.sleep(0.7)
        link.sendall(HEALTH)
        assert status_of_answer(link) == 200


def test_empty_lines_do_not_keep_an_idle_connection_open(monkeypatch) -> None:
    monkeypatch.setattr(web, "KEEP_ALIVE_SECONDS", 0.5)
    with gateway_broker() as broker, raw(broker) as link:
        link.sendall(HEALTH)
        assert status_of_answer(link) == 200
        with pytest.raises(ConnectionError):
            send_again_and_again(link, b"\r\n", count=100, pause_seconds=0.05)


def status_of_answer(link: socket.socket) -> int:
    """Of the next answer, which is read whole."""
    answer = http.client.HTTPResponse(link)
    answer.begin()
    answer.read()
    return answer.status


def send_again_and_again(link: socket.socket, piece: bytes, count: int, pause_seconds: float = 0) -> None:
    """Raises ConnectionError once the other side has closed."""
    for _ in range(count):
        link.sendall(piece)
        time.sleep(pause_seconds)


def test_refusals_are_counted_by_reason() -> None:
    with gateway_broker(gateway_request_bytes_max=1024) as broker:
        broker.create_topic("t")
        assert ask(broker, "GET", "/nothing").status == 404
        assert ask(broker, "GET", "/v1/topics", headers={"Host": "evil.example"}).status == 403
        assert ask(broker, "GET", "/v1/topics/none").status == 404
        assert ask(broker, "POST", "/v1/topics/t/records", {"value": "x" * 2000}).status == 413
        rows = [{"value": 1, "partition": 9}, {"value": 1, "partition": 9}, {"value": 1}]
        assert ask(broker, "POST", "/v1/topics/t/records", rows).status == 207
        with raw(broker) as link:
            link.sendall(b"hello\r\n\r\n")
            all_of(link)
        with RawSocket(broker.http_address or "") as socket:
            socket.send_frame(TEXT, b"{}")
            socket.hear_of("error")
            socket.send_frame(BINARY, b"")
            assert socket.closed()[0] == 1003
        wait_until(lambda: refusals(broker).get("WEBSOCKET_1003") == 1, "the end of the socket")
        found = refusals(broker)
    assert found == {
        "NOT_FOUND": 1,
        "HOST_REFUSED": 1,
        "UNKNOWN_TOPIC_OR_PARTITION": 3,
        "REQUEST_TOO_LARGE": 1,
        "BAD_REQUEST": 1,
        "INVALID_REQUEST": 1,
        "WEBSOCKET_1003": 1,
    }


@pytest.mark.parametrize(
    ("sent", "then", "counted"),
    [
        (POST % (b"ended", BYTES) + b"content-length: 50\r\n\r\nhello", b"", {}),
        (POST % (b"ended", LINES) + CHUNKED + b"3\r\n{}\n\r\n", b"", {}),
        (POST % (b"ended", BYTES) + CHUNKED, b"zz\r\n", {"BAD_REQUEST": 1}),
    ],
)
def test_client_that_is_gone_or_wrong_is_not_counted_as_a_defect(
    sent: bytes, then: bytes, counted: dict[str, int], caplog
) -> None:
    with gateway_broker() as broker:
        broker.create_topic("ended")
        with raw(broker) as link:
            link.sendall(sent)
            wait_until(lambda: connections(broker) == 2, "the connection")
            link.sendall(then)
        wait_until(lambda: connections(broker) == 1, "the end of the connection")
        wait_until(lambda: refusals(broker) == counted, f"{counted} to be counted")
    assert "this is a defect" not in caplog.text


def refusals(broker) -> dict[str, int]:
    prefix = 'anabranch_gateway_refusals_total{reason="'
    lines = ask(broker, "GET", "/metrics").body.decode().splitlines()
    found = (line.removeprefix(prefix).split('"} ') for line in lines if line.startswith(prefix))
    return {reason: int(float(count)) for reason, count in found}


def connections(broker) -> int:
    """With the one that asks."""
    text = ask(broker, "GET", "/metrics").body.decode()
    line = next(line for line in text.splitlines() if line.startswith("anabranch_gateway_connections "))
    return int(float(line.split(" ")[1]))
