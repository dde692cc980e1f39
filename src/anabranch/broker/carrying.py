"""A Kafka request that no connection brought: of this node's own gateway, or of another broker's, on behalf of its
clients. It enters through the same door as a frame does, and its answer comes back as bytes.

    gateway > any broker > ForwardRequest > the broker that leads, or coordinates > ForwardAnswer

Whoever stops waiting for the answer leaves nothing behind: the handler is told that nobody listens any more.
"""

import asyncio
from typing import TYPE_CHECKING, cast

from anabranch.broker.call import Call, Piece
from anabranch.broker.handlers import dispatch
from anabranch.broker.peer_messages import ForwardAnswer, ForwardRequest
from anabranch.errors import AnabranchError, RequestTimedOutError
from anabranch.log.slice import Slice
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


class OwnClient:
    """Nobody's connection: takes one answer and hands it to whoever waits for it."""

    def __init__(self, host: str, local_address: tuple[str, int], *, is_far: bool) -> None:
        self.host = host
        self.local_address = local_address
        self.is_far = is_far
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def answered(self, call: Call, pieces: list[Piece] | None) -> None:
        if not self.answer.done():
            self.answer.set_result(b"".join(map(_bytes_of, pieces or ())))

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
        frame = await client.answer
    except BaseException as error:
        if not isinstance(error, AnabranchError) and call.on_close is not None:
            call.on_close()
        raise
    if not frame:
        return memoryview(b"")
    _, start = parse_response_header(frame, SIZE_BYTES, len(frame), question.api_key, question.api_version)
    return memoryview(frame)[start:]


async def asked(broker: "Broker", question: ForwardRequest) -> ForwardAnswer:
    """For another broker's client."""
    return ForwardAnswer(await carry_out(broker, question, is_far=True))


def _bytes_of(piece: Piece) -> bytes | bytearray | memoryview:
    if isinstance(piece, bytes | bytearray | memoryview):
        return piece
    return cast(Slice, piece).read()
