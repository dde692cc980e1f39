"""Routing (seed 002): with `produce.forward` a broker takes records for partitions that others lead, hands them to
whoever leads, and answers for it.

    producer > any broker > ForwardRequest, one per leader > the leader: checked, written, safe > the same answer back

It is one hop: a broker that is handed records and does not lead says so. What was never sent is answered
NOT_LEADER_OR_FOLLOWER; what was sent and not answered may have been written, and is answered REQUEST_TIMED_OUT: a
producer that counts its records may repeat either. The connection is held meanwhile, so each has one request here at
most, and what is under way to one leader is limited: rings use the same links.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from anabranch.broker.handlers import produce
from anabranch.broker.handlers.produce import Routed
from anabranch.broker.peers.messages import ForwardAnswer, ForwardRequest
from anabranch.broker.peers.peers import Peers
from anabranch.broker.requests.call import Call, Piece
from anabranch.errors import (
    AnabranchError,
    NotOwnerError,
    PeerRefusedError,
    PeerUnreachableError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import decode_response, encode_request
from anabranch.wire.frame import SIZE_BYTES
from anabranch.wire.header import RequestHeader, parse_response_header
from anabranch.wire.produce_fast import TOPIC_IDS_SINCE, VERSIONS

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

ON_THE_WAY_BYTES_MAX = 8 * 2**20
ON_THE_WAY_MAX = 64
"""Under way to one leader: so much, and so many requests. A larger one goes alone."""
ANSWER_MS = 1000
"""What a leader's answer may take on top of the time that the producer gives it."""
NEVER_BEGUN = ("BackPressureError", "UnsupportedVersionError")
"""A leader's reasons to refuse a question before it has done anything."""

logger = logging.getLogger(__name__)


class Gate:
    """What is under way to one leader; the rest waits in order."""

    def __init__(self) -> None:
        self._count = 0
        self._bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size: int) -> None:
        if self._waiting or not self._fits(size):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size, turn))
            await turn
        else:
            self._count_in(size)

    def leave(self, size: int) -> None:
        self._count -= 1
        self._bytes -= size
        while self._waiting and self._fits(self._waiting[0][0]):
            next_size, turn = self._waiting.popleft()
            if not turn.done():
                self._count_in(next_size)
                turn.set_result(None)

    def _fits(self, size: int) -> bool:
        return not self._count or (
            self._count < ON_THE_WAY_MAX and self._bytes + size <= ON_THE_WAY_BYTES_MAX
        )

    def _count_in(self, size: int) -> None:
        self._count += 1
        self._bytes += size


class Routing:
    """What others lead; there is none of it on a node without peers."""

    def __init__(self, broker: "Broker", peers: Peers) -> None:
        self._broker = broker
        self._peers = peers
        self._gates: dict[BrokerId, Gate] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.forwarded_total = 0

    # --- the broker that was asked -------------------------------------------------------------------------------

    def leader_for(self, call: Call, topic: str | UUID, index: int) -> BrokerId | None:
        """Who is to be handed these records; None: nobody."""
        if getattr(call.client, "is_far", False):
            return None  # Whoever sent them here was wrong, and finds out sooner by itself.
        state = self._broker.topics.find(topic)
        if state is None or not 0 <= index < state.topic.partition_count:
            return None
        leader = self._broker.leader_of(state, index)
        return leader if leader is not None and leader != self._broker.id else None

    def forward(
        self,
        leader: BrokerId,
        call: Call,
        acks: int,
        timeout_ms: int,
        parts: list[Routed],
        done: Callable[[], None],
    ) -> None:
        """Have that broker take these records. When `done` is called, each knows what became of it."""
        task = asyncio.ensure_future(self._forward(leader, call, acks, timeout_ms, parts))
        self._tasks.add(task)
        self._broker.core.tasks_open += 1

        def finish(finished: asyncio.Task[None]) -> None:
            self._tasks.discard(finished)
            self._broker.core.tasks_open -= 1
            for part in parts:
                part.data = None
            if finished.cancelled():
                call.close("the node stops")
            elif (defect := finished.exception()) is not None:
                logger.error("records could not be forwarded: this is a defect", exc_info=defect)
                call.close(f"{type(defect).__name__}: {defect}")
            else:
                done()

        task.add_done_callback(finish)

    async def _forward(
        self, leader: BrokerId, call: Call, acks: int, timeout_ms: int, parts: list[Routed]
    ) -> None:
        header = call.header
        body = encode_request(
            ApiKey.PRODUCE, header.api_version, _request(header.api_version, acks, timeout_ms, parts)
        )
        question = ForwardRequest(
            ApiKey.PRODUCE, header.api_version, header.client_id, call.client.host, body
        )
        try:
            answer = await self._ask(leader, question, max(0, timeout_ms) + ANSWER_MS)
        except AnabranchError as error:
            for part in parts:
                part.error = error
        else:
            self.forwarded_total += len(parts)
            if acks != produce.ACKS_NONE:
                _take_answer(answer, header.api_version, parts)

    async def _ask(self, leader: BrokerId, question: ForwardRequest, patience_ms: int) -> ForwardAnswer:
        clock, size = self._broker.clock, len(question.body)
        end_ms = clock.monotonic_ms() + patience_ms
        gate = self._gates.setdefault(leader, Gate())
        await gate.enter(size)
        try:
            left_ms = end_ms - clock.monotonic_ms()
            if left_ms <= 0 or not self._peers.is_up(leader):
                raise NotOwnerError(
                    f"Broker {leader} leads this partition, and cannot be reached from here now."
                )
            answer = await self._peers.ask(leader, question, left_ms)
        except PeerUnreachableError as error:
            raise RequestTimedOutError(
                f"Broker {leader} leads this partition and did not answer; whether it has the records is not known: "
                f"{error}."
            ) from error
        except PeerRefusedError as error:
            reason = f"Broker {leader} leads this partition, and did not take the records: {error}"
            raise (NotOwnerError if error.kind in NEVER_BEGUN else RequestTimedOutError)(reason) from error
        finally:
            gate.leave(size)
        assert isinstance(answer, ForwardAnswer)
        return answer

    # --- the broker that leads -----------------------------------------------------------------------------------

    async def asked(self, question: ForwardRequest) -> ForwardAnswer:
        """The answer's body, behind its header; empty if the producer wants none."""
        if question.api_version not in VERSIONS:
            raise UnsupportedVersionError(f"Produce v{question.api_version} is not served here.")
        client = FarProducer(question.host, self._broker.own_address)
        header = RequestHeader(question.api_key, question.api_version, 0, question.client_id)
        body = bytearray(question.body)  # Batches are stamped where they lie.
        produce.handle(self._broker, Call(client, header, memoryview(body), 0, len(body)))
        frame = await client.answer
        if not frame:
            return ForwardAnswer(b"")
        _, start = parse_response_header(frame, SIZE_BYTES, len(frame), ApiKey.PRODUCE, question.api_version)
        return ForwardAnswer(frame[start:])


class FarProducer:
    """The producer of another broker, which waits for the answer on its behalf."""

    is_far = True

    def __init__(self, host: str, local_address: tuple[str, int]) -> None:
        self.host = host
        self.local_address = local_address
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def answered(self, call: Call, pieces: list[Piece] | None) -> None:
        if not self.answer.done():
            self.answer.set_result(b"".join(piece for piece in pieces or () if isinstance(piece, bytes)))

    def settled(self) -> None:
        raise AssertionError("a forwarded request never takes the plain lane")

    def dropped(self, call: Call, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(RequestTimedOutError(reason))


def _request(version: int, acks: int, timeout_ms: int, parts: Iterable[Routed]) -> dict[str, Any]:
    topics: dict[str | UUID, list[dict[str, Any]]] = {}
    for part in parts:
        topics.setdefault(part.topic, []).append({"index": part.index, "records": part.data})
    field = _topic_field(version)
    data = [{field: topic, "partition_data": rows} for topic, rows in topics.items()]
    return {"transactional_id": None, "acks": acks, "timeout_ms": timeout_ms, "topic_data": data}


def _take_answer(answer: ForwardAnswer, version: int, parts: Iterable[Routed]) -> None:
    response = decode_response(ApiKey.PRODUCE, version, answer.body, 0, len(answer.body))
    field = _topic_field(version)
    rows = {
        (topic[field], row["index"]): row
        for topic in response["responses"]
        for row in topic["partition_responses"]
    }
    for part in parts:
        row = rows.get((part.topic, part.index))
        if row is None:
            part.error = RequestTimedOutError("The leader's answer does not speak of this partition.")
            continue
        part.answer = (
            part.index,
            row["error_code"],
            row["base_offset"],
            row["log_append_time_ms"],
            row.get("log_start_offset", -1),
            row.get("error_message"),
            None,
            [
                (each["batch_index"], each["batch_index_error_message"])
                for each in row.get("record_errors", ())
            ],
        )


def _topic_field(version: int) -> str:
    return "topic_id" if version >= TOPIC_IDS_SINCE else "name"
