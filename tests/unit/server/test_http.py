"""/metrics and /healthz: one request per connection, and nobody holds one for ever."""

import asyncio
import json
import socket
from typing import Any

import pytest

from anabranch.errors import StorageError
from anabranch.server import http
from anabranch.server.http import HttpServer
from anabranch.server.listener import Listener
from anabranch.server.metrics import render
from support.broker_bench import Bench, batch_of, in_loop, turn


def make() -> tuple[Bench, HttpServer]:
    bench = Bench()
    return bench, HttpServer(bench.broker, Listener(bench.broker, bench.clock, 10))


def ask(server: HttpServer, line: str) -> tuple[int, bytes]:
    answer = server._answer(f"{line}\r\nHost: x\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head or line.startswith("HEAD")
    return int(head.split(b" ")[1]), body


@in_loop
async def test_health_is_good_until_a_partition_is_fenced() -> None:
    bench, server = make()
    partition = await bench.topic("t")
    status, body = ask(server, "GET /healthz HTTP/1.1")
    assert (status, json.loads(body)["status"]) == (200, "ok")
    bench.disk.fail_next("sync", path_contains="t-0")
    bench.submit(partition)
    await turn()
    status, body = ask(server, "GET /healthz HTTP/1.1")
    health = json.loads(body)
    assert (status, health["status"], health["fenced_partitions"]) == (503, "degraded", ["t-0"])


@in_loop
async def test_health_is_bad_when_groups_cannot_be_read_back() -> None:
    bench, server = make()
    bench.broker.offsets_topic.failed.add(0)
    status, body = ask(server, "GET /healthz HTTP/1.1")
    assert (status, json.loads(body)["groups"]) == (503, "failed")


@in_loop
async def test_health_is_bad_when_topics_cannot_be_written_down() -> None:
    bench, server = make()
    bench.disk.fail_next("sync", path_contains="__cluster_metadata")
    with pytest.raises(StorageError):
        await bench.topic("t")
    status, body = ask(server, "GET /healthz HTTP/1.1")
    assert (status, json.loads(body)["fenced_partitions"]) == (503, ["__cluster_metadata-0"])
    assert b"anabranch_fenced_partitions 1.0" in render(bench.broker, server._listener)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /metrics HTTP/1.1", 200),
        ("GET /metrics?x=1 HTTP/1.1", 200),
        ("HEAD /metrics HTTP/1.1", 200),
        ("GET /nothing HTTP/1.1", 404),
        ("POST /metrics HTTP/1.1", 405),
        ("hello", 400),
        ("GET /metrics FTP/1.1", 400),
    ],
)
def test_status_of(line: str, status: int) -> None:
    @in_loop
    async def body() -> None:
        assert ask(make()[1], line)[0] == status

    body()


@in_loop
async def test_head_has_no_body() -> None:
    assert ask(make()[1], "HEAD /healthz HTTP/1.1")[1] == b""


@in_loop
async def test_metrics_count_what_happened() -> None:
    bench, server = make()
    partition = await bench.topic("t", 2)
    batch = batch_of(b"x")
    await bench.core.append(partition, batch)
    bench.broker.corrupt_reads_total = 3
    text = render(bench.broker, server._listener).decode()
    metadata_bytes = bench.core.bytes_in_total - len(batch)
    for line in (
        "anabranch_topics 1.0",
        "anabranch_partitions 2.0",
        f"anabranch_bytes_in_total {float(metadata_bytes + len(batch))}",
        f"anabranch_log_bytes {float(len(batch))}",
        "anabranch_corrupt_reads_total 3.0",
        "anabranch_append_queue_bytes 0.0",
        "anabranch_fenced_partitions 0.0",
    ):
        assert line in text.splitlines(), line


async def opened(server: HttpServer) -> tuple["asyncio.Task[None]", socket.socket, asyncio.StreamWriter]:
    """One connection being served, without a port."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=ours)
    return asyncio.create_task(server._serve(reader, writer)), theirs, writer


@in_loop
async def test_request_is_answered_and_the_connection_closed() -> None:
    _, server = make()
    serving, sock, _ = await opened(server)
    sock.send(b"GET /healthz HTTP/1.1\r\n\r\n")
    await serving
    assert sock.recv(1000).startswith(b"HTTP/1.1 200 OK")
    assert sock.recv(1000) == b""
    sock.close()


@pytest.mark.parametrize("sent", [b"GET /heal", b"", b"x" * 20_000])
def test_request_that_is_never_finished_is_dropped(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS_MAX", 0.01)

    @in_loop
    async def body() -> None:
        _, server = make()
        serving, sock, writer = await opened(server)
        sock.send(sent)
        await serving
        assert (writer.transport.is_closing(), server._connections) == (True, 0)
        sock.close()

    body()


@in_loop
async def test_reader_that_takes_no_answer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS_MAX", 0.05)
    _, server = make()
    server._page = lambda target: (200, "text/plain", bytes(20_000_000))
    serving, sock, writer = await opened(server)
    sock.send(b"GET /metrics HTTP/1.1\r\n\r\n")
    await serving
    await turn()
    assert writer.transport.get_write_buffer_size() == 0, "the answer is kept for somebody who never takes it"
    sock.close()


@in_loop
async def test_too_many_connections_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 1)
    _, server = make()
    first, first_sock, _ = await opened(server)
    await turn()
    second, second_sock, _ = await opened(server)
    await second
    await turn()
    assert second_sock.recv(10) == b""
    first_sock.send(b"GET /healthz HTTP/1.1\r\n\r\n")
    await first
    assert first_sock.recv(10)
    first_sock.close()
    second_sock.close()


@in_loop
async def test_closing_a_server_that_was_never_opened_is_fine() -> None:
    server: Any = make()[1]
    await server.close()
