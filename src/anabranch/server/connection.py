"""Connection: one client's socket. Bytes in, frames to the broker, answers out in the order of the requests.

Produce requests may overlap; any other request holds the connection until it is answered, as Kafka does. A
connection does not parse further frames while it is *held*: a request is open that others must wait for, too many
are open, too many answer bytes wait for a slow reader, the append queue is full, memory for its next frame is short,
or it has had its share of this turn. Holding one connection costs the others nothing.

States: open, closing (answers what it has accepted, reads no more), closed.
"""

import contextlib
import logging
import select
import socket
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anabranch.broker.requests.call import Call, Piece
from anabranch.broker.requests.network import network_of
from anabranch.errors import AnabranchError, FrameTooLargeError
from anabranch.server.poller import READ, WRITE, Watched
from anabranch.server.receive_buffer import ReceiveBuffer
from anabranch.server.send_queue import Held, SendQueue, held, let_go
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.foreign import foreign_answer, foreign_protocol
from anabranch.wire.frame import SIZE_BYTES, split_frames
from anabranch.wire.header import parse_request_header

if TYPE_CHECKING:
    from anabranch.server.listener import Listener

logger = logging.getLogger(__name__)

FREE_BYTES = 64 * 1024
"""What each connection may hold without asking the common budget, so that small requests always get through."""

FRAME_BYTES_PER_MS_MIN = 10
"""A frame that arrives more slowly than this, after a first grace, is not arriving but holding memory."""


API_KEY_POSITION = SIZE_BYTES + 1
"""Where a frame's API key has the byte that tells them apart."""

SHORT_ANSWER_BYTES_MAX = 32 * 1024
"""An answer up to here is sent alone and at once; a longer one is likely to need the queue anyway."""

GOODBYE_READS_MAX = 16
"""Somebody who never stops sending is not waited for."""


class Connection:
    def __init__(self, listener: "Listener", sock: socket.socket, host: str) -> None:
        self.host = host
        self.network = network_of(host)
        """Whom the connection counts for, where addresses have limits or take turns."""
        self.local_address: tuple[str, int] = sock.getsockname()[:2]
        self.last_read_ms = listener.clock.monotonic_ms()
        self._listener = listener
        self._core = listener.broker.core
        self._sock = sock
        self._buffer = ReceiveBuffer()
        self._last_write_ms = self.last_read_ms
        self._frame_bytes = 0
        self._frame_ms_start: int | None = None
        """When the frame at hand began to arrive, or got the memory that it needs; None: none is arriving."""
        self._frame_bytes_start = 0
        """How much of it was here then."""
        self._calls: deque[Call] = deque()
        self._out = SendQueue(listener.broker.answers_held)
        self._is_held = False
        self._is_in_turn_line = False
        """Held until a step has room for the frames in the buffer."""
        self._is_reading = True
        self._is_writing = False
        self._is_flush_due = False
        self._memory_held = 0
        """Bytes of the common budget that are taken for the frame at hand."""
        self._memory_wanted = 0
        """How many more of them the frame needs, while we wait for them."""
        self._has_its_memory = False
        """The budget was asked for the frame at hand, and gave."""
        self._is_in_line = False
        self._is_known = False
        self._is_closing = False
        self.is_closed = False
        listener.poller.watch(sock.fileno(), READ, self)

    # --- what the listener's sweep asks -------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        return not self._calls and not self._out

    @property
    def is_in_line(self) -> bool:
        """Waits for memory that others hold."""
        return self._is_in_line

    @property
    def memory_held(self) -> int:
        """Bytes of the common budget that this connection has taken."""
        return self._memory_held

    @property
    def free_bytes_held(self) -> int:
        """What its buffer takes that no budget counts."""
        return min(self._buffer.capacity, FREE_BYTES)

    @property
    def memory_claimed(self) -> int:
        """All that it holds or waits for."""
        return self.free_bytes_held + self._memory_held + (self._memory_wanted if self.is_in_line else 0)

    def sending_ms(self, now_ms: int) -> int:
        """How long the client has been sending one frame, or the part of it behind a wait for memory."""
        return 0 if self._frame_ms_start is None or self._is_in_line else now_ms - self._frame_ms_start

    def blocked_ms(self, now_ms: int) -> int:
        """How long the client's bytes have been lying behind a request that waits, or behind answers that it does not
        read: no client needs that, and no other rule would say that the bytes hold memory for too long."""
        last = self._calls[-1] if self._calls else None
        is_waiting = last is not None and last.holds and not last.keeps_bytes
        is_unread = self._is_held and bool(self._out)
        is_blocked = (is_waiting or is_unread) and len(self._buffer) > 0
        return now_ms - self.last_read_ms if is_blocked else 0

    def frame_ms_expected(self, now_ms: int) -> int:
        """How long the frame at hand takes, if the rest comes as fast as what has come since it got its memory."""
        arrived = len(self._buffer) - self._frame_bytes_start
        return self.sending_ms(now_ms) * (self._frame_bytes - self._frame_bytes_start) // max(1, arrived)

    def overdue(
        self, now_ms: int, frame_ms_max: int, idle_ms_max: int, answer_ms_max: int | None = None
    ) -> str | None:
        """Why this connection should be closed; None: it should not. `answer_ms_max`: how long nobody may take an
        answer, if that is less than being idle."""
        silent_ms = now_ms - self.last_read_ms
        if len(self._buffer) and not self._is_held and not self.is_in_line:
            # Part of a frame has arrived, and nothing of ours keeps the rest from coming.
            frame_ms = silent_ms if self._frame_ms_start is None else now_ms - self._frame_ms_start
            if min(silent_ms, frame_ms) > frame_ms_max:
                return f"a frame stopped arriving {silent_ms} ms ago"
            if frame_ms > frame_ms_max + len(self._buffer) // FRAME_BYTES_PER_MS_MIN:
                return f"after {frame_ms} ms only {len(self._buffer)} bytes of a frame are here"
        if not self._is_reading and silent_ms > self._hang_up_ms(frame_ms_max) and self._is_hung_up():
            return "the client closed the connection"
        if self.is_idle and not self.is_in_line and silent_ms > idle_ms_max:
            return f"idle for {silent_ms} ms"
        if self._out and now_ms - self._last_write_ms > (answer_ms_max or idle_ms_max):
            return f"nobody took an answer for {now_ms - self._last_write_ms} ms"
        return None

    def _hang_up_ms(self, frame_ms_max: int) -> int:
        """How long a client that hung up while we do not read is left alone: what it sent before may be records, which
        are still to be written. A long request without records is of no use to anybody any more."""
        last = self._calls[-1] if self._calls else None
        is_of_no_use = (
            last is not None and last.holds and (last.keeps_bytes or last.header.api_key != ApiKey.PRODUCE)
        )
        return 0 if is_of_no_use else frame_ms_max

    def _is_hung_up(self) -> bool:
        """Whether the client is gone: asked while nothing is read, when nobody would notice."""
        poll = select.poll()
        poll.register(self._sock, select.POLLRDHUP)
        return bool(poll.poll(0))

    def shrink(self) -> None:
        """Give back what the buffer has beyond the frame at hand: nobody has used it for a while, or others need the
        room. A request under way prevents that only while it reads its bytes, not while it waits."""
        buffer = self._buffer
        if self.is_closed or self.is_in_line:
            return
        if self._has_its_memory and not self._is_held:
            return  # It stood in line for this, and would have to again.
        needed = len(buffer)
        if needed > FREE_BYTES and not self._is_held:
            needed = max(needed, self._frame_bytes)  # The rest of it is on its way.
        is_all_free = self._memory_held > 0 and needed <= FREE_BYTES
        is_worth_it = 2 * needed <= max(buffer.capacity, self._memory_held)
        if not buffer.capacity or not (is_worth_it or is_all_free):
            return
        if self._calls and (self._core.is_turn_open or not all(call.let_go() for call in self._calls)):
            return
        buffer.resize(needed)
        held, self._memory_held = self._memory_held, self._counted(buffer.capacity)
        self._listener.memory.give(held - self._memory_held)

    # --- reading ---------------------------------------------------------------------------------------------

    def ready(self, events: int) -> None:
        """The poller's word that the socket can be read or written, or that the client is gone.

        In this order: answers that leave may end a hold, and what is then parsed lies in the buffer, lent to the
        writer until the end of the turn. Nothing may be read over it.
        """
        if events & ~WRITE and self._is_reading:
            self._readable()
        if events & WRITE and self._is_writing:
            self._writable()

    def _readable(self) -> None:
        if self._is_in_turn_line:
            return  # What is here comes first, also if the client has closed the connection behind it.
        room = self._buffer.room()
        if self._is_held:  # What is read now lies here for as long as the request before it takes.
            room = room[: max(0, FREE_BYTES - len(self._buffer))]
        if not len(room):
            if self._is_held or not self._grow():
                self._stop_reading()
                return
            room = self._buffer.room()
        try:
            count = self._sock.recv_into(room)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"read failed: {error}")
            return
        if not count:
            self.close("the client closed the connection")
            return
        self._buffer.end += count
        if not self._is_held:  # Else it says nothing of the client's health, and must not look as if it did.
            self.last_read_ms = self._listener.poller.turn_ms
            self._parse()

    def _grow(self) -> bool:
        """Make room for more of the frame at hand. False: memory is short, and we wait for it.

        The buffer grows as bytes arrive. The budget is asked once, for the whole frame, when it does not fit into what
        is free: frames that grew step by step could all be half here, each waiting for the memory of another."""
        if self.is_in_line:
            return False
        capacity = self._next_capacity
        if capacity > FREE_BYTES:
            self._memory_wanted = self._counted(max(capacity, self._frame_bytes)) - self._memory_held
            if self._memory_wanted > 0:
                if not self._listener.memory.take(self._memory_wanted):
                    self._is_in_line = True
                    self._listener.memory.wait(self._memory_wanted, self._granted, self.network)
                    return False
                self._take_memory()
        self._buffer.resize(capacity)
        return True

    def _take_memory(self) -> None:
        self._memory_held += self._memory_wanted
        self._has_its_memory = True
        self._frame_ms_start = self._listener.clock.monotonic_ms()
        self._frame_bytes_start = len(self._buffer)

    @property
    def _next_capacity(self) -> int:
        return self._buffer.capacity_for(max(self._frame_bytes, self._buffer.capacity + 1))

    @staticmethod
    def _counted(capacity: int) -> int:
        """What of a buffer counts against the common budget: small ones do not."""
        return max(0, capacity - FREE_BYTES)

    def _granted(self) -> None:
        """The memory that we waited for is ours; nothing was read since, so the same growth is due."""
        assert self.is_in_line
        self._is_in_line = False
        try:
            self._take_memory()
            self._buffer.resize(self._next_capacity)
            self._resume_reading()
        except Exception as error:  # Whoever gave the memory back goes on.
            logger.exception("a request from %s could not get its memory", self.host)
            self.close(f"{type(error).__name__}: {error}")

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._watch()

    def _resume_reading(self) -> None:
        if not self._is_reading and not self.is_closed and not self._is_closing:
            self._is_reading = True
            self._watch()

    def _watch(self) -> None:
        """Have the poller wait for what we can use."""
        events = (READ if self._is_reading else 0) | (WRITE if self._is_writing else 0)
        self._listener.poller.watch(self._sock.fileno(), events, self)

    # --- frames ----------------------------------------------------------------------------------------------

    def _parse(self) -> None:
        """Hand whole frames to the broker, until one is missing bytes, we are held, or it is others' turn."""
        share = self._listener.poller.frames_each
        if not share:
            self._stand_in_line(self._listener.poller.newcomers)
            return
        try:
            bytes_wanted = self._parse_share(share)
        except AnabranchError as error:
            logger.info("closing %s: %s", self.host, error)
            self.close(str(error))
            return
        except Exception as error:  # A defect of ours costs this connection, and nobody else anything.
            logger.exception("a request from %s failed: this is a defect", self.host)
            self.close(f"{type(error).__name__}: {error}")
            return
        if bytes_wanted is not None:
            self._expect_frame(bytes_wanted)

    def _parse_share(self, share: int) -> int | None:
        """Hand up to `share` frames to the broker. How many bytes the next one needs, if the rest of it is not here."""
        buffer, bytes_max = self._buffer, self._listener.frame_bytes_max
        if not self._is_known and not self._recognise():
            return None
        taken = self._take_plain(share) if self._listener.take_plain is not None else 0
        if taken and (self._is_held or buffer.start == buffer.end):
            return None
        frames = split_frames(buffer.view, buffer.start, buffer.end, bytes_max, share - taken)
        for start, end in frames.spans:
            buffer.start = end
            self._take_frame(start, end)
            if self._is_held or self.is_closed or self._is_closing:
                return None
        if taken + len(frames.spans) == share and len(buffer):
            self._give_way()
            return None
        if frames.spans and len(buffer) >= SIZE_BYTES:
            frames = split_frames(buffer.view, buffer.start, buffer.end, bytes_max, share)
        if len(buffer) > API_KEY_POSITION:
            self._check_size(buffer.start, frames.bytes_wanted)
        return frames.bytes_wanted

    def _give_way(self) -> None:
        """Something that held us may be over, or this step was enough for us: go on when it is our turn."""
        if len(self._buffer):
            self._stand_in_line(self._listener.poller.backlog)
        else:
            self.go_on()

    def _stand_in_line(self, line: "deque[Watched]") -> None:
        if self._is_in_turn_line or self.is_closed or self._is_closing:
            return
        self._is_held = self._is_in_turn_line = True
        line.append(self)
        self._core.schedule()

    def _expect_frame(self, frame_bytes: int) -> None:
        """Part of a frame is here, or nothing. The buffer grows when it is full."""
        self._frame_bytes = frame_bytes
        if len(self._buffer) and self._frame_ms_start is None:
            self._frame_ms_start = self._listener.clock.monotonic_ms()
            self._frame_bytes_start = 0

    def _end_frame(self) -> None:
        """The frame at hand is whole; what its buffer takes is nobody's until the next one asks."""
        self._frame_ms_start = None
        self._has_its_memory = False

    def _recognise(self) -> bool:
        """Whether the first bytes may be Kafka's; somebody who speaks another protocol is told so."""
        buffer = self._buffer
        if len(buffer) < SIZE_BYTES:
            return False
        protocol = foreign_protocol(buffer.view[buffer.start : buffer.end])
        if protocol is None:
            self._is_known = True
            return True
        logger.info("%s speaks %s on the Kafka port", self.host, protocol)
        self._out.put([foreign_answer(protocol)])
        self._is_closing = True
        self._stop_reading()  # Or each further chunk would be answered with the same sentence.
        self.flush()
        return False

    def _take_plain(self, share: int) -> int:
        """Let the lane have what is plain. How many requests it took."""
        buffer, calls, listener = self._buffer, self._calls, self._listener
        assert listener.take_plain is not None
        start, open_before = buffer.start, len(calls)
        if buffer.end - start > API_KEY_POSITION and buffer.view[start + API_KEY_POSITION] != ApiKey.PRODUCE:
            return 0
        open_max = min(listener.requests_max, open_before + share)
        buffer.start = listener.take_plain(self, buffer.view, start, buffer.end, calls, open_max)
        if buffer.start == start:
            return 0
        taken = len(calls) - open_before
        listener.requests_total += taken
        self._frame_bytes = 0
        self._end_frame()
        self._is_held = self._must_hold()
        return taken

    def _check_size(self, start: int, frame_bytes: int) -> None:
        """Refuse a request without records that is larger than one need be, as soon as its API key is here."""
        control_bytes_max = self._listener.control_bytes_max
        if frame_bytes <= control_bytes_max + SIZE_BYTES:
            return
        if self._buffer.view[start + API_KEY_POSITION] != ApiKey.PRODUCE:
            raise FrameTooLargeError(
                f"A request of {frame_bytes - SIZE_BYTES} bytes that carries no records is above the limit of "
                f"{control_bytes_max} (request.control.bytes.max)."
            )

    def _take_frame(self, start: int, end: int) -> None:
        self._end_frame()
        self._check_size(start - SIZE_BYTES, end - start + SIZE_BYTES)
        listener, view = self._listener, self._buffer.view
        listener.requests_total += 1
        header, body = parse_request_header(view, start, end)
        call = Call(self, header, view, body, end)
        call.holds = header.api_key != ApiKey.PRODUCE
        self._calls.append(call)
        listener.dispatch(listener.broker, call)
        self._is_held = self._must_hold()
        if call.keeps_bytes and not call.is_settled:
            self._stop_reading()  # Whatever is read next would lie where this request's bytes are.

    def _must_hold(self) -> bool:
        calls, out, listener = self._calls, self._out, self._listener
        return (
            (bool(calls) and calls[-1].holds)
            or len(calls) >= listener.requests_max
            or out.bytes_held >= listener.response_bytes_max
            or len(out) >= listener.requests_max
            # Whoever has nothing in the queue is not held up by it: what fills it may take long, as when an object
            # store is away, and concerns only those who write there.
            or (bool(calls) and self._core.queue.is_full and self._wait_for_queue())
        )

    def _wait_for_queue(self) -> bool:
        self._core.when_relaxed(self._give_way)
        return True

    def go_on(self) -> None:
        """Parse what is here, unless something else holds us."""
        self._is_in_turn_line = False
        if self.is_closed or self._is_closing:
            return
        self._is_held = self._must_hold()
        if not self._is_held:
            self._resume_reading()
            if self._buffer.start != self._buffer.end:
                self._parse()

    # --- answering -------------------------------------------------------------------------------------------

    def answered(self, call: Call, pieces: list[Piece] | None) -> None:
        assert not call.is_settled, "a request was answered twice"
        call.is_settled = True
        if self.is_closed:
            return
        if pieces:
            # Held from now on: before its turn comes, the cleaner may put another file in the place of this one.
            call.pieces = holding = []
            for piece in pieces:
                holding.append(held(piece))
        self.settled()

    def settled(self) -> None:
        """An answer is ready; it leaves at the end of this turn if its turn in the order has come."""
        if not self._is_flush_due:
            self._is_flush_due = True
            self._listener.flush_due.append(self)
            if not self._core.is_turn_open:
                self._core.schedule()

    def dropped(self, call: Call, reason: str) -> None:
        self.close(reason)

    def flush(self) -> None:
        """Send what is settled, in order, together."""
        self._is_flush_due = False
        if self.is_closed:
            return
        calls, out = self._calls, self._out
        if len(calls) == 1 and not out and calls[0].is_settled and self._send_alone(calls[0].pieces):
            calls.clear()
        else:
            while calls and calls[0].is_settled:
                out.put(calls.popleft().pieces)
            if out or self._is_closing:
                self._send()
        if self._listener.memory.is_short:
            self.shrink()
        if self._is_held:
            self._give_way()

    def _send_alone(self, pieces: Sequence[Held]) -> bool:
        """The usual case: one short answer, and a socket that takes it at once. False: nothing was sent."""
        if len(pieces) != 1 or self._is_closing:
            return False
        piece = pieces[0]
        if not isinstance(piece, bytes | bytearray) or len(piece) > SHORT_ANSWER_BYTES_MAX:
            return False
        try:
            sent = self._sock.send(piece)
        except OSError:
            return False  # The queue finds the same, and knows what to do.
        self._last_write_ms = self._listener.poller.turn_ms
        if sent < len(piece):
            self._out.put([memoryview(piece)[sent:]])
            self._send()
        return True

    def _send(self) -> None:
        out = self._out
        sent_before = out.bytes_sent
        try:
            is_empty = out.send(self._sock)
        except OSError as error:
            self.close(f"write failed: {error}")
            return
        if is_empty or out.bytes_sent != sent_before:
            self._last_write_ms = self._listener.poller.turn_ms
        if is_empty == self._is_writing:
            self._is_writing = not is_empty
            self._watch()
        if is_empty and self._is_closing and not self._calls:
            self._say_goodbye()

    def _writable(self) -> None:
        self._send()
        if self._is_held:
            self._give_way()

    # --- ending ----------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Read no more, answer what was accepted, then close."""
        self._is_closing = True
        self._stop_reading()
        if self.is_idle:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        """Close so that the last answer arrives: unread bytes left behind would turn the close into a reset."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
            for _ in range(GOODBYE_READS_MAX):
                if not self._sock.recv(FREE_BYTES):
                    break
        self.close("all is answered")

    def close(self, reason: str) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._is_reading = self._is_writing = False
        self._watch()
        self._out.clear()
        calls, self._calls = self._calls, deque()
        for call in calls:
            for piece in call.pieces:
                let_go(piece)
            if call.on_close is not None and not call.is_settled:
                call.on_close()
        self._sock.close()
        self._listener.forget(self, reason)
        # Last, for others then go on from here.
        if self.is_in_line:
            self._is_in_line = False
            self._listener.memory.leave(self._granted, self.network)
        held, self._memory_held = self._memory_held, 0
        self._listener.memory.give(held)
