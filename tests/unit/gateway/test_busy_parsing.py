"""Requests whose parsing has to wait its turn, because other connections keep the loop busy."""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from anabranch.broker.requests.turns import PORTION, ROWS_PER_TURN, Turns
from anabranch.gateway.http import protocol
from anabranch.gateway.http.addresses import Addresses
from anabranch.gateway.http.heads import ambiguity
from anabranch.gateway.http.protocol import BoundedProtocol, ReadAhead
from support.broker_bench import in_loop

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(0.01)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def connected(parsing: Turns) -> AsyncIterator[socket.socket]:
    class Protocol(BoundedProtocol):
        refusals: ClassVar[Counter[str]] = Counter()
        read_ahead = ReadAhead()
        parsing_turns = parsing
        turns, health_turns, pipelined_turns = Turns(), Turns(), Turns()
        addresses = Addresses(100)

    config = Config(
        answer, http=Protocol, lifespan="off", interface="asgi3", log_config=None, access_log=False
    )
    config.load()
    state = ServerState()
    client, served = socket.socketpair()
    client.setblocking(False)
    await asyncio.get_running_loop().connect_accepted_socket(
        lambda: Protocol(config=config, server_state=state, app_state={}), served
    )
    try:
        yield client
    finally:
        client.close()
        await asyncio.sleep(0.01)


async def all_answers(client: socket.socket, count: int) -> int:
    """How many answers come, up to `count` or the end of the connection."""
    received = b""
    while received.count(b" 200 OK") < count:
        piece = await asyncio.get_running_loop().sock_recv(client, 65536)
        if not piece:
            break
        received += piece
    return received.count(b" 200 OK")


@in_loop
async def test_whole_requests_of_a_client_that_closes_its_side_are_answered_when_their_turn_comes() -> None:
    turns = Turns()

    async def use_every_turn() -> None:
        while True:
            await turns.wait(ROWS_PER_TURN)

    async with connected(turns) as client:
        busy = [asyncio.create_task(use_every_turn()) for _ in range(3)]
        await asyncio.sleep(0.01)
        await asyncio.get_running_loop().sock_sendall(client, GET * 3)
        client.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(30):
            assert await all_answers(client, 3) == 3
            assert await all_answers(client, 1) == 0, "the connection ends behind the last one"
        for task in busy:
            task.cancel()


@in_loop
async def test_time_for_a_head_does_not_pass_while_it_waits_to_be_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS_MAX", 0.05)
    turns = Turns()

    async def keep_the_loop_busy() -> None:
        while True:
            time.sleep(0.005)  # noqa: ASYNC251 - so long every turn of the loop takes now.
            await asyncio.sleep(0)

    async with connected(turns) as client:
        busy = asyncio.create_task(keep_the_loop_busy())
        line = [asyncio.create_task(turns.wait(PORTION)) for _ in range(200)]
        await asyncio.sleep(0)
        await asyncio.get_running_loop().sock_sendall(client, GET)
        async with asyncio.timeout(30):
            assert await all_answers(client, 1) == 1
        busy.cancel()
        await asyncio.gather(*line)


@pytest.mark.parametrize(
    ("version", "target", "hosts", "is_refused"),
    [
        ("1.1", b"http://a.example/", [b"a.example"], False),
        ("1.1", b"http://a.example:80/", [b"a.example"], False),
        ("1.1", b"http://a.example/", [b"A.example:"], False),
        ("1.0", b"http://a.example/", [], False),
        ("1.1", b"http://a.example/", [b"b.example"], True),
        ("1.1", b"http://a.example:81/", [b"a.example"], True),
        ("1.1", b"/", [b"a.example", b"a.example"], True),
    ],
)
def test_host_of_the_target_and_of_the_header_must_be_one(
    version: str, target: bytes, hosts: list[bytes], is_refused: bool
) -> None:
    headers = [(b"host", host) for host in hosts]
    assert (ambiguity(headers, version, target) is not None) == is_refused
