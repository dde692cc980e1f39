"""How one connection speaks HTTP: uvicorn's protocol, with the limits that it leaves to whoever stands in front of it.

A head (request line and headers) is bounded in bytes, lines and time, so that nobody holds a connection with half a
request, and refused where it is ambiguous (`heads.py`). A body is read only a little further than its request asks for.
That of a request that is answered already, or whose method gives it no meaning (GET), is discarded, and bounded in
bytes and time as well. Whenever no request is served, one timer runs for what the client has to send next (`Awaited`).
More connections than `gateway.connections.max`, or than `max.connections.per.ip` from one address, are told so and
closed. A connection whose other end is gone without a word is found by the system's keep-alive.

One request of a connection is parsed and served at a time. What a client sends behind it (pipelining) waits as bytes
until the answer has been taken, so that a connection costs a turn of the loop no more than one request. These bytes are
bounded for each connection, within one read, and over all of them. All connections together parse a few hundred headers
and chunks in a turn (`slices.py`).
"""

import asyncio
import re
import socket
import sys
from collections import Counter
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from anabranch.broker.requests.turns import ROWS_PER_TURN, Turns
from anabranch.gateway.http.access import HEALTH
from anabranch.gateway.http.addresses import Addresses
from anabranch.gateway.http.bodies import BODY_SECONDS_MAX, FREE_BYTES, PASS_OVER_BYTES_MAX
from anabranch.gateway.http.heads import (
    AMBIGUOUS,
    VERSIONS,
    ambiguity,
    malformation,
    origin_form,
    other_version,
)
from anabranch.gateway.http.slices import SlicedParser
from anabranch.gateway.http.texts import json_text

HEAD_BYTES_MAX = 32 * 1024
HEADERS_MAX = 100
HEAD_SECONDS_MAX = 10.0
READ_AHEAD_BYTES_MAX = 16 * 1024
"""Bytes behind a request that is not answered yet, beyond which a connection is not read any further. It may hold those
of one read more (`READ_BYTES_MAX`), and so may a body beyond `FREE_BYTES`."""
READ_AHEAD_SMALL_BYTES = 4 * 1024
READ_AHEAD_TOTAL_BYTES_MAX = 64 * 2**20
"""Of all connections; beyond, one that holds more than a little (`READ_AHEAD_SMALL_BYTES`) is closed."""
END_OF_HEAD = b"\r\n\r\n"
EMPTY_LINES = re.compile(rb"[\r\n]+")
CHUNKED_BYTES_MIN = 256
"""Parsed at once of a chunked body, whose end nobody knows before it is parsed: a few requests may hide behind it."""
CHUNKED_BYTES_MAX = 4 * 1024
"""The most that is: hundreds of tiny chunks."""
LINGER_SECONDS = 1.0
"""Between the last answer and the end of a connection, if not all that was sent is read: the system resets one that is
closed with bytes unread, and many clients then never see the answer. Up to `PASS_OVER_BYTES_MAX` are discarded."""
UNSENT_SECONDS_MAX = 30.0
"""How long a client may take nothing of the last answers on a connection that is being closed."""
BEGUN_AT_ONCE = 16
"""Requests of all connections that begin in one round of the loop: a thousand would hold up everybody else."""
PIPELINED_AT_ONCE = 4
"""The same of those that a client has sent before it had the answer to the one before."""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
"""They change nothing, so nobody need finish them for a client that is gone."""
READ_BYTES_MAX = 16 * 1024
"""Read in one turn of the loop. asyncio's quarter of a megabyte could hold thousands of tiny requests, and would lie in
memory for every connection that does not finish what it began."""
KEEP_ALIVE_SECONDS = 30
KEEP_ALIVE_EVERY_SECONDS = 10
KEEP_ALIVE_TRIES = 3
TRY_AGAIN = 503
NO_PROXY = "This node is no proxy, so CONNECT is not served: ask it for a path, as GET /v1/topics."
HANDSHAKE_NOT_ALONE = (
    "A WebSocket handshake must be alone on its connection: wait for the answers to earlier requests, and send nothing "
    "more until the handshake is answered."
)


class Awaited(Enum):
    """What the client has to send next, within its time. Nothing while a request is served: then `bodies.py` limits the
    time for its body."""

    NEXT_HEAD = auto()
    """Any of it, on a connection whose requests are all answered."""
    HEAD = auto()
    """The whole of it. On a new connection also its beginning."""
    REST_OF_BODY = auto()
    """Of a request that was answered without it."""


class Link(NamedTuple):
    """What a request may know of its connection."""

    abort: Callable[[], None]
    is_closing: Callable[[], bool]
    ended: asyncio.Event
    """Set when the client has closed its side or is gone: nothing is waited for on its behalf."""
    flow: FlowControl


class ReadAhead:
    """Bytes of requests that nobody has asked for yet, over all connections of a node: bodies, and what came behind
    requests that are not answered."""

    def __init__(self) -> None:
        self.bytes_held = 0


class Flow(FlowControl):
    """Reading pauses for uvicorn, or while bytes wait to be parsed; it goes on when neither wants it to pause."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_held = False
        self._is_paused = False

    def pause_reading(self) -> None:
        self._is_paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        if not self._is_held:
            super().resume_reading()

    def hold_reading(self) -> None:
        self._is_held = True
        super().pause_reading()

    def let_reading_go(self) -> None:
        self._is_held = False
        if not self._is_paused:
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol, SlicedParser):
    flow: Flow
    read_ahead = ReadAhead()
    connections_max = 10_000
    addresses = Addresses(10_000)
    refusals: Counter[str]
    turns: Turns
    health_turns: Turns
    """A line of its own, so that health checks do not wait behind a thousand other requests."""
    pipelined_turns: Turns
    """The same, so that nobody waits behind thousands that a few clients have sent all at once."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._other_upgrade: bytes | None = None
        """The head of a request that offers to go on in a protocol that is not served here, without that offer."""
        self._head_bytes = 0
        self._has_head_begun = False
        """Whether there is more of it than the empty lines that may precede it."""
        self._headers_bytes = 0
        self._bodiless_bytes = 0
        """Received behind a head since the last byte of its body: trailers and extensions of chunks."""
        self._is_in_head = True
        self._is_in_body = False
        """Whether the head was taken, target included, and its body is not yet at its end."""
        self._is_refused = False
        self._is_last_answer = False
        """Whether the connection ends with the answer that is being given, although its body was not there yet."""
        self._refusal: bytes | None = None
        """What is said as soon as the whole requests before it are answered."""
        self._lingering_bytes = 0
        self._discarded_bytes = 0
        """Received of a body that nobody reads, or since its request was answered."""
        self._awaited: Awaited | None = None
        self._client_timer: asyncio.TimerHandle | None = None
        self._unparsed = bytearray()
        """Behind the request that is served: not parsed before that is answered."""
        self._held_bytes = 0
        """Of what is not parsed, or not asked for, as it was noted last."""
        self._body_bytes_left: int | None = None
        """As Content-Length says; None: the body is chunked."""
        self._piece = b""
        """What is being parsed."""
        self._rows = 0
        """What the parser has called back for in it."""
        self._is_piece_of_body = False
        """Whether that began inside a body: another request may follow in it."""
        self._is_pipelined = False
        """Whether the next request was already here when the one before it was answered."""
        self._ended = asyncio.Event()
        self._is_lost = False
        self._serving: RequestResponseCycle | None = None
        self._reading: asyncio.Task[None] | None = None
        """The request that is served, if it changes nothing."""
        self._host: str | None = None
        """Where the connection counts; None: nowhere any more."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport)
        transport.max_size = READ_BYTES_MAX  # type: ignore[attr-defined]  # Of asyncio's own transports.
        _watch(transport)
        self._host = host_of(transport)
        is_welcome = self.addresses.take(self._host)
        if len(self.connections) > self.connections_max:
            self._refuse(
                TRY_AGAIN, "TOO_MANY_CONNECTIONS", "There are too many connections: try again in a moment."
            )
        elif not is_welcome:
            self._refuse(
                TRY_AGAIN,
                "TOO_MANY_CONNECTIONS",
                f"This address has {self.addresses.connections_max} connections, and no more may come from one address "
                "(max.connections.per.ip): close some.",
            )
        self._time_client()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()
        self._is_lost = True
        self._time_client()
        self.stop_parsing()
        self._unparsed.clear()
        self._disconnect_requests()
        self._note_read_ahead()
        if self._reading is not None:
            self._reading.cancel()
        if self._host is not None:
            self.addresses.give(self._host)
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open: until whole requests of a client that has closed its side are answered.
        A client that is gone looks the same, so a request that waits for records is answered with none."""
        self._ended.set()
        self.loop.call_soon(self._abort_if_stuck)  # Once asyncio has closed it, unless it stays open.
        return self._is_serving_whole_request or self.is_parsing_later

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the WebSocket's protocol; refuse if anything of HTTP is still under way on it.

        RFC 6455 has the client wait for the answer before it sends more. An earlier answer that is not sent yet would
        leave the WebSocket's protocol without word that there is no room."""
        is_alone = not self._unparsed and not self._is_piece_of_body
        if not is_alone or self._is_busy or self.pipeline or self.transport.get_write_buffer_size():
            self._unparsed.clear()
            self._refuse(400, "BAD_REQUEST", HANDSHAKE_NOT_ALONE)
            return
        super().handle_websocket_upgrade()
        self._host = None  # It counts on, until the WebSocket's protocol hears that it is lost.

    def _disconnect_requests(self) -> None:
        """Tell every request that its client is gone; uvicorn tells the one that came last. Others would write all of
        their answers to a connection that is closed, with a warning for each piece."""
        cycles = [cycle for cycle, _ in self.pipeline]
        self.pipeline.clear()
        for cycle in (*cycles, self._serving):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.body.clear()
                cycle.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._serving = cycle
        turns, rows = self.turns, ROWS_PER_TURN // BEGUN_AT_ONCE
        if self._is_pipelined:
            turns, rows = self.pipelined_turns, ROWS_PER_TURN // PIPELINED_AT_ONCE
        elif cycle.scope["path"] == HEALTH:
            turns = self.health_turns

        async def in_turn(scope: Any, _receive: Any, _send: Any) -> None:
            task = asyncio.current_task()
            self._reading = task if scope["method"] in SAFE_METHODS else None
            try:
                await turns.wait(rows)
                is_broken = cycle.disconnected and cycle.more_body  # It was refused, or will never be whole.
                if not is_broken:
                    await app(scope, partial(self._receive, cycle), partial(self._send, cycle))
            except asyncio.CancelledError:
                if not self._is_lost:
                    raise
            finally:
                if self._reading is task:  # Else the next request has begun, because this one is answered.
                    self._reading = None

        super()._start_asgi_task(cycle, in_turn)

    async def _receive(self, cycle: RequestResponseCycle) -> Any:
        message = await cycle.receive()
        self._note_read_ahead()
        return message

    async def _send(self, cycle: RequestResponseCycle, message: Any) -> None:
        """uvicorn would close at once after an answer that says `connection: close`, and send chunks to clients of
        HTTP/1.0, which know none: they read to the end of the connection."""
        if cycle.scope["http_version"] == "1.0":
            if message["type"] == "http.response.start":
                has_length = any(name == b"content-length" for name, _ in message.get("headers", ()))
                cycle.chunked_encoding = None if has_length else False
            elif cycle.chunked_encoding is False and not cycle.expected_content_length:
                cycle.expected_content_length = len(message.get("body", b""))
        await cycle.send(message)
        if cycle.response_started and cycle.more_body and not cycle.keep_alive:
            cycle.keep_alive = self._is_last_answer = True

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._lingering_bytes += len(data)
            if self._lingering_bytes > PASS_OVER_BYTES_MAX:
                self.transport.abort()
            return
        self._unparsed += data
        self._is_pipelined = False
        self.parse_slices()
        if (
            self._held_bytes > READ_AHEAD_SMALL_BYTES
            and self.read_ahead.bytes_held > READ_AHEAD_TOTAL_BYTES_MAX
        ):
            self._refuse(
                TRY_AGAIN, "BUSY", "The node holds too much of what clients send: try again in a moment."
            )

    def on_response_complete(self) -> None:
        self._is_pipelined = True
        assert self._serving is not None
        if self._is_last_answer and self._serving.more_body and not self._is_refused:
            self._is_refused = True
            self._linger()
        elif self._is_last_answer:
            self.transport.close()
        self._serving.body.clear()  # Nobody reads it any more, and the connection may stay idle for long.
        super().on_response_complete()
        self._unset_keepalive_if_required()  # `_time_client` does it.
        self._abort_if_stuck()
        if self._refusal is not None and not self.transport.is_closing() and self._serving.response_complete:
            self.transport.write(self._refusal)
            self._linger()
        self.parse_slices()
        self._close_if_over()

    def _close_if_over(self) -> None:
        """Of a client that has closed its side, once every whole request is answered."""
        if self._ended.is_set() and not self._is_serving_whole_request and not self.is_parsing_later:
            self._disconnect_requests()  # The rest of the next one will never come.
            self._close()

    def _abort_if_stuck(self, unsent_before: int | None = None) -> None:
        """Abort a connection that is being closed once its client takes nothing more of what is not sent yet."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent or not self.transport.is_closing():
            return
        if unsent == unsent_before:
            self.transport.abort()
        else:
            self.loop.call_later(UNSENT_SECONDS_MAX, self._abort_if_stuck, unsent)

    @property
    def _is_busy(self) -> bool:
        """With a request that is not answered."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_body_wanted(self) -> bool:
        """Whether anybody may still ask for the body that is being parsed."""
        return self._is_busy and self.scope["method"] not in SAFE_METHODS

    @property
    def _is_serving_whole_request(self) -> bool:
        """Whether the request whose turn it is has its whole body. Others may have come behind it."""
        cycle = self._serving
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def _note_read_ahead(self) -> None:
        count = len(self._unparsed) + sum(len(cycle.body) for cycle, _ in self.pipeline)
        if self._serving is not None:
            count += len(self._serving.body)
        self.read_ahead.bytes_held += count - self._held_bytes
        self._held_bytes = count

    def has_slice(self) -> bool:
        """Up to the end of the first request that is not answered."""
        return len(self._unparsed) > 0 and not (self._is_in_head and self._is_busy)

    def parse_slice(self) -> int:
        self._rows = 1
        if self._is_refused or self.transport.is_closing():
            self._unparsed.clear()
        else:
            size = self._piece_bytes()
            piece = bytes(self._unparsed[:size])
            del self._unparsed[:size]
            self._parse(piece)
        return self._rows

    def after_parsing(self) -> None:
        self._note_read_ahead()
        if len(self._unparsed) > READ_AHEAD_BYTES_MAX and not self.has_slice():
            self.flow.pause_reading()  # Else it is read on, to notice that the client has gone.
        self._time_client()

    def hold_reading(self) -> None:
        self.flow.hold_reading()

    def let_reading_go(self) -> None:
        self.flow.let_reading_go()
        self._time_client()
        self._close_if_over()

    def _piece_bytes(self) -> int:
        """How much of what has arrived belongs to one request, as far as that can be told before it is parsed."""
        if not self._is_in_head and self._body_bytes_left is not None:
            return max(1, self._body_bytes_left)
        if self._is_in_head and not self._has_head_begun:
            empty = EMPTY_LINES.match(self._unparsed)
            if empty is not None:  # In one piece: each `END_OF_HEAD` among them would be one of its own.
                return empty.end()
        end = self._unparsed.find(END_OF_HEAD, 0 if self._is_in_head else CHUNKED_BYTES_MIN)
        size = len(self._unparsed) if end < 0 else end + len(END_OF_HEAD)
        return size if self._is_in_head else min(size, CHUNKED_BYTES_MAX)

    def _parse(self, piece: bytes) -> None:
        self._piece = piece
        self._is_piece_of_body = not self._is_in_head
        if self._is_in_head:
            self._head_bytes += len(piece)
        else:
            self._bodiless_bytes += len(piece)
            self._discarded_bytes += 0 if self._is_body_wanted else len(piece)
        super().data_received(piece)
        self._piece = b""
        count = self._head_bytes if self._is_in_head else self._bodiless_bytes
        if count > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._refuse_head()
        if self._discarded_bytes > PASS_OVER_BYTES_MAX:
            self._close()

    def on_message_begin(self) -> None:
        self._is_in_head, self._is_in_body = True, False
        self._has_head_begun = True
        self._headers_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._rows += 1
        if self._is_in_head:
            super().on_header(name, value)  # Trailers of a chunked body change nothing that the head said.
        self._headers_bytes += len(name) + len(value)
        if len(self.headers) > HEADERS_MAX or self._headers_bytes > HEAD_BYTES_MAX:
            self._refuse_head()
            raise ConnectionAbortedError("too many headers")  # The parser stops here.

    def on_headers_complete(self) -> None:
        self._is_in_head = self._has_head_begun = False
        self._head_bytes = self._bodiless_bytes = self._discarded_bytes = 0
        if self.parser.get_method() == b"CONNECT":
            self._refuse(400, "BAD_REQUEST", NO_PROXY)
            raise ConnectionAbortedError("a proxy was asked for")  # The parser stops here.
        version = self.parser.get_http_version()
        if version not in VERSIONS:
            self._refuse(400, "BAD_REQUEST", other_version(version))
            raise ConnectionAbortedError("another version")  # The parser stops here.
        problem = ambiguity(self.headers, version, self.url)
        if problem is not None:
            self._refuse(400, AMBIGUOUS, problem)
            raise ConnectionAbortedError("ambiguous head")  # The parser stops here.
        self.url = origin_form(self.url)
        self.expect_100_continue &= version != "1.0"  # Such a client would take it for the answer.
        if self.parser.should_upgrade() and not self._should_upgrade():
            self._other_upgrade = self._head_without_upgrade()
            return  # The parser takes all that follows for another protocol, the body included.
        fields = dict(self.headers)
        length = fields.get(b"content-length", b"0")
        self._body_bytes_left = None if b"transfer-encoding" in fields else int(length)
        super().on_headers_complete()
        self._is_in_body = True
        link = Link(self.transport.abort, self.transport.is_closing, self._ended, self.flow)
        self.scope["anabranch.link"] = link  # type: ignore[typeddict-unknown-key]

    def _head_without_upgrade(self) -> bytes:
        lines = [b"%s %s HTTP/1.1\r\n" % (self.parser.get_method(), self.url)]
        lines += [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        return b"".join([*lines, b"\r\n"])

    def _unsupported_upgrade_warning(self) -> None:
        """Serve the request as if it had offered nothing, as RFC 9110 has it: many clients offer h2c with every first
        request. A new parser reads it again; this one has passed over the length of the body."""
        head, self._other_upgrade = self._other_upgrade, None
        passed = sys.exception()
        assert head is not None
        assert isinstance(passed, httptools.HttpParserUpgrade)
        self._unparsed[:0] = self._piece[passed.args[0] :]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        try:
            self.parser.feed_data(head)
        except httptools.HttpParserError:
            self.send_400_response("")

    def on_body(self, body: bytes) -> None:
        self._rows += 1
        self._bodiless_bytes = 0
        if self._body_bytes_left is not None:
            self._body_bytes_left -= len(body)
        if self._is_body_wanted:
            super().on_body(body)
            if len(self.cycle.body) > FREE_BYTES:
                self.flow.pause_reading()  # Until the request asks for more.

    def on_message_complete(self) -> None:
        if self._other_upgrade is not None:
            return
        super().on_message_complete()
        self._is_in_head, self._is_in_body = True, False
        if not self.pipeline:
            self.flow.resume_reading()  # To notice that the client has gone.

    def send_400_response(self, msg: str) -> None:
        error = sys.exception()
        if isinstance(error, httptools.HttpParserCallbackError) and error.__context__ is not None:
            error = error.__context__  # What failed while the parser told us of the head.
        found = str(error) if isinstance(error, httptools.HttpParserError) else "callback error"
        code, message = malformation(found, is_in_body=self._is_in_body)
        self._refuse(400, code, message)

    # --- what a client has to send, and what it is told if it does not -------------------------------------------

    def _what_is_awaited(self) -> Awaited | None:
        has_other_protocol = self._host is None
        if self.is_parsing_later:
            return None  # What it has sent may be all that is needed.
        if self._is_busy or self._is_refused or has_other_protocol or self.transport.is_closing():
            return None
        if not self._is_in_head:
            return Awaited.REST_OF_BODY
        return Awaited.HEAD if self._has_head_begun or self.cycle is None else Awaited.NEXT_HEAD

    def _time_client(self) -> None:
        """Run the timer for what is awaited now. It goes on if that is the same as before, however much has come."""
        awaited = self._what_is_awaited()
        if awaited is self._awaited:
            return
        self._awaited = awaited
        if self._client_timer is not None:
            self._client_timer.cancel()
            self._client_timer = None
        if awaited is not None:
            seconds = {
                Awaited.NEXT_HEAD: self.timeout_keep_alive,
                Awaited.HEAD: HEAD_SECONDS_MAX,
                Awaited.REST_OF_BODY: BODY_SECONDS_MAX,
            }
            self._client_timer = self.loop.call_later(seconds[awaited], self._client_is_late)

    def _client_is_late(self) -> None:
        if self.transport.is_closing():
            return
        if self._has_head_begun:
            text = f"A request's headers must be complete within {HEAD_SECONDS_MAX:g} s."
            self._refuse(408, "REQUEST_TIMEOUT", text)
        else:
            self._close()  # It waits for no answer. Browsers make connections that they then do not use.

    def _close(self) -> None:
        """Close once the client has taken its answers, if it does."""
        self.transport.close()
        self._abort_if_stuck()

    def _refuse_head(self) -> None:
        text = f"A request may have {HEADERS_MAX} headers and {HEAD_BYTES_MAX} bytes of them."
        self._refuse(431, "HEADERS_TOO_LARGE", text)

    def _refuse(self, status: int, code: str, message: str) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        self._time_client()
        self.refusals[code] += 1
        body = json_text({"error": {"code": code, "message": message}}) + b"\n"
        refusal = (
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (status, code.replace("_", " ").title().encode(), len(body), body)
        )
        cycle = self._serving
        if cycle is not None and not cycle.response_complete:
            is_its_own = cycle is self.cycle and cycle.more_body
            if status == TRY_AGAIN or (is_its_own and cycle.response_started):
                self.transport.abort()  # It would be taken for the answer of an earlier request, or a part of it.
                return
            if not is_its_own:
                if self.pipeline and self.cycle.more_body:
                    self.pipeline.popleft()  # Its body is wrong.
                self._refusal = refusal
                return
            cycle.disconnected = True  # Its own body is wrong: this is its answer, and nobody else gives one.
            cycle.waiting_for_100_continue = False
            cycle.message_event.set()
        self.transport.write(refusal)
        if status == TRY_AGAIN:
            self._close()  # No lingering: the node is short of connections or of memory.
        else:
            self._linger()

    def _linger(self) -> None:
        """Close after the last answer, once the client has had time to take it."""
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_SECONDS, self._close)


def host_of(transport: asyncio.BaseTransport) -> str:
    """The client's address, without its port."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""


def _watch(transport: asyncio.BaseTransport) -> None:
    """Have the system find out when the other machine is gone."""
    link = transport.get_extra_info("socket")
    if link is None or link.family not in (socket.AF_INET, socket.AF_INET6):
        return
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_SECONDS)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_ALIVE_EVERY_SECONDS)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEP_ALIVE_TRIES)
