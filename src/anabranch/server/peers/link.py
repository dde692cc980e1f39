"""PeerLink: one connection to another broker, from its handshake to its end.

What is said in one turn of the loop leaves in one call, from the buffers where it lies. What the system does not take
at once waits in a queue bounded in bytes. What comes is decoded where it was received and handled before the next
frame is looked at; received records are lent, not copied, so a buffer from which something was lent is not used again.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from anabranch.broker.peers.codec import (
    ANSWERS,
    BODY_START,
    HEADER,
    LENGTH_BYTES,
    PEER_FRAME_BYTES_MAX,
    PUSH,
    QUESTIONS,
    Refused,
    Said,
    decode,
    encode,
    size_of,
)
from anabranch.broker.peers.messages import Answer, Buffer, PeerMessage, Question
from anabranch.clock import Clock
from anabranch.errors import AnabranchError, PeerProtocolError, PeerRefusedError, PeerUnreachableError
from anabranch.server.peers.handshake import (
    Handshake,
    HandshakeError,
    Identity,
    next_frame,
    refusal,
)
from anabranch.server.peers.receiving import Receiving
from anabranch.server.peers.sending import Sending
from anabranch.values import BrokerId

logger = logging.getLogger(__name__)

QUEUE_BYTES_MAX = 32 * 2**20
"""Told and not yet taken by the system, per link."""
QUESTIONS_MAX = 2048
"""Of one peer, at once. Members of groups wait here for their fellows, and readers for records."""
REASON_CHARACTERS_MAX = 2000


class LinkOwner(Protocol):
    """Who is told what becomes of a link."""

    clock: Clock

    def linked(self, link: "PeerLink") -> None: ...

    def lost(self, link: "PeerLink", reason: str) -> None: ...

    def heard(self, link: "PeerLink", message: PeerMessage) -> None: ...

    async def asked(self, link: "PeerLink", question: Question) -> Answer: ...


class PeerLink(asyncio.BufferedProtocol):
    def __init__(
        self,
        owner: LinkOwner,
        handshake: Callable[["PeerLink"], Handshake],
        *,
        is_dialled: bool,
        check_certificate: Callable[[Mapping[str, Any] | None], None] = lambda certificate: None,
    ) -> None:
        """`check_certificate` is given what TLS has proven, before anything is said, and may raise HandshakeError."""
        self.is_dialled = is_dialled
        """By us; else the other side did."""
        self.them = Identity("", BrokerId(-1), "")
        self.since_ms = 0
        self.heard_ms = 0
        self.met: asyncio.Future[Identity] = asyncio.get_running_loop().create_future()
        """Done when both sides are proven, or with why they are not."""
        self._owner = owner
        self._check_certificate = check_certificate
        self._handshake: Handshake | None = handshake(self)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._is_closed = False
        self._sending = Sending(self._loop)
        self._asks: dict[int, asyncio.Future[Answer]] = {}
        self._correlation = 0
        self._answering: set[asyncio.Task[None]] = set()
        self._received = Receiving()

    @property
    def is_up(self) -> bool:
        return self._handshake is None and not self._is_closed

    @property
    def broker_id(self) -> BrokerId:
        return self.them.broker_id

    # --- what asyncio calls ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._is_closed:
            self._transport.abort()
            return
        self._sending.open(self._transport)
        assert self._handshake is not None
        try:
            self._check_certificate(transport.get_extra_info("peercert"))
        except HandshakeError as error:
            self._end_meeting(error)
            return
        self._sending.put([next(self._handshake)])

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received.view[self._received.end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._received.end += nbytes
        self._sending.gather()  # What is said to what comes leaves with it, without another turn of the loop.
        try:
            if self._handshake is not None:
                self._go_on_meeting()
            if self.is_up:
                self.heard_ms = self._owner.clock.monotonic_ms()
                self._take_frames()
        except HandshakeError as error:
            self._end_meeting(error)
        except PeerProtocolError as error:
            logger.error(
                "broker %d sent what is not the peer protocol (%s): the link is closed and made again; if this goes "
                "on, run one release of anabranch on all brokers",
                self.broker_id,
                error,
            )
            self.close(f"it broke the protocol: {error}")
        except Exception as error:  # A defect of ours costs this link, which is made again.
            logger.exception("a message of broker %d could not be handled: this is a defect", self.broker_id)
            self.close(f"{type(error).__name__}: {error}")
        finally:
            self._sending.flush_gathered()

    def eof_received(self) -> bool:
        self.close("the other side closed it")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(str(exc) if exc else "the other side closed it")
        self._sending.close()

    def pause_writing(self) -> None:
        self._sending.is_blocked = True

    def resume_writing(self) -> None:
        self._sending.is_blocked = False
        self._sending.flush()

    # --- meeting -----------------------------------------------------------------------------------------------

    def _go_on_meeting(self) -> None:
        assert self._handshake is not None
        received = self._received
        while found := next_frame(received.view[received.begin : received.end]):
            frame, length = found
            received.begin += length
            try:
                self._sending.put([self._handshake.send(frame)])
            except StopIteration as done:
                self._handshake = None
                self.them, last_words = done.value
                self._sending.put([last_words])
                self._be_linked()
                return
        received.make_room_for_hello()

    def _be_linked(self) -> None:
        self.since_ms = self.heard_ms = self._owner.clock.monotonic_ms()
        self._received.make_room(BODY_START)
        self._owner.linked(self)
        if not self.met.done():
            self.met.set_result(self.them)

    def _end_meeting(self, error: HandshakeError) -> None:
        if error.is_told:
            self._sending.put([refusal(error)])
        self.close(str(error), error)

    def close(self, reason: str, error: Exception | None = None) -> None:
        """End it, now; what the system does not take at once is dropped."""
        if self._is_closed:
            return
        was_up = self.is_up
        self._is_closed = True
        self._sending.flush()
        if self._transport is not None:
            self._transport.abort()
        problem = error or PeerUnreachableError(f"the link ended: {reason}")
        if not self.met.done():
            self.met.set_exception(problem)
            self.met.exception()  # Whoever waits is told; if nobody does, that is no defect.
        for asking in self._asks.values():
            if not asking.done():
                asking.set_exception(
                    PeerUnreachableError(f"the link to broker {self.broker_id} broke: {reason}")
                )
        self._asks.clear()
        if was_up:
            self._owner.lost(self, reason)

    # --- receiving ---------------------------------------------------------------------------------------------

    def _take_frames(self) -> None:
        received = self._received
        view, end = received.view, received.end
        while end - received.begin >= BODY_START:
            begin = received.begin
            length, kind, correlation = HEADER.unpack_from(view, begin)
            if not BODY_START - LENGTH_BYTES <= length <= PEER_FRAME_BYTES_MAX:
                raise PeerProtocolError(f"a frame of {length} bytes; at most {PEER_FRAME_BYTES_MAX} are read")
            frame_end = begin + LENGTH_BYTES + length
            if frame_end > end:
                received.make_room(LENGTH_BYTES + length)
                return
            received.begin = frame_end
            self._take(kind, correlation, view[begin + BODY_START : frame_end])
            if not self.is_up:
                return
        received.make_room(BODY_START)

    def _take(self, kind: int, correlation: int, body: memoryview) -> None:
        said = decode(kind, body, self.broker_id)
        if kind in QUESTIONS:
            self._received.is_lent = True
            self._answer(cast(Question, said), correlation)
        elif kind in ANSWERS:
            self._received.is_lent = True
            self._take_answer(cast(Answer | Refused, said), correlation)
        else:
            if kind == PUSH:
                self._received.is_lent = True
            self._owner.heard(self, cast(PeerMessage, said))

    def _answer(self, question: Question, correlation: int) -> None:
        if len(self._answering) >= QUESTIONS_MAX:
            busy = Refused(
                f"{QUESTIONS_MAX} questions are open already: ask again later", "BackPressureError"
            )
            self._put(busy, correlation)
            return
        task = self._loop.create_task(self._find_answer(question, correlation))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _find_answer(self, question: Question, correlation: int) -> None:
        said: Said
        try:
            said = await self._owner.asked(self, question)
        except AnabranchError as error:
            said = Refused(str(error)[:REASON_CHARACTERS_MAX], type(error).__name__)
        except Exception as error:
            logger.exception(
                "a question of broker %d could not be answered: this is a defect", self.broker_id
            )
            said = Refused(
                f"a defect, see the log of that broker: {type(error).__name__}", type(error).__name__
            )
        self._put(said, correlation)

    def _take_answer(self, said: Answer | Refused, correlation: int) -> None:
        asking = self._asks.pop(correlation, None)
        if asking is None or asking.done():
            return  # It came too late: nobody waits any more.
        if isinstance(said, Refused):
            asking.set_exception(PeerRefusedError(said.reason, said.kind))
        else:
            asking.set_result(said)

    # --- sending -----------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        return max(0, QUEUE_BYTES_MAX - self._sending.bytes_waiting) if self.is_up else 0

    def tell(self, message: PeerMessage) -> bool:
        """Whether it found room."""
        return self._put_if_room(encode(message))

    def flush(self) -> None:
        self._sending.flush()

    async def ask(self, question: Question, timeout_ms: int) -> Answer:
        self._correlation = correlation = self._correlation % 0xFFFF_FFFF + 1
        if not self._put_if_room(encode(question, correlation)):
            raise PeerUnreachableError(f"too much waits to be sent to broker {self.broker_id}")
        asking = self._asks[correlation] = self._loop.create_future()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                answer: Answer = await asking
                return answer
        except TimeoutError:
            raise PeerUnreachableError(
                f"broker {self.broker_id} did not answer within {timeout_ms} ms"
            ) from None
        finally:
            self._asks.pop(correlation, None)

    def _put_if_room(self, frame: list[Buffer]) -> bool:
        """A frame that is larger than the whole queue passes when nothing else waits."""
        size = size_of(frame)
        if size > PEER_FRAME_BYTES_MAX:
            logger.error(
                "a message of %d bytes to broker %d is dropped: at most %d are read there",
                size,
                self.broker_id,
                PEER_FRAME_BYTES_MAX,
            )
            return False
        waiting = self._sending.bytes_waiting
        if not self.is_up or (waiting and waiting + size > QUEUE_BYTES_MAX):
            return False
        self._sending.put(frame, size)
        return True

    def _put(self, said: Said, correlation: int) -> None:
        """An answer: of those there are no more than questions, so they pass whatever else waits."""
        if not self.is_up:
            return
        frame = encode(said, correlation)
        if size_of(frame) > PEER_FRAME_BYTES_MAX:
            reason = f"the answer has {size_of(frame)} bytes; at most {PEER_FRAME_BYTES_MAX} are read"
            frame = encode(Refused(reason, "PeerProtocolError"), correlation)
        self._sending.put(frame)
