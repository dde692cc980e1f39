"""InProcessClient: asks a broker in the same process through the door the network uses, without a socket.

A request is encoded by the wire codec, enters through `broker.handlers.dispatch` as a frame does, and its answer is
decoded again: whoever tests with it tests what a Kafka client would get. Everything runs on the loop's thread.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from anabranch.broker.broker import Broker
from anabranch.broker.handlers import dispatch
from anabranch.broker.requests.call import Call, Piece
from anabranch.errors import AnabranchError
from anabranch.log.segment.slice import Slice
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import decode_response, encode_request
from anabranch.wire.error_codes import ErrorCode
from anabranch.wire.frame import SIZE_BYTES
from anabranch.wire.header import parse_request_header, parse_response_header, request_header

Body = dict[str, Any]
Dispatch = Callable[[Broker, Call], None]


class RequestRefusedError(AnabranchError):
    """The broker answered with an error code, or closed the connection instead of answering."""

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.code = code


class Pending:
    """One request until its answer comes: `body` if it was answered, `closed_because` if the link was closed.

    Both stay None if nobody will ever answer (acks=0, or the broker died).
    """

    def __init__(self, api: ApiKey, version: int) -> None:
        self.api = api
        self.version = version
        self.is_settled = False
        self.body: Body | None = None
        self.closed_because: str | None = None
        self.on_settled: Callable[[Pending], None] | None = None

    def settle(self, body: Body | None, closed_because: str | None) -> None:
        if self.is_settled:
            return
        self.is_settled = True
        self.body = body
        self.closed_because = closed_because
        if self.on_settled is not None:
            self.on_settled(self)


class InProcessClient:
    """A `broker.requests.call.Client` that lives next to the broker."""

    host = "in-process"
    local_address = ("127.0.0.1", 9092)

    def __init__(
        self, broker: Broker, client_id: str = "in-process", *, is_cut: Callable[[], bool] = lambda: False
    ) -> None:
        self._broker = broker
        self._client_id = client_id
        self._is_cut = is_cut
        self._correlation_id = 0
        self._pending: dict[Call, Pending] = {}

    def send(self, api: ApiKey, version: int, body: Body) -> Pending:
        """Hand a request over; the answer is there at once or later."""
        self._correlation_id += 1
        header = request_header(api, version, self._correlation_id, self._client_id)
        # Writable, as a connection's buffer is: batches are stamped where they lie.
        frame = memoryview(bytearray(header + encode_request(api, version, body)))
        parsed, start = parse_request_header(frame, 0, len(frame))
        pending = Pending(api, version)
        call = Call(self, parsed, frame, start, len(frame))
        self._pending[call] = pending
        try:
            dispatch(self._broker, call)
        except AnabranchError as error:
            self.dropped(call, str(error))
        return pending

    async def ask(self, api: ApiKey, version: int, body: Body) -> Body:
        """The answer. Raises RequestRefusedError if the connection was closed instead."""
        settled = asyncio.Event()
        pending = self.send(api, version, body)
        if not pending.is_settled:
            pending.on_settled = lambda _: settled.set()
            await settled.wait()
        if pending.body is None:
            raise RequestRefusedError(f"{api.name} was not answered: {pending.closed_because}.")
        return pending.body

    def answered(self, call: Call, pieces: list[Piece] | None) -> None:
        pending = self._pending.pop(call, None)
        if pending is None or self._is_cut():
            return
        if pieces is None:
            pending.settle(None, None)
            return
        frame = b"".join(_bytes_of(piece) for piece in pieces)[SIZE_BYTES:]
        _, start = parse_response_header(frame, 0, len(frame), pending.api, pending.version)
        pending.settle(decode_response(pending.api, pending.version, frame, start, len(frame)), None)

    def hang_up(self) -> None:
        """Close the connection: whoever works on its requests is told."""
        pending, self._pending = self._pending, {}
        for call, each in pending.items():
            if call.on_close is not None:
                call.on_close()
            each.settle(None, "the client closed the connection")

    def settled(self) -> None:
        raise AssertionError("Only a connection takes the plain lane.")

    def dropped(self, call: Call, reason: str) -> None:
        pending = self._pending.pop(call, None)
        if pending is not None and not self._is_cut():
            pending.settle(None, reason)


def _bytes_of(piece: Piece) -> bytes | bytearray | memoryview:
    if isinstance(piece, bytes | bytearray | memoryview):
        return piece
    return cast(Slice, piece).read()


def check(code: int, what: str) -> None:
    """Raise RequestRefusedError unless an answer's error code is 0."""
    if code:
        error = ErrorCode(code)
        raise RequestRefusedError(f"{what}: {error.name}.", error)
