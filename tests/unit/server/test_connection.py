"""One client's socket: frames in, answers out in order, and what holds it up."""

import asyncio
import socket
from typing import Any

import pytest
from connection_bench import Peer, frame, steps_of, with_peer

from anabranch.broker.requests.call import Call
from anabranch.errors import ProtocolError
from anabranch.server.connection import FREE_BYTES, Connection
from anabranch.server.receive_buffer import SMALL_BYTES
from support.broker_bench import turn

PRODUCE, FETCH, HEARTBEAT = 0, 1, 12
IDLE_MS, FRAME_MS = 600_000, 30_000


@with_peer
async def test_frame_cut_into_single_bytes_is_one_call(peer: Peer) -> None:
    for byte in frame(HEARTBEAT, b"body", number=9):
        peer.send(bytes([byte]))
        await turn(3)
    (call,) = peer.calls
    assert (call.header.correlation_id, bytes(call.view[call.body : call.end])) == (9, b"body")


@with_peer
async def test_answers_leave_in_the_order_of_the_requests(peer: Peer) -> None:
    peer.send(frame(PRODUCE), frame(PRODUCE), frame(PRODUCE))
    await turn()
    first, second, third = peer.calls
    third.answer([b"3"])
    await turn()
    assert peer.received() == b""
    first.answer([b"1", b"!"])
    second.answer(None)
    await turn()
    assert peer.received() == b"1!3"


@with_peer
async def test_request_that_is_no_produce_holds_what_comes_behind_it(peer: Peer) -> None:
    peer.send(frame(PRODUCE), frame(FETCH), frame(HEARTBEAT))
    await turn()
    assert len(peer.calls) == 2
    peer.calls[0].answer([b"p"])
    await turn()
    assert len(peer.calls) == 2
    peer.calls[1].answer([b"f"])
    await turn()
    assert len(peer.calls) == 3
    assert peer.received() == b"pf"


@with_peer
async def test_produce_that_asks_for_it_holds_too(peer: Peer) -> None:
    def dispatch(broker: Any, call: Call) -> None:
        call.holds = not peer.calls
        peer.calls.append(call)

    peer.listener.dispatch = dispatch
    peer.send(frame(PRODUCE), frame(PRODUCE))
    await turn()
    assert len(peer.calls) == 1
    peer.calls[0].answer([b"1"])
    await turn()
    assert len(peer.calls) == 2


@with_peer
async def test_bytes_of_a_produce_stay_as_they_are_until_the_writer_has_taken_them(peer: Peer) -> None:
    written: list[bytes] = []

    def write() -> None:
        if peer.listener.core.queue:
            call = peer.calls[-1]
            written.append(bytes(call.view[call.end - 5 : call.end]))

    peer.listener.core.on_turn = write
    peer.send(frame(PRODUCE, b"first"))
    await turn()
    peer.listener.core.queue.is_write_due = True
    peer.send(frame(PRODUCE, b"other"))
    await turn()
    assert written == [b"first"], "what is due is written before the buffer is read into again"
    assert len(peer.calls) == 2


@with_peer
async def test_what_is_parsed_when_a_reader_takes_its_answers_is_not_read_over_in_the_same_turn(
    peer: Peer,
) -> None:
    """Held frames are parsed as soon as answers have left; just then more may have arrived."""
    core, lent, changed = peer.listener.core, [], []

    def dispatch(broker: Any, call: Call) -> None:
        peer.calls.append(call)
        lent.append((call, bytes(call.view[call.body : call.end])))
        core.queue.is_write_due = True

    def write() -> None:
        changed.extend(sent for call, sent in lent if bytes(call.view[call.body : call.end]) != sent)
        lent.clear()

    peer.listener.dispatch = dispatch
    core.on_turn = write
    peer.send(frame(PRODUCE, b"first!"))
    await turn()
    peer.calls[0].answer([bytes(2_000_000)])
    await turn()
    for held_up in (b"second", b"third!"):
        peer.send(frame(PRODUCE, held_up))
        await turn()
    assert len(peer.calls) == 2, "the third waits until somebody takes the answer"
    while len(peer.calls) < 3:
        peer.received()
        peer.send(frame(PRODUCE, b"fourth"))
        await turn(1)
    await turn()
    assert not changed


@with_peer
async def test_client_with_many_short_requests_gives_way_to_others_between_them(peer: Peer) -> None:
    core, in_one_turn, most = peer.listener.core, 0, 0

    def dispatch(broker: Any, call: Call) -> None:
        nonlocal in_one_turn, most
        in_one_turn += 1
        most = max(most, in_one_turn)
        call.answer([b"1"])

    def begin() -> None:
        nonlocal in_one_turn
        in_one_turn = 0

    peer.listener.dispatch = dispatch
    core.on_turn = begin
    peer.send(*[frame(HEARTBEAT)] * 50)
    await turn(300)
    assert peer.received() == b"1" * 50
    assert most <= 2, "each answer ends a hold, and what it held up waits for the next turn"


@with_peer
async def test_connections_share_what_a_step_parses(peer: Peer) -> None:
    peer.listener.requests_max = 100
    peers = [peer, Peer(peer.listener), Peer(peer.listener)]
    steps: list[list[Connection]] = []
    begin_step = peer.listener.poller._begin_step

    def note_step(connections: int) -> None:
        begin_step(connections)
        steps.append([])

    peer.listener.poller._begin_step = note_step
    peer.listener.dispatch = lambda _broker, call: steps[-1].append(call.client)
    for each in peers:
        each.send(*[frame(PRODUCE)] * 10)
    with steps_of(frames=6):
        await turn(100)
    assert all(steps[0].count(each.connection) == 2 for each in peers)
    assert [sum(step.count(each.connection) for step in steps) for each in peers] == [10, 10, 10]
    for each in peers[1:]:
        each.connection.close("the test is over")
        each.sock.close()


@with_peer
async def test_newcomer_does_not_wait_behind_the_backlog_of_others(peer: Peer) -> None:
    peer.listener.requests_max = 100
    others = [Peer(peer.listener) for _ in range(10)]
    for each in others:
        each.send(*[frame(PRODUCE)] * 20)
    with steps_of(frames=1, step_ns=-1):  # Each step gets as far as one connection.
        await turn(20)
        before = len(peer.calls)
        peer.send(frame(PRODUCE))
        while peer.calls[-1].client is not peer.connection:
            await turn(1)
        assert len(peer.calls) - before <= 3
        await turn(400)
    assert len(peer.calls) == 10 * 20 + 1, "and those behind go on"
    for each in others:
        each.connection.close("the test is over")
        each.sock.close()


@with_peer
async def test_requests_in_line_are_parsed_although_their_client_has_closed(peer: Peer) -> None:
    peer.send(*[frame(PRODUCE)] * 4)
    peer.sock.shutdown(socket.SHUT_WR)
    with steps_of(frames=1):
        await turn(50)
    assert len(peer.calls) == 4
    assert peer.connection.is_closed


@with_peer
async def test_too_many_open_requests_hold(peer: Peer) -> None:
    peer.send(*[frame(PRODUCE)] * 7)
    await turn()
    assert len(peer.calls) == peer.listener.requests_max
    peer.calls[0].answer([b"x"])
    await turn()
    assert len(peer.calls) == peer.listener.requests_max + 1


@with_peer
async def test_reader_that_takes_nothing_holds(peer: Peer) -> None:
    peer.send(frame(PRODUCE))
    await turn()
    peer.calls[0].answer([bytes(2_000_000)])
    await turn()
    peer.send(frame(PRODUCE), frame(PRODUCE))
    await turn()
    assert len(peer.calls) == 2, "one is parsed before the hold is noticed, then none"
    taken = 0
    while len(peer.calls) < 3:
        taken += len(peer.received())
        await turn()
    assert taken > 1_000_000


@with_peer
async def test_full_append_queue_holds_who_waits_for_it_until_it_is_relaxed(peer: Peer) -> None:
    peer.listener.core.queue.is_full = True
    peer.send(frame(PRODUCE), frame(PRODUCE))
    await turn()
    assert len(peer.calls) == 1
    peer.listener.core.relax()
    await turn()
    assert len(peer.calls) == 2


@with_peer
async def test_full_append_queue_does_not_hold_who_has_nothing_in_it(peer: Peer) -> None:
    peer.listener.core.queue.is_full = True
    for asked in (PRODUCE, FETCH, PRODUCE):
        peer.send(frame(asked))
        await turn()
        peer.calls[-1].answer([b"1"])
        await turn()
    assert len(peer.calls) == 3, "others may have filled it for a long time"


@with_peer
async def test_held_connection_reads_no_more_than_its_buffer(peer: Peer) -> None:
    peer.send(frame(FETCH))
    await turn()
    peer.send(frame(HEARTBEAT, bytes(3000)), frame(HEARTBEAT, bytes(3000)))
    await turn()
    assert peer.connection._buffer.capacity <= 2 * 4096
    peer.calls[0].answer([b"f"])
    await turn()
    peer.calls[1].answer([b"h"])
    await turn()
    assert len(peer.calls) == 3


@with_peer
async def test_client_that_goes_away_closes_and_tells_who_waits(peer: Peer) -> None:
    peer.send(frame(FETCH))
    await turn()
    told: list[bool] = []
    peer.calls[0].on_close = lambda: told.append(True)
    peer.sock.close()
    await turn()
    assert told == [True]
    assert peer.listener.closed == ["the client closed the connection"]
    peer.calls[0].answer([b"late"])  # Nobody minds.


@with_peer
async def test_answering_twice_is_a_defect(peer: Peer) -> None:
    peer.send(frame(PRODUCE))
    await turn()
    peer.calls[0].answer(None)
    with pytest.raises(AssertionError, match="answered twice"):
        peer.calls[0].answer(None)


@pytest.mark.parametrize("failure", [ProtocolError("bad"), ZeroDivisionError("defect")])
def test_request_that_fails_closes_its_connection(failure: Exception) -> None:
    @with_peer
    async def test(peer: Peer) -> None:
        peer.listener.failure = failure
        peer.send(frame(HEARTBEAT))
        await turn()
        assert peer.connection.is_closed

    test()


@pytest.mark.parametrize("size", [0, -1, 4 * 2**20 + 1])
def test_impossible_size_closes_the_connection_before_memory_is_taken(size: int) -> None:
    @with_peer
    async def test(peer: Peer) -> None:
        peer.send(frame(PRODUCE))
        await turn()
        peer.send(size.to_bytes(4, "big", signed=True))
        await turn()
        assert peer.connection.is_closed
        assert len(peer.calls) == 1

    test()


@with_peer
async def test_large_request_without_records_is_refused_by_its_first_bytes(peer: Peer) -> None:
    peer.listener.control_bytes_max = 100_000
    whole = frame(FETCH, bytes(100_001))
    peer.send(whole[:20])
    await turn()
    assert peer.connection.is_closed
    assert "request.control.bytes.max" in peer.listener.closed[0]


@with_peer
async def test_large_produce_request_is_not_one_without_records(peer: Peer) -> None:
    peer.listener.control_bytes_max = 100_000
    await peer.send_slowly(frame(PRODUCE, bytes(200_000)))
    await turn()
    assert len(peer.calls) == 1
    peer.calls[0].answer([b"p"])
    await turn()


@with_peer
async def test_bytes_of_a_request_that_keeps_them_are_not_read_over(peer: Peer) -> None:
    def dispatch(broker: Any, call: Call) -> None:
        call.keeps_bytes = True
        peer.calls.append(call)

    peer.listener.dispatch = dispatch  # type: ignore[method-assign]
    peer.send(frame(FETCH, b"first" * 100))
    await turn()
    peer.send(frame(HEARTBEAT, b"later" * 100))
    await turn()
    (call,) = peer.calls
    assert bytes(call.view[call.body : call.end]) == b"first" * 100
    call.answer([b"1"])
    await turn()
    assert len(peer.calls) == 2


@with_peer
async def test_who_speaks_http_is_told_once_and_closed(peer: Peer) -> None:
    peer.send(b"GET / HTTP/1.1\r\n\r\n")
    await turn()
    assert b"speaks Kafka" in peer.received()
    assert peer.connection.is_closed


@with_peer
async def test_foreigner_who_goes_on_talking_is_not_answered_again(peer: Peer) -> None:
    buffered = peer.connection._sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    peer.connection._out.put([memoryview(bytes(4 * buffered))])  # So that the goodbye has to wait.
    for _ in range(5):
        peer.send(b"GET / HTTP/1.1\r\n" * 10)
        await turn()
    assert len(peer.connection._out) == 2
    assert not peer.connection.is_closed


@with_peer
async def test_goodbye_does_not_wait_for_who_never_stops_sending(peer: Peer) -> None:
    class Endless:
        def __init__(self, sock: socket.socket) -> None:
            self._sock = sock
            self.reads = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sock, name)

        def recv(self, count: int) -> bytes:
            self.reads += 1
            assert self.reads < 1000, "the loop is held up"
            return b"more"

    peer.connection._sock = Endless(peer.connection._sock)
    peer.connection.finish()
    assert peer.connection.is_closed


@with_peer
async def test_finish_answers_what_was_accepted_and_nothing_more(peer: Peer) -> None:
    peer.send(frame(PRODUCE), frame(FETCH), frame(HEARTBEAT))
    await turn()
    peer.connection.finish()
    await turn()
    assert not peer.connection.is_closed
    peer.calls[0].answer([b"1"])
    await turn()
    peer.calls[1].answer([b"2"])
    await turn()
    assert peer.received() == b"12"
    assert (len(peer.calls), peer.connection.is_closed) == (2, True)


@with_peer
async def test_finish_takes_no_further_frame_while_answers_wait_for_the_reader(peer: Peer) -> None:
    peer.send(frame(FETCH), frame(FETCH))
    await turn()
    peer.connection.finish()
    peer.calls[0].answer([bytes(3_000_000)])
    await turn()
    taken = 0
    while not peer.connection.is_closed:
        taken += len(peer.received())
        await turn()
    assert (len(peer.calls), taken + len(peer.received()) > 1_000_000) == (1, True)


@with_peer
async def test_finish_of_an_idle_connection_closes_it_at_once(peer: Peer) -> None:
    peer.connection.finish()
    assert peer.connection.is_closed


# --- memory ------------------------------------------------------------------------------------------------------


@with_peer
async def test_large_frame_takes_memory_as_it_arrives_and_is_read_whole(peer: Peer) -> None:
    body = bytes(range(256)) * 12_000
    sending = asyncio.create_task(peer.send_slowly(frame(PRODUCE, body)))
    while not sending.done() or not peer.calls:
        assert peer.listener.memory.bytes_taken <= len(body)
        await turn(2)
    call = peer.calls[0]
    assert bytes(call.view[call.body : call.end]) == body


@with_peer
async def test_announced_length_alone_takes_no_memory(peer: Peer) -> None:
    peer.send(frame(PRODUCE, bytes(1_000_000))[:14])
    await turn()
    assert (peer.listener.memory.bytes_taken, peer.connection._buffer.capacity) == (0, SMALL_BYTES)


@with_peer
async def test_time_in_line_does_not_make_a_frame_slow(peer: Peer) -> None:
    memory, clock = peer.listener.memory, peer.listener.clock
    assert memory.take(memory.bytes_max)
    peer.send(frame(PRODUCE, bytes(300_000))[:100_000])
    await turn()
    clock.advance(60_000)
    memory.give(memory.bytes_max)
    await turn()
    assert memory.bytes_taken == peer.connection.memory_held > 0
    assert peer.connection.sending_ms(clock.monotonic_ms()) == 0
    clock.advance(5)
    assert peer.connection.sending_ms(clock.monotonic_ms()) == 5


@with_peer
async def test_small_frames_need_no_common_memory(peer: Peer) -> None:
    peer.listener.memory.bytes_taken = peer.listener.memory.bytes_max
    await peer.send_slowly(frame(PRODUCE, bytes(FREE_BYTES - 100)))
    while not peer.calls:
        await turn()
    assert not peer.listener.memory.is_short
    peer.listener.memory.bytes_taken = 0


@with_peer
async def test_frame_that_gets_no_memory_waits_in_line_and_goes_on_when_there_is_some(peer: Peer) -> None:
    memory = peer.listener.memory
    taken = memory.bytes_max - 1000
    assert memory.take(taken)
    sending = asyncio.create_task(peer.send_slowly(frame(PRODUCE, bytes(300_000))))
    while not memory.is_short:
        await turn(2)
    assert peer.connection.is_in_line
    memory.give(taken)
    await sending
    await turn()
    assert (len(peer.calls), memory.is_short) == (1, False)


@with_peer
async def test_connection_closed_in_line_leaves_it(peer: Peer) -> None:
    memory = peer.listener.memory
    assert memory.take(memory.bytes_max)
    peer.send(frame(PRODUCE, bytes(200_000))[:100_000])
    await turn()
    assert memory.is_short
    peer.connection.close("test")
    assert not memory.is_short
    memory.give(memory.bytes_max)


@with_peer
async def test_empty_buffer_is_given_back_after_a_while(peer: Peer) -> None:
    await peer.send_slowly(frame(PRODUCE, bytes(300_000)))
    peer.calls[0].keeps_bytes = True
    assert peer.connection.memory_held > 0
    peer.connection.shrink()
    assert peer.connection.memory_held > 0, "the request still reads its bytes"
    peer.calls[0].answer(None)
    await turn()
    peer.connection.shrink()
    assert (peer.connection.memory_held, peer.listener.memory.bytes_taken) == (0, 0)


@with_peer
async def test_request_that_waits_holds_no_memory_that_others_want(peer: Peer) -> None:
    await peer.send_slowly(frame(PRODUCE, bytes(300_000)))
    peer.calls[0].answer([b"1"])
    peer.send(frame(FETCH))
    await turn()
    assert (len(peer.calls), peer.calls[1].is_settled) == (2, False)
    peer.listener.core.is_turn_open = True
    peer.connection.shrink()
    assert peer.connection.memory_held > 0, "the turn in which a request came may still read it"
    peer.listener.core.is_turn_open = False
    peer.connection.shrink()
    peer.calls[1].answer([b"2"])
    await turn()
    assert peer.received() == b"12"
    peer.send(frame(FETCH))
    await turn()
    assert len(peer.calls) == 3
    assert (peer.connection.memory_held, peer.listener.memory.bytes_taken) == (0, 0)


@with_peer
async def test_buffer_is_given_back_at_once_when_others_stand_in_line(peer: Peer) -> None:
    await peer.send_slowly(frame(PRODUCE, bytes(300_000)))
    memory, granted = peer.listener.memory, []
    memory.wait(memory.bytes_max, lambda: granted.append(True))
    peer.calls[0].answer([b"1"])
    await turn()
    assert granted == [True]
    memory.give(memory.bytes_max)


# --- what the sweep asks -----------------------------------------------------------------------------------------


@with_peer
async def test_idle_connection_is_overdue_after_its_time(peer: Peer) -> None:
    now_ms = peer.listener.clock.monotonic_ms
    peer.listener.clock.advance(IDLE_MS)
    assert peer.connection.overdue(now_ms(), FRAME_MS, IDLE_MS) is None
    peer.listener.clock.advance(1)
    assert "idle" in (peer.connection.overdue(now_ms(), FRAME_MS, IDLE_MS) or "")


@with_peer
async def test_connection_that_waits_for_an_answer_is_not_overdue(peer: Peer) -> None:
    peer.send(frame(FETCH))
    await turn()
    peer.listener.clock.advance(10 * IDLE_MS)
    assert peer.connection.overdue(peer.listener.clock.monotonic_ms(), FRAME_MS, IDLE_MS) is None


@pytest.mark.parametrize("api_key", [FETCH, PRODUCE])
def test_client_that_hangs_up_is_not_waited_for_unless_it_has_sent_records(api_key: int) -> None:
    @with_peer
    async def body(peer: Peer) -> None:
        def dispatch(broker: Any, call: Call) -> None:
            call.keeps_bytes = True
            peer.calls.append(call)

        peer.listener.dispatch = dispatch  # type: ignore[method-assign]
        peer.send(frame(api_key, b"long" * 100))
        await turn()
        clock = peer.listener.clock
        clock.advance(1000)
        assert peer.connection.overdue(clock.monotonic_ms(), FRAME_MS, IDLE_MS) is None
        peer.sock.shutdown(socket.SHUT_WR)
        reason = peer.connection.overdue(clock.monotonic_ms(), FRAME_MS, IDLE_MS)
        assert reason == (None if api_key == PRODUCE else "the client closed the connection")
        clock.advance(FRAME_MS)
        assert peer.connection.overdue(clock.monotonic_ms(), FRAME_MS, IDLE_MS)

    body()


@with_peer
async def test_frame_that_stops_arriving_is_overdue(peer: Peer) -> None:
    peer.send(frame(PRODUCE, b"body")[:9])
    await turn()
    peer.listener.clock.advance(FRAME_MS + 1)
    reason = peer.connection.overdue(peer.listener.clock.monotonic_ms(), FRAME_MS, IDLE_MS)
    assert "stopped arriving" in (reason or "")


@with_peer
async def test_frame_that_trickles_in_is_overdue(peer: Peer) -> None:
    for byte in frame(PRODUCE, bytes(100))[:40]:
        peer.send(bytes([byte]))
        await turn(3)
        peer.listener.clock.advance(1000)
    reason = peer.connection.overdue(peer.listener.clock.monotonic_ms(), FRAME_MS, IDLE_MS)
    assert "only 40 bytes" in (reason or "")


@with_peer
async def test_reader_that_takes_nothing_for_long_is_overdue(peer: Peer) -> None:
    peer.send(frame(PRODUCE))
    await turn()
    peer.calls[0].answer([bytes(3_000_000)])
    await turn()
    peer.listener.clock.advance(IDLE_MS + 1)
    reason = peer.connection.overdue(peer.listener.clock.monotonic_ms(), FRAME_MS, IDLE_MS)
    assert "nobody took" in (reason or "")
    peer.received()
    await turn()
    assert peer.connection.overdue(peer.listener.clock.monotonic_ms(), FRAME_MS, IDLE_MS) is None


@with_peer
async def test_reader_that_takes_nothing_is_overdue_sooner_when_memory_is_short(peer: Peer) -> None:
    peer.send(frame(PRODUCE))
    await turn()
    peer.calls[0].answer([bytes(3_000_000)])
    await turn()
    peer.listener.clock.advance(2_000)
    now_ms = peer.listener.clock.monotonic_ms()
    assert peer.connection.overdue(now_ms, FRAME_MS, IDLE_MS) is None
    assert "nobody took an answer" in (peer.connection.overdue(now_ms, FRAME_MS, IDLE_MS, 1_000) or "")


# --- answers that carry files ---------------------------------------------------------------------------------------


class BadPiece:
    """A slice whose file is gone."""

    count, position = 1, 0

    def pin(self) -> None:
        raise ProtocolError("gone")


class GoodPiece:
    count, position, pins = 1, 0, 0

    def pin(self) -> None:
        self.pins += 1

    def unpin(self) -> None:
        self.pins -= 1

    def fileno(self) -> int:
        return 0


@with_peer
async def test_pieces_held_before_one_that_cannot_be_are_let_go_when_the_connection_closes(
    peer: Peer,
) -> None:
    peer.send(frame(PRODUCE))
    await turn()
    good: Any = GoodPiece()
    bad: Any = BadPiece()
    with pytest.raises(ProtocolError):
        peer.calls[0].answer([b"head", good, bad])
    assert good.pins == 1
    peer.connection.close("test")
    assert good.pins == 0


@with_peer
async def test_answer_that_never_left_lets_go_of_its_files(peer: Peer) -> None:
    peer.send(frame(PRODUCE), frame(PRODUCE))
    await turn()
    good: Any = GoodPiece()
    peer.calls[1].answer([good])
    assert good.pins == 1
    peer.connection.close("test")
    assert good.pins == 0
