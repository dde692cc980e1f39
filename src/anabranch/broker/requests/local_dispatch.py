"""A Kafka request that no connection brought: of this node's own gateway, or of another broker's, on behalf of its
clients. It enters through the same door as a frame does, and its answer comes back as bytes.

    gateway > any broker > ForwardRequest > the broker that leads, or coordinates > ForwardAnswer

Whoever stops waiting for the answer leaves nothing behind: the handler is told that nobody listens any more.
"""

import asyncio
from typing import TYPE_CHECKING, cast

from anabranch.broker.handlers import dispatch
from anabranch.broker.peers.messages import ForwardAnswer, ForwardRequest
from anabranch.broker.requests.call import Call, Piece
from anabranch.broker.workers import Workers
from anabranch.errors import AnabranchError, RequestTimedOutError, StorageError
from anabranch.log.segment.slice import Slice
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.frame import SIZE_BYTES
from anabranch.wire.header import RequestHeader, parse_response_header

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

FOR_OTHERS = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.DESCRIBE_MEMBER,
    }
)
"""What a broker asks of the one that leads a partition or coordinates a group; Produce is `routing.py`'s."""

READ_AT_ONCE_BYTES_MAX = 64 * 1024


class OwnClient:
    """Nobody's connection: takes one answer and hands it to whoever waits for it."""

    def __init__(self, host: str, local_address: tuple[str, int], *, is_far: bool) -> None:
        self.host = host
        self.local_address = local_address
        self.is_far = is_far
        self.answer: asyncio.Future[list[Piece]] = asyncio.get_running_loop().create_future()

    def answered(self, call: Call, pieces: list[Piece] | None) -> None:
        """Slices of files are pinned until they are read, which happens when whoever waits has its turn."""
        if self.answer.done():
            return
        try:
            _pin(pieces or [])
        except StorageError as error:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(pieces or [])

    def settled(self) -> None:
        raise AssertionError("only a connection takes the plain lane")

    def dropped(self, call: Call, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(RequestTimedOutError(f"The request was not answered: {reason}."))


async def carry_out(broker: "Broker", question: ForwardRequest, *, is_far: bool) -> memoryview:
    """The body of this broker's answer; empty if none is wanted. Raises what would close a connection."""
    client = OwnClient(question.host, broker.own_address, is_far=is_far)
    header = RequestHeader(question.api_key, question.api_version, 0, question.client_id)
    body = bytearray(question.body)  # Batches are stamped where they lie.
    call = Call(client, header, memoryview(body), 0, len(body))
    dispatch(broker, call)
    try:
        pieces = await client.answer
    except asyncio.CancelledError:
        if client.answer.cancelled() and call.on_close is not None:
            call.on_close()
        elif not client.answer.cancelled() and client.answer.exception() is None:
            _unpin(client.answer.result())  # It came in the very moment in which nobody wanted it any more.
        raise
    frame = await _read(broker.workers, pieces)
    if not frame:
        return memoryview(b"")
    _, start = parse_response_header(frame, SIZE_BYTES, len(frame), question.api_key, question.api_version)
    return memoryview(frame)[start:]


async def asked(broker: "Broker", question: ForwardRequest) -> ForwardAnswer:
    """For another broker's client."""
    return ForwardAnswer(await carry_out(broker, question, is_far=True))


# --- slices of files -------------------------------------------------------------------------------------------


def _slices(pieces: list[Piece]) -> list[Slice]:
    return [piece for piece in pieces if isinstance(piece, Slice)]


def _pin(pieces: list[Piece]) -> None:
    """All or none. Raises StorageError."""
    pinned: list[Piece] = []
    try:
        for piece in _slices(pieces):
            piece.pin()
            pinned.append(cast(Piece, piece))
    except StorageError:
        _unpin(pinned)
        raise


def _unpin(pieces: list[Piece]) -> None:
    for piece in _slices(pieces):
        piece.unpin()


def _joined(pieces: list[Piece]) -> bytes:
    return b"".join(piece.read() if isinstance(piece, Slice) else cast(bytes, piece) for piece in pieces)


def _read(workers: Workers, pieces: list[Piece]) -> "asyncio.Future[bytes]":
    """The whole answer. Much of a file is read by a worker: it may not be in the system's memory."""
    found: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def done(frame: bytes | None, error: BaseException | None) -> None:
        _unpin(pieces)
        if found.done():
            return
        if error is not None:
            found.set_exception(error)
        else:
            found.set_result(frame or b"")

    if sum(piece.count for piece in _slices(pieces)) > READ_AT_ONCE_BYTES_MAX:
        workers.heavy(lambda: _joined(pieces), done)
        return found
    try:
        done(_joined(pieces), None)
    except AnabranchError as error:
        done(None, error)
    return found
