"""Every request is answered in time, whatever the brokers do; by virtual time."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from anabranch.config import NodeSettings
from anabranch.gateway.api.read import Reading
from anabranch.gateway.calls import refusal
from anabranch.gateway.http.access import Access
from anabranch.gateway.http.deadline import (
    WRITE_GRACE_MS,
    extend_deadline,
    lift_deadline,
    note_cause,
    restart_deadline,
)
from anabranch.gateway.http.doorkeeper import Doorkeeper
from anabranch.gateway.http.protocol import Link
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.loop import VirtualLoop
from anabranch.wire.error_codes import ErrorCode

TIMEOUT_MS = 8000
SECONDS = TIMEOUT_MS / 1000

App = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


class Flow:
    write_paused = False


def answer_of(app: App, method: str = "GET") -> tuple[int, dict[str, Any], float]:
    """Status, body and how long it took."""
    loop = VirtualLoop(FakeClock(), lambda: False)
    said: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def run() -> float:
        link = Link(lambda: None, lambda: False, asyncio.Event(), Flow())  # type: ignore[arg-type]
        scope = {
            "type": "http",
            "method": method,
            "path": "/v1/topics",
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
            "anabranch.link": link,
        }
        access = Access(NodeSettings.load({"http": "127.0.0.1:0"}))
        begun = loop.time()
        await Doorkeeper(app, access, lambda: False, TIMEOUT_MS, Counter())(scope, receive, send)  # type: ignore[arg-type]
        return loop.time() - begun

    try:
        seconds = loop.run_until_complete(run())
    finally:
        loop.close()
    body = b"".join(message.get("body", b"") for message in said)
    return said[0]["status"], json.loads(body), seconds


async def begin(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def silent(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(3600)


async def leaderless(scope: Any, receive: Any, send: Any) -> None:
    while True:
        note_cause(refusal(ErrorCode.LEADER_NOT_AVAILABLE, "Nobody leads t-0 now."))
        await asyncio.sleep(0.05)


def test_request_that_nobody_answers_ends_with_504_in_time() -> None:
    status, body, seconds = answer_of(silent)
    assert (status, body["error"]["code"]) == (504, "REQUEST_TIMED_OUT")
    assert "gateway.request.timeout.ms" in body["error"]["message"]
    assert seconds == pytest.approx(SECONDS)


def test_read_that_finds_no_leader_ends_with_503_and_its_cause() -> None:
    status, body, seconds = answer_of(leaderless)
    assert (status, body["error"]["code"]) == (503, "LEADER_NOT_AVAILABLE")
    assert "Nobody leads t-0 now." in body["error"]["message"]
    assert seconds == pytest.approx(SECONDS)


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_change_that_is_not_done_in_time_may_be_done_later(method: str) -> None:
    status, body, _ = answer_of(leaderless, method)
    assert status == 504
    assert "not known" in body["error"]["message"]
    assert "Nobody leads t-0 now." in body["error"]["message"]


def test_wait_that_the_client_asked_for_comes_on_top() -> None:
    async def poll(scope: Any, receive: Any, send: Any) -> None:
        extend_deadline(30_000)
        await silent(scope, receive, send)

    assert answer_of(poll)[2] == pytest.approx(SECONDS + 30)


def test_read_of_records_waits_no_longer_than_it_may_and_asks_for() -> None:
    """Also where it would wait for records to be loaded, if there were somebody to tell of any."""

    async def list_offsets(topic: str, partition: int, timestamp: int) -> None:
        await leaderless(None, None, None)

    calls = SimpleNamespace(leader=lambda topic, partition: None, list_offsets=list_offsets)
    reading = Reading(SimpleNamespace(calls=calls, poll_ms_max=30_000))  # type: ignore[arg-type]

    def read(query: bytes) -> App:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            path = {"topic": "t", "partition": "0"}
            await reading.get(Request({**scope, "path_params": path, "query_string": query}))

        return app

    assert answer_of(read(b"time=5"))[2] == pytest.approx(SECONDS)
    assert answer_of(read(b"time=5&wait_ms=2000"))[2] == pytest.approx(SECONDS + 2)


def test_write_is_left_the_time_to_say_what_became_of_its_record() -> None:
    async def write(scope: Any, receive: Any, send: Any) -> None:
        lift_deadline()
        restart_deadline()
        extend_deadline(WRITE_GRACE_MS)
        await asyncio.sleep(SECONDS + 0.1)
        raise refusal(ErrorCode.LEADER_NOT_AVAILABLE, "The record was not written.")

    status, body, seconds = answer_of(write, "POST")
    assert (status, body["error"]["message"]) == (503, "The record was not written.")
    assert seconds == pytest.approx(SECONDS + 0.1)


def test_body_and_answer_take_the_clients_own_time() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        lift_deadline()
        await asyncio.sleep(50)
        restart_deadline()
        await asyncio.sleep(SECONDS - 1)
        await begin(send)
        await asyncio.sleep(50)
        await send({"type": "http.response.body", "body": b"{}"})

    status, _, seconds = answer_of(slow)
    assert status == 200
    assert seconds == pytest.approx(99 + SECONDS)


def test_body_that_came_slowly_is_answered_in_time() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        lift_deadline()
        await asyncio.sleep(50)
        restart_deadline()
        await silent(scope, receive, send)

    assert answer_of(slow)[2] == pytest.approx(50 + SECONDS)
