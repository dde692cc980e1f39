"""The Kafka port's bookkeeping: who may come, and who has to go. No port is opened here."""

import asyncio
import contextlib
import socket
from typing import Any

import pytest
from connection_bench import frame

from anabranch.broker.requests.call import Call
from anabranch.server.connection import FREE_BYTES, Connection
from anabranch.server.eviction import CLOSED_PER_SWEEP_MAX, SENDING_MS_MIN
from anabranch.server.listener import ANSWER_MS_MAX_WHEN_SHORT, Listener
from anabranch.server.receive_buffer import ReceiveBuffer
from support.broker_bench import Bench, in_loop, turn

PRODUCE, HEARTBEAT = 0, 12
FRAME = 2_000_000
BUDGET = 2 * FRAME


def make(connections_max: int = 10, per_host_max: int = 10, **settings: Any) -> tuple[Bench, Listener]:
    bench = Bench(**settings)
    listener = Listener(bench.broker, bench.clock, connections_max, per_host_max)
    listener.poller.start()
    return bench, listener


def connect(listener: Listener, host: str = "peer") -> tuple[Connection, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    connection = Connection(listener, ours, host)
    listener.remember(connection)
    return connection, theirs


async def push(sock: socket.socket, data: bytes) -> None:
    """Send as much as the other side takes."""
    view = memoryview(data)
    for _ in range(200):
        with contextlib.suppress(BlockingIOError):
            view = view[sock.send(view) :]
        await turn(2)
        if not view:
            break
    await turn()


def note_calls(listener: Listener) -> list[Call]:
    """What clients ask from now on; the broker hears nothing of it."""
    calls: list[Call] = []
    listener.serve_through(lambda _broker, call: calls.append(call))
    return calls


async def push_some(sock: socket.socket, data: memoryview) -> int:
    """Send as much as the other side takes now; how much that is."""
    try:
        sent = sock.send(data) if data else 0
    except BlockingIOError:
        sent = 0
    await turn()
    return sent


async def push_next(sock: socket.socket, frame_bytes: int, here: int) -> None:
    await push(sock, frame_bytes.to_bytes(4, "big") + bytes(here))


@in_loop
async def test_frames_that_all_wait_for_memory_of_each_other_do_not_wait_for_ever() -> None:
    _bench, listener = make(socket_request_max_bytes=FRAME, request_memory_bytes_max=BUDGET)
    listener.memory.bytes_max = (
        FRAME + FRAME // 4
    )  # Enough for the first frame of both, and not for a second one.
    calls = note_calls(listener)
    peers = [connect(listener) for _ in range(2)]
    for connection, sock in peers:
        await push(sock, frame(PRODUCE, bytes(FRAME // 2)))
        assert connection.memory_held > 0, "it keeps the buffer of the frame before"
        calls.pop().answer([b"1"])
        await turn()
    for _, sock in peers:
        await push_next(sock, FRAME, FRAME // 2 + 1000)
    assert [connection.is_in_line for connection, _ in peers] == [True, True]
    listener._sweep()
    survivors = [connection for connection, _ in peers if not connection.is_closed]
    assert len(survivors) == 1
    assert not survivors[0].is_in_line, "its turn came when the other one went"
    await listener.close(1)
    for _, sock in peers:
        sock.close()
    assert listener.memory.bytes_taken == 0


@in_loop
async def test_frames_that_arrive_quickly_are_waited_for() -> None:
    bench, listener = make(
        connections_max=100, per_host_max=100, socket_request_max_bytes=FRAME, request_memory_bytes_max=BUDGET
    )
    calls = note_calls(listener)
    producers = [connect(listener)[1] for _ in range(20)]
    left = {sock: memoryview(frame(PRODUCE, bytes(FRAME - 100))) for sock in producers}
    for _ in range(600):
        bench.clock.advance(250)
        for sock, data in left.items():  # 200 KB a second: ten seconds for each frame.
            left[sock] = data[await push_some(sock, data[:50_000]) :]
        listener._sweep()
        for call in calls:
            call.answer(None)
        calls.clear()
    assert not any(left.values())
    assert (listener.eviction.closed_total, len(listener.connections)) == (0, 20)
    await listener.close(1)
    for sock in producers:
        sock.close()


@in_loop
async def test_as_many_slow_frames_are_closed_as_those_who_wait_need() -> None:
    bench, listener = make(
        connections_max=100, per_host_max=100, socket_request_max_bytes=FRAME, request_memory_bytes_max=BUDGET
    )
    slow = [connect(listener) for _ in range(4)]
    for number, (_, sock) in enumerate(slow):
        await push_next(sock, FRAME // 4, 75_000 - 1000 * number)
    listener.memory.bytes_max = listener.memory.bytes_taken
    assert all(connection.memory_held for connection, _ in slow)
    bench.clock.advance(SENDING_MS_MIN - 100)
    others = [connect(listener) for _ in range(2)]
    for _, sock in others:
        await push_next(sock, FRAME // 8, 100_000)
    listener._sweep()
    assert [connection.is_in_line for connection, _ in others] == [True, True], (
        "too early to tell who is slow"
    )
    for _, sock in slow:
        await push(sock, bytes(10))
    bench.clock.advance(2200)
    listener._sweep()
    assert [connection.is_closed for connection, _ in slow] == [False] * 3 + [True], "the slowest is enough"
    assert [connection.is_in_line for connection, _ in others] == [False, False]
    await listener.close(1)
    for _, sock in (*others, *slow):
        sock.close()


@in_loop
async def test_buffer_of_a_frame_before_is_given_back_although_part_of_the_next_is_in_it() -> None:
    _bench, listener = make(socket_request_max_bytes=FRAME, request_memory_bytes_max=BUDGET)
    calls = note_calls(listener)
    connection, sock = connect(listener)
    await push(sock, frame(PRODUCE, bytes(FRAME // 2)))
    calls.pop().answer([b"1"])
    body = bytes(range(250)) * 4
    await push(sock, frame(PRODUCE, body)[:500])
    assert connection.memory_held > 0
    listener.memory.bytes_max = listener.memory.bytes_taken
    other, other_sock = connect(listener)
    await push_next(other_sock, FRAME // 2, 200_000)
    assert other.is_in_line
    listener._sweep()
    assert (other.is_in_line, connection.memory_held, connection.is_closed) == (False, 0, False)
    await push(sock, frame(PRODUCE, body)[500:])
    assert [bytes(call.view[call.body : call.end]) for call in calls] == [body]
    await listener.close(0.01)
    sock.close()
    other_sock.close()


@in_loop
async def test_half_frames_of_many_connections_keep_no_memory_from_a_large_request() -> None:
    _bench, listener = make(
        connections_max=1000,
        per_host_max=1000,
        socket_request_max_bytes=FRAME,
        request_memory_bytes_max=BUDGET,
    )
    half = [connect(listener) for _ in range(200)]
    for _, sock in half:
        await push(sock, (1_000_000).to_bytes(4, "big") + bytes(10))
    other, other_sock = connect(listener)
    await push(other_sock, (900_000).to_bytes(4, "big") + bytes(100_000))
    assert (other.is_in_line, listener.memory.bytes_taken) == (False, other.memory_held)
    await listener.close(1)
    for sock in (other_sock, *[sock for _, sock in half]):
        sock.close()


@in_loop
async def test_flood_of_one_address_costs_connections_of_that_address_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench, listener = make(
        connections_max=100, per_host_max=100, socket_request_max_bytes=FRAME, request_memory_bytes_max=BUDGET
    )
    honest, honest_sock = connect(listener, "192.0.2.1")
    await push_next(honest_sock, 600_000, 70_000)
    bench.clock.advance(2000)  # It is the slowest at first.
    flood = [connect(listener, "192.0.2.66") for _ in range(8)]
    for _, sock in flood:
        await push_next(sock, FRAME, 70_000)
    assert listener.memory.is_short
    for _ in range(120):
        await push(honest_sock, bytes(4000))
        for _, sock in flood:
            with contextlib.suppress(BrokenPipeError):
                await push(sock, bytes(10))
        listener._sweep()
        bench.clock.advance(250)
        if not listener.memory.is_short:
            break
    assert not listener.memory.is_short
    assert not honest.is_closed
    assert 0 < listener.eviction.closed_total == sum(connection.is_closed for connection, _ in flood) < 8
    assert "192.0.2.66" in caplog.text
    assert "192.0.2.1 " not in caplog.text
    await listener.close(1)
    for _, sock in (*flood, (honest, honest_sock)):
        sock.close()
    assert listener.memory.bytes_taken == 0


@in_loop
async def test_standoff_ends_at_the_cost_of_the_address_that_claims_most() -> None:
    bench, listener = make(socket_request_max_bytes=FRAME, request_memory_bytes_max=BUDGET)
    calls = note_calls(listener)
    flood = [connect(listener, "192.0.2.66") for _ in range(3)]
    honest, honest_sock = connect(listener, "192.0.2.1")
    everybody = [*flood, (honest, honest_sock)]
    for _, sock in everybody:
        await push(sock, frame(PRODUCE, bytes(FRAME // 2)))
        calls.pop().answer([b"1"])
        await turn()
    listener.memory.bytes_max = listener.memory.bytes_taken + 100_000
    for _, sock in everybody:
        bench.clock.advance(10)
        await push_next(sock, FRAME, FRAME // 2 + 1000)
    assert all(connection.is_in_line for connection, _ in everybody)
    listener._sweep()
    assert not honest.is_closed
    assert [connection.is_closed for connection, _ in flood] == [False, False, True]
    assert not all(connection.is_in_line for connection, _ in everybody if not connection.is_closed)
    await listener.close(1)
    for _, sock in everybody:
        sock.close()


@in_loop
async def test_small_buffers_of_half_frames_are_limited_together() -> None:
    bench, listener = make(
        connections_max=200, per_host_max=200, socket_request_max_bytes=FRAME, request_memory_bytes_max=BUDGET
    )
    listener.memory.bytes_max = 20 * FREE_BYTES
    half = [connect(listener, "192.0.2.66") for _ in range(40)]
    for _, sock in half:
        await push(sock, FRAME.to_bytes(4, "big") + bytes(FREE_BYTES - 1000))
    honest, honest_sock = connect(listener, "192.0.2.1")
    await push(honest_sock, (50_000).to_bytes(4, "big") + bytes(20_000))
    assert listener.memory.bytes_taken == 0, "small buffers are everybody's right"
    bench.clock.advance(SENDING_MS_MIN + 1)
    listener._sweep()
    assert not honest.is_closed
    assert sum(connection.free_bytes_held for connection in listener.connections) <= 20 * FREE_BYTES
    await listener.close(1)
    for _, sock in (*half, (honest, honest_sock)):
        sock.close()


def waiting_request() -> bytes:
    """A request without records, which holds the connection until it is answered."""
    return frame(HEARTBEAT, b"")


@in_loop
async def test_bytes_sent_behind_a_request_that_waits_keep_no_memory_from_others() -> None:
    _bench, listener = make(socket_request_max_bytes=FRAME, request_memory_bytes_max=BUDGET)
    calls = note_calls(listener)
    blocked = [connect(listener, "192.0.2.66") for _ in range(2)]
    for connection, sock in blocked:
        await push(sock, frame(PRODUCE, bytes(FRAME - 100)))
        calls[-1].answer([b"1"])
        await turn()
        await push(sock, waiting_request())
        await push(sock, bytes(FRAME))
        assert len(connection._buffer) <= FREE_BYTES, "a held connection reads no further"
    honest, honest_sock = connect(listener, "192.0.2.1")
    await push_next(honest_sock, FRAME // 2, 100_000)
    assert honest.is_in_line
    listener._sweep()
    assert (honest.is_in_line, [each.memory_held for each, _ in blocked]) == (False, [0, 0])
    await listener.close(0.01)
    for _, sock in (*blocked, (honest, honest_sock)):
        sock.close()


@in_loop
async def test_frame_on_its_way_keeps_nothing_of_what_a_larger_one_before_it_took() -> None:
    _bench, listener = make(socket_request_max_bytes=FRAME, request_memory_bytes_max=BUDGET)
    calls = note_calls(listener)
    slow, sock = connect(listener, "192.0.2.66")
    await push(sock, frame(PRODUCE, bytes(FRAME - 100)))
    calls.pop().answer([b"1"])
    await turn()
    body = bytes(range(250)) * 400
    await push(sock, frame(PRODUCE, body)[:-200])
    assert len(slow._buffer) > FREE_BYTES
    listener.memory.bytes_max = listener.memory.bytes_taken
    honest, honest_sock = connect(listener, "192.0.2.1")
    await push_next(honest_sock, FRAME // 2, 100_000)
    assert honest.is_in_line
    listener._sweep()
    assert (honest.is_in_line, slow.is_closed) == (False, False)
    assert slow.memory_held <= 2 * len(body) - FREE_BYTES
    await push(sock, frame(PRODUCE, body)[-200:])
    assert [bytes(call.view[call.body : call.end]) for call in calls] == [body]
    await listener.close(0.01)
    for each in (sock, honest_sock):
        each.close()


@in_loop
async def test_bytes_behind_answers_that_are_not_read_keep_no_memory_from_others() -> None:
    bench, listener = make(
        socket_request_max_bytes=FRAME,
        request_memory_bytes_max=BUDGET,
        connection_requests_max=8,
        connection_response_bytes_max=1024,
    )
    calls = note_calls(listener)
    unread, sock = connect(listener, "192.0.2.66")
    await push(sock, frame(PRODUCE, bytes(FRAME - 100)))
    calls[-1].answer([b"1"])
    await turn()
    assert sock.send(frame(PRODUCE) * 8 + frame(PRODUCE, bytes(100_000))) > 100_000
    await turn()
    for call in calls[1:]:
        call.answer([bytes(100_000)])
    await turn()
    assert len(unread._buffer) > FREE_BYTES
    listener.memory.bytes_max = listener.memory.bytes_taken
    honest, honest_sock = connect(listener, "192.0.2.1")
    await push_next(honest_sock, FRAME - 100, 100_000)
    for _ in range(20):
        bench.clock.advance(250)
        listener._sweep()
    assert (unread.is_closed, honest.is_closed, honest.is_in_line) == (True, False, False)
    await listener.close(0.01)
    for each in (sock, honest_sock):
        each.close()


@in_loop
async def test_what_came_with_a_request_that_waits_is_closed_when_others_need_the_memory() -> None:
    bench, listener = make(socket_request_max_bytes=FRAME, request_memory_bytes_max=BUDGET)
    calls = note_calls(listener)
    blocked, sock = connect(listener, "192.0.2.66")
    await push(sock, frame(PRODUCE, bytes(FRAME - 100)))
    calls[-1].answer([b"1"])
    await turn()
    assert sock.send(waiting_request() + bytes(100_000)) > 2 * FREE_BYTES - 50_000
    await turn(3)
    assert len(blocked._buffer) > FREE_BYTES
    listener.memory.bytes_max = listener.memory.bytes_taken
    honest, honest_sock = connect(listener, "192.0.2.1")
    await push_next(honest_sock, FRAME - 100, 100_000)
    for _ in range(20):
        bench.clock.advance(250)
        listener._sweep()
    assert (blocked.is_closed, honest.is_closed) == (True, False)
    await listener.close(0.01)
    sock.close()
    honest_sock.close()


@in_loop
async def test_standoff_ends_although_no_holder_claims_more_than_an_even_share() -> None:
    _bench, listener = make(socket_request_max_bytes=FRAME, request_memory_bytes_max=BUDGET)
    calls = note_calls(listener)
    holders = [connect(listener, host) for host in ("192.0.2.1", "192.0.2.2")]
    for _, sock in holders:
        await push(sock, frame(PRODUCE, bytes(FRAME * 3 // 4)))
        calls[-1].answer([b"1"])
        await turn(3)
    listener.memory.bytes_max = listener.memory.bytes_taken + FRAME * 9 // 10
    first, first_sock = connect(listener, "192.0.2.3")
    await push_next(first_sock, FRAME, 100_000)
    for _, sock in holders:
        await push_next(sock, FRAME * 3 // 4 + 20_000, FRAME * 3 // 4 + 19_000)
    assert all(connection.is_in_line for connection, _ in (*holders, (first, first_sock)))
    listener._sweep()
    assert not all(each.is_in_line for each in listener.connections)
    assert sum(connection.is_closed for connection, _ in holders) == 1
    await listener.close(0.01)
    for _, sock in (*holders, (first, first_sock)):
        sock.close()


@in_loop
async def test_memory_that_was_waited_for_is_not_taken_back() -> None:
    _bench, listener = make(
        connections_max=100, per_host_max=100, socket_request_max_bytes=FRAME, request_memory_bytes_max=BUDGET
    )
    calls = note_calls(listener)
    idle = [connect(listener) for _ in range(2)]
    for _, sock in idle:
        await push(sock, frame(PRODUCE, bytes(FRAME - 100)))
        calls[-1].answer([b"1"])
        await turn(3)
    waiting = [connect(listener) for _ in range(20)]
    for _, sock in waiting:
        await push_next(sock, FRAME // 2, 100_000)
    listener._sweep()
    granted = [connection for connection, _ in waiting if not connection.is_in_line]
    assert len(granted) >= 3
    assert all(connection.memory_held for connection in granted)
    await listener.close(0.01)
    for _, sock in (*idle, *waiting):
        sock.close()


@in_loop
async def test_small_buffers_behind_requests_that_wait_and_in_line_are_limited_too() -> None:
    bench, listener = make(
        connections_max=200, per_host_max=200, socket_request_max_bytes=FRAME, request_memory_bytes_max=BUDGET
    )
    calls = note_calls(listener)
    listener.memory.bytes_max = listener.memory.bytes_taken = 20 * FREE_BYTES
    everybody = [connect(listener, "192.0.2.66") for _ in range(60)]
    for number, (connection, sock) in enumerate(everybody):
        if number % 2:
            await push(sock, frame(PRODUCE, bytes(36_000)))
            calls[-1].answer([b"1"])
            await turn()
            await push(sock, waiting_request())
            await push(sock, bytes(FREE_BYTES))
        else:
            await push_next(sock, FRAME // 2, 100_000)
            assert connection.is_in_line
    for _ in range(10):
        bench.clock.advance(1000)
        listener._sweep()
    assert sum(connection.free_bytes_held for connection in listener.connections) <= 20 * FREE_BYTES
    for connection, _ in everybody:
        connection.close("test")
    listener.memory.bytes_taken = 0
    await listener.close(0.01)
    for _, sock in everybody:
        sock.close()


@in_loop
async def test_sweep_closes_only_so_many_at_once() -> None:
    _bench, listener = make(
        connections_max=1000,
        per_host_max=1000,
        socket_request_max_bytes=FRAME,
        request_memory_bytes_max=BUDGET,
    )
    calls = note_calls(listener)
    holders = [connect(listener) for _ in range(CLOSED_PER_SWEEP_MAX + 30)]
    for _, sock in holders:
        await push(sock, frame(PRODUCE, bytes(70_000)))
        calls.pop().answer([b"1"])
        await turn()
    listener.memory.bytes_max = listener.memory.bytes_taken
    for _, sock in holders:
        await push_next(sock, listener.memory.bytes_taken * 95 // 100, 80_000)
    assert all(connection.is_in_line for connection, _ in holders)
    listener._sweep()
    assert len(listener.connections) == 30
    assert all(connection.is_in_line for connection in listener.connections)
    listener._sweep()
    assert any(not connection.is_in_line for connection in listener.connections)
    await listener.close(0.01)
    for _, sock in holders:
        sock.close()


@in_loop
async def test_client_whose_request_waits_for_memory_is_not_idle() -> None:
    bench, listener = make(
        socket_request_max_bytes=FRAME, request_memory_bytes_max=BUDGET, connections_max_idle_ms=1000
    )
    listener.memory.bytes_taken = BUDGET
    connection, sock = connect(listener)
    await push_next(sock, FRAME, 100_000)
    assert connection.is_in_line
    bench.clock.advance(5000)
    listener._sweep()
    assert not connection.is_closed
    connection.close("test")
    listener.memory.bytes_taken = 0
    await listener.close(0.01)
    sock.close()


@in_loop
async def test_request_that_cannot_use_the_memory_it_waited_for_costs_its_connection_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _bench, listener = make(socket_request_max_bytes=FRAME, request_memory_bytes_max=BUDGET)
    listener.memory.bytes_taken = BUDGET
    broken, sock = connect(listener)
    await push_next(sock, FRAME, 100_000)

    def no_room(_self: ReceiveBuffer, _capacity: int) -> None:
        raise MemoryError

    monkeypatch.setattr(ReceiveBuffer, "resize", no_room)
    listener.memory.give(BUDGET)
    assert (broken.is_closed, listener.memory.bytes_taken, len(listener.connections)) == (True, 0, 0)
    await listener.close(0.01)
    sock.close()


@pytest.mark.parametrize("is_need", [False, True])
@in_loop
async def test_reader_that_takes_nothing_is_closed_soon_if_answers_fill_the_memory(is_need: bool) -> None:
    bench, listener = make(socket_request_max_bytes=FRAME, request_memory_bytes_max=BUDGET)
    connection, sock = connect(listener)
    connection._out.put([bytes(BUDGET + FRAME if is_need else FRAME)])
    connection._send()
    bench.clock.advance(ANSWER_MS_MAX_WHEN_SHORT + 1)
    listener._sweep()
    assert connection.is_closed == is_need
    connection.close("test")
    await listener.close(1)
    sock.close()
    assert bench.broker.answers_held.count == 0


@in_loop
async def test_empty_buffers_are_given_back_before_frames_are_closed_for_small_ones() -> None:
    bench, listener = make(
        connections_max=200, per_host_max=200, socket_request_max_bytes=FRAME, request_memory_bytes_max=BUDGET
    )
    listener.memory.bytes_max = 20 * FREE_BYTES
    calls = note_calls(listener)
    idle = [connect(listener, "192.0.2.66") for _ in range(40)]
    for _, sock in idle:
        await push(sock, frame(PRODUCE, bytes(50_000)))
        calls.pop().answer([b"1"])
        await turn()
    honest, honest_sock = connect(listener, "192.0.2.66")
    await push_next(honest_sock, 50_000, 20_000)
    bench.clock.advance(SENDING_MS_MIN + 1)
    listener._sweep()
    assert len(listener.connections) == 41
    assert not honest.is_closed
    await listener.close(1)
    for _, sock in (*idle, (honest, honest_sock)):
        sock.close()


@in_loop
async def test_defect_found_by_the_sweep_costs_its_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    bench, listener = make(connections_max_idle_ms=1000)
    broken, broken_sock = connect(listener)
    idle, idle_sock = connect(listener)
    bench.clock.advance(1001)
    broken.overdue = lambda *_: 1 / 0  # type: ignore[method-assign]
    listener._sweep()
    assert (broken.is_closed, idle.is_closed) == (True, True)
    assert "ZeroDivisionError" in caplog.text
    await listener.close(1)
    broken_sock.close()
    idle_sock.close()


@in_loop
async def test_newcomer_beyond_the_limit_is_closed_and_counted() -> None:
    _bench, listener = make(connections_max=1)
    connection, sock = connect(listener)
    ours, theirs = socket.socketpair()
    listener._welcome(ours, "late")
    assert (ours.fileno(), listener.connections_refused_total) == (-1, 1)
    connection.close("test")
    sock.close()
    theirs.close()


@in_loop
async def test_newcomer_that_is_gone_already_leaves_nothing_open() -> None:
    _, listener = make()
    ours, theirs = socket.socketpair()  # Not TCP: setting TCP_NODELAY fails as it does for a dead peer.
    listener._welcome(ours, "gone")
    assert (ours.fileno(), len(listener.connections), listener.connections_total) == (-1, 0, 0)
    theirs.close()


@in_loop
async def test_close_gives_up_on_a_reader_that_takes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    _, listener = make()
    connection, sock = connect(listener)
    connection._out.put([memoryview(bytes(10_000_000))])
    connection._send()
    await listener.close(0)
    assert connection.is_closed
    assert "did not take their answers" in caplog.text
    sock.close()


@in_loop
async def test_close_ends_as_soon_as_the_last_connection_is_done() -> None:
    _, listener = make()
    connection, sock = connect(listener)
    connection._out.put([memoryview(bytes(1_000_000))])
    connection._send()
    closing = asyncio.create_task(listener.close(60))
    while not closing.done():
        with contextlib.suppress(BlockingIOError):
            sock.recv(2**20)
        await turn(2)
    assert connection.is_closed
    sock.close()


@in_loop
async def test_connection_whose_answers_cannot_be_sent_costs_nobody_else_anything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _bench, listener = make()
    (bad, bad_sock), (good, good_sock) = connect(listener), connect(listener)

    def broken() -> None:
        raise ValueError("a defect")

    bad.flush = broken  # type: ignore[method-assign]
    good._out.put([b"answer"])
    listener.flush_due += [bad, good]
    listener.broker.core.turn()
    assert good_sock.recv(100) == b"answer"
    assert bad.is_closed
    assert "this is a defect" in caplog.text
    assert not listener.flush_due
    await listener.close(1)
    bad_sock.close()
    good_sock.close()


@in_loop
async def test_socket_that_cannot_be_watched_leaves_nothing_behind_for_the_next_with_its_number() -> None:
    _bench, listener = make()
    ours, theirs = socket.socketpair()
    epoll = listener.poller._epoll

    class Full:
        def register(self, *_: object) -> None:
            raise OSError("no room for another watch")

    listener.poller._epoll = Full()  # type: ignore[assignment]
    with pytest.raises(OSError, match="no room"):
        listener.poller.watch(ours.fileno(), 1, None)  # type: ignore[arg-type]
    listener.poller._epoll = epoll
    connection = Connection(listener, ours, "peer")
    connection.close("test")
    theirs.close()
    await listener.close(1)


@in_loop
async def test_one_address_gets_only_some_of_the_connections() -> None:
    _bench, listener = make(connections_max=10, per_host_max=2)
    door = socket.create_server(("127.0.0.1", 0))
    theirs = []

    def come_from(host: str) -> None:
        theirs.append(socket.create_connection(door.getsockname()))
        ours = door.accept()[0]
        ours.setblocking(False)
        listener._welcome(ours, host)

    for host in ("here", "here", "here", "there", "here"):
        come_from(host)
    assert sorted(each.host for each in listener.connections) == ["here", "here", "there"]
    assert listener.connections_refused_total == 2
    next(each for each in listener.connections if each.host == "here").close("it leaves")
    come_from("here")
    assert len(listener.connections) == 3
    await listener.close(1)
    assert not listener._per_network
    for sock in (door, *theirs):
        sock.close()
