"""How much the gateway does between two looks at everybody's sockets, counted in steps and not in time.

`make hostile` measures the same on a running node.
"""

import asyncio
import contextlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.broker.requests.turns import ROWS_PER_TURN, Turns
from anabranch.gateway.api import produce as records_api
from anabranch.gateway.api import read as read_api
from anabranch.gateway.calls import LISTED_AT_ONCE
from anabranch.gateway.gateway import Gateway
from anabranch.gateway.http.protocol import BEGUN_AT_ONCE, CHUNKED_BYTES_MAX, BoundedProtocol
from anabranch.gateway.websocket import session as socket_session
from anabranch.gateway.websocket.protocol import SLICE_BYTES, SocketProtocol
from anabranch.gateway.websocket.session import SUBSCRIBED_AT_ONCE
from anabranch.testing import EmbeddedBroker
from hostile import http_requests as hostile
from support.gateway_client import all_of, ask, gateway_broker, raw
from support.raw_socket import PING, PONG, TEXT, RawSocket, frame
from support.waiting import wait_until

WIDE_PARTITIONS = 300


class Target:
    """An embedded broker as the cases want it."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        assert broker.http_address is not None
        self.bootstrap, self.http, self.pid = broker.bootstrap, broker.http_address, 0


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with gateway_broker() as broker:
        broker.create_topic("plain")
        broker.create_topic("wide", WIDE_PARTITIONS)
        assert ask(broker, "GET", "/healthz").status == 200
        yield broker


def gateway_of(broker: EmbeddedBroker) -> Gateway:
    found = broker._running().node._http._web.gateway  # type: ignore[union-attr]
    assert isinstance(found, Gateway)
    return found


class Rounds:
    """Which round of the loop it is."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.number = 0
        self._is_over = False
        self._loop = broker._running()
        self._loop.call(self._next)

    def _next(self) -> None:
        self.number += 1
        if not self._is_over:
            asyncio.get_event_loop().call_soon(self._next)

    def end(self) -> None:
        self._is_over = True


@pytest.fixture
def rounds(broker: EmbeddedBroker) -> Iterator[Rounds]:
    rounds = Rounds(broker)
    yield rounds
    rounds.end()


def noted(monkeypatch: pytest.MonkeyPatch, rounds: Rounds, owner: Any, name: str) -> Counter[int]:
    """How often a function is called in each round."""
    seen: Counter[int] = Counter()
    function = getattr(owner, name)

    def noting(*given: Any, **named: Any) -> Any:
        seen[rounds.number] += 1
        return function(*given, **named)

    monkeypatch.setattr(owner, name, noting)
    return seen


# --- one step of heavy work in a round -----------------------------------------------------------------------------


def test_long_bodies_of_many_clients_are_read_one_in_a_round(
    broker: EmbeddedBroker, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = noted(monkeypatch, rounds, records_api, "parse_json")
    body = json.dumps([{"value": "v" * 1000}] * 20).encode()
    assert len(body) > records_api.SMALL_BYTES_MAX
    answers = [200] * 30
    assert posted(broker, body, len(answers)) == answers
    assert sum(seen.values()) == len(answers)
    assert max(seen.values()) == 1


def test_records_of_long_lists_are_made_a_slice_in_a_round(
    broker: EmbeddedBroker, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = noted(monkeypatch, rounds, records_api, "new_record")
    body = json.dumps([{"value": "some text"}] * 5000).encode()
    assert posted(broker, body, 4) == [200] * 4
    assert sum(seen.values()) == 20_000
    assert max(seen.values()) <= records_api.TURN_RECORDS


def posted(broker: EmbeddedBroker, body: bytes, count: int) -> list[int]:
    """The answers to requests that were all sent before the first is read."""
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(raw(broker)) for _ in range(count)]
        for link in links:
            link.sendall(
                hostile.request("POST", "/v1/topics/plain/records", body, head=b"connection: close\r\n")
            )
        return [int(hostile.answer_of(link)[:3]) for link in links]


def test_long_messages_of_many_sockets_are_read_one_in_a_round(
    broker: EmbeddedBroker, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = noted(monkeypatch, rounds, socket_session, "parse_json")
    message = {"type": "publish", "id": 1, "topic": "plain", "value": "v" * 5000}
    assert broker.http_address is not None
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(RawSocket(broker.http_address)) for _ in range(20)]
        for link in links:
            link.say(message)
        assert [link.hear()["type"] for link in links] == ["published"] * 20
    assert max(seen.values()) == 1


def test_subscriptions_of_many_sockets_begin_a_few_in_a_round(
    broker: EmbeddedBroker, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = noted(monkeypatch, rounds, socket_session, "Running")
    assert broker.http_address is not None
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(RawSocket(broker.http_address)) for _ in range(10)]
        for link in links:
            messages = [{"type": "subscribe", "id": number, "topic": "plain"} for number in range(30)]
            link.link.sendall(b"".join(frame(TEXT, json.dumps(each).encode()) for each in messages))
        assert [link.hear()["type"] for link in links for _ in range(30)] == ["subscribed"] * 300
    assert sum(seen.values()) == 300
    assert max(seen.values()) <= SUBSCRIBED_AT_ONCE


def test_requests_of_many_connections_begin_a_few_in_a_round(
    broker: EmbeddedBroker, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = noted(monkeypatch, rounds, read_api, "check_known")  # The first thing that each of them does.
    request = hostile.request("GET", "/v1/topics/wide/partitions/0/records?from=latest&wait_ms=60000")
    polls = gateway_of(broker)
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(raw(broker)).sendall(request)
        wait_until(lambda: polls.polls_count == 100, "all of them to wait")
    assert sum(seen.values()) == 100
    assert max(seen.values()) <= BEGUN_AT_ONCE
    wait_until(lambda: polls.polls_count == 0, "all of them to go")


def test_empty_lines_before_a_request_are_parsed_all_at_once(
    broker: EmbeddedBroker, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = noted(monkeypatch, rounds, BoundedProtocol, "_parse")
    with raw(broker) as link:
        link.sendall(b"\r\n\r\n" * 8000 + hostile.request("GET", "/healthz"))
        assert link.recv(100).startswith(b"HTTP/1.1 200 ")
    assert sum(seen.values()) <= 10, "one for each read, and the request"


@pytest.mark.parametrize(("opcode", "name"), [(PING, "handle_ping"), (PONG, "handle_pong")])
def test_tiny_frames_of_many_sockets_are_parsed_a_portion_in_a_round(
    broker: EmbeddedBroker, rounds: Rounds, monkeypatch: pytest.MonkeyPatch, opcode: int, name: str
) -> None:
    tiny = frame(opcode, b"")
    seen = noted(monkeypatch, rounds, SocketProtocol, name)
    assert broker.http_address is not None
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(RawSocket(broker.http_address)) for _ in range(10)]
        with loop_held(broker):
            for link in links:
                link.link.sendall(tiny * 2500)
        wait_until(lambda: sum(seen.values()) == 25_000, "all frames")
        links[0].say({"type": "publish", "id": 1, "topic": "plain", "value": 1})
        assert links[0].hear_of("published")["id"] == 1
    assert max(seen.values()) <= ROWS_PER_TURN + 6 * SLICE_BYTES // len(tiny)


def test_messages_that_have_to_wait_for_their_turn_stay_in_order(broker: EmbeddedBroker) -> None:
    assert broker.http_address is not None
    messages = [frame(TEXT, b'{"type":"credit","id":%d,"records":1}' % number) for number in range(500)]
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(RawSocket(broker.http_address)) for _ in range(5)]
        with loop_held(broker):
            for link in links:
                link.link.sendall(b"".join(messages))
        for link in links:
            assert [link.hear()["id"] for _ in messages] == list(range(len(messages)))


def test_tiny_chunks_of_many_bodies_are_parsed_a_portion_in_a_round(
    broker: EmbeddedBroker, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = noted(monkeypatch, rounds, BoundedProtocol, "on_body")
    body = b"1\r\n1\r\n" * 8000 + b"0\r\n\r\n"
    head = (
        b"POST /v1/topics/plain/records HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        b"content-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(raw(broker)) for _ in range(10)]
        with loop_held(broker):
            for link in links:
                link.sendall(head + body)
        assert [all_of(link)[:12] for link in links] == [b"HTTP/1.1 200"] * len(links)
    assert sum(seen.values()) == 80_000
    assert max(seen.values()) <= ROWS_PER_TURN + 6 * CHUNKED_BYTES_MAX // 6


@contextlib.contextmanager
def loop_held(broker: EmbeddedBroker) -> Iterator[None]:
    """What is sent meanwhile has all arrived when the loop goes on."""
    is_sent = threading.Event()
    holding = threading.Thread(target=lambda: broker._running().call(lambda: is_sent.wait(20)))
    holding.start()
    yield
    is_sent.set()
    holding.join()


def test_health_checks_do_not_wait_behind_other_requests(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Line(Turns):
        async def wait(self, rows: int = 0) -> None:
            await asyncio.Event().wait()

    web = broker._running().node._http._web  # type: ignore[union-attr]
    monkeypatch.setattr(web._config.http_protocol_class, "turns", Line())  # type: ignore[union-attr]
    with raw(broker) as link:
        link.sendall(hostile.request("GET", "/v1/topics"))
        assert ask(broker, "GET", "/healthz").status == 200
        link.settimeout(0.2)
        with pytest.raises(TimeoutError):
            link.recv(1)


# --- questions to brokers, not one for each partition ----------------------------------------------------------------


def asked(broker: EmbeddedBroker) -> int:
    return gateway_of(broker).calls.asked_total["here"]


def chunks(count: int) -> int:
    return -(-count // LISTED_AT_ONCE)


def test_client_that_goes_while_further_requests_of_it_wait_is_noticed(broker: EmbeddedBroker) -> None:
    request = hostile.request("GET", "/v1/topics/wide/partitions/0/records?from=latest&wait_ms=60000")
    polls = gateway_of(broker)
    with raw(broker) as link:
        link.sendall(request * 3)
        wait_until(lambda: polls.polls_count == 1, "the first of them to wait")
    wait_until(lambda: polls.polls_count == 0, "the node to notice that its client has gone")


def test_offsets_of_a_wide_topic_are_asked_for_together(broker: EmbeddedBroker) -> None:
    before = asked(broker)
    answer = ask(broker, "GET", "/v1/topics/wide")
    assert [row["end_offset"] for row in answer.json["partitions"]] == ["0"] * WIDE_PARTITIONS
    assert asked(broker) - before == 2 * chunks(WIDE_PARTITIONS)


@pytest.mark.parametrize("start", ["new", "earliest", {"time": 1}, {"offset": {"0": "0"}, "others": "new"}])
def test_start_of_a_subscription_to_a_wide_topic_is_asked_for_together(
    broker: EmbeddedBroker, start: object
) -> None:
    assert broker.http_address is not None
    before = asked(broker)
    with RawSocket(broker.http_address) as link:
        link.say({"type": "subscribe", "id": 1, "topic": "wide", "from": start, "credit": 0})
        assert len(link.hear_of("subscribed")["offsets"]) == WIDE_PARTITIONS
        assert asked(broker) - before <= 2 * chunks(WIDE_PARTITIONS)


def test_places_of_a_session_of_a_wide_topic_are_asked_for_together(broker: EmbeddedBroker) -> None:
    before = asked(broker)
    answer = ask(broker, "POST", "/v1/groups/wide/sessions", {"topics": ["wide"], "from": "earliest"})
    assert len(answer.json["partitions"]) == WIDE_PARTITIONS
    assert asked(broker) - before <= chunks(WIDE_PARTITIONS) + 20, "and a few for the group itself"


# --- the generators --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", hostile.json_bodies())
def test_worst_body_is_taken_or_refused_and_never_a_defect(broker: EmbeddedBroker, name: str) -> None:
    body = hostile.json_bodies()[name]
    with hostile.Client(Target(broker)) as client:
        assert client.ask("POST", hostile.WRITE, body)[:3] in ("200", "400", "413")


@pytest.mark.parametrize("name", hostile.line_bodies())
def test_worst_lines_are_taken_or_refused_and_never_a_defect(broker: EmbeddedBroker, name: str) -> None:
    body = hostile.line_bodies()[name][: 256 * 1024]
    with hostile.Client(Target(broker)) as client:
        assert client.ask("POST", f"{hostile.WRITE}?answers=errors", body, hostile.LINES)[:3] == "200"


def test_every_route_of_the_gateway_has_a_case(broker: EmbeddedBroker) -> None:
    web = broker._running().node._http._web  # type: ignore[union-attr]
    paths = {route.path for route in web._config.app._app.routes}  # type: ignore[union-attr]
    assert "/v1/groups/{group}/sessions/{session}/commit" in paths
    routes = [case.route for case in hostile.cases()]
    missing = {path for path in paths if not any(is_about(route, path) for route in routes)}
    assert missing == set()


def is_about(route: str, path: str) -> bool:
    """`GET …/partitions/N/records` is about `/v1/topics/{topic}/partitions/{partition}/records`."""
    if path.endswith("/ws"):
        return route.startswith("WS ")
    shown = "".join(letter for letter in route.partition(" ")[2].split(" ")[0] if letter != "…")
    pieces = [piece for piece in shown.split("/") if piece and not piece.isupper()]
    fixed = [piece for piece in path.split("/") if piece and not piece.startswith("{")]
    return fixed == pieces if not pieces else fixed[-len(pieces) :] == pieces
