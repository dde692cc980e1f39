"""SocketSession: one WebSocket from its first message to its last.

The session reads one message after the other. While too many records are under way, or there is no room for more, it
does not read on, and the client's own socket slows the client down. Each subscription runs in a task of its own.
Whatever is wrong with a message is answered with an `error` and changes nothing else; a subscription that ends, for
whatever reason, says so with `unsubscribed`.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from anabranch.broker.requests.turns import ROWS_PER_TURN
from anabranch.errors import AnabranchError, InvalidRequestError
from anabranch.gateway.http.errors import error_body
from anabranch.gateway.websocket.fields import Id, id_of
from anabranch.gateway.websocket.messages import (
    Ack,
    Credit,
    Publish,
    Subscribe,
    Unsubscribe,
    message_of,
    parse_json,
)
from anabranch.gateway.websocket.outlet import ClientGoneError, Outlet
from anabranch.gateway.websocket.subscription_task import Running

if TYPE_CHECKING:
    from anabranch.gateway.produce.pending_batch import Placed
    from anabranch.gateway.websocket.sockets import Sockets

PUBLISHES_MAX = 1000
"""Of one socket that are not answered yet."""
SUBSCRIPTIONS_MAX = 100
PARTITIONS_MAX = 4096
"""That all subscriptions of one socket follow together."""
SUBSCRIBED_AT_ONCE = 8
"""Subscriptions of all sockets that begin in one round of the loop."""
ROWS_PER_SUBSCRIPTION = -(-ROWS_PER_TURN // SUBSCRIBED_AT_ONCE)
"""Rounded up: whoever finds any rows left in a turn is let in."""
SMALL_LENGTH_MAX = 4096
"""A longer message is read in its turn: of many sockets at once they would hold up everybody."""
TURN_MESSAGES = 32
"""After so many that have come at once others have their turn."""
GOING_AWAY, NO_TEXT, DEFECT = 1001, 1003, 1011
DEFECT_WORDS = "The node met something unexpected and has logged it."

logger = logging.getLogger(__name__)


class Line(Protocol):
    """The WebSocket, as far as a session needs it. `send` raises ClientGoneError."""

    host: str

    async def receive(self) -> str | None:
        """The next text; None: the client has closed. Raises NotTextError."""
        ...

    async def send(self, text: bytes) -> None: ...

    def send_now(self, text: bytes) -> bool:
        """Whether the client is there and has room for it."""
        ...

    async def close(self, code: int, reason: str) -> None: ...


class NotTextError(Exception):
    """The client has sent bytes."""


class SocketSession:
    def __init__(self, sockets: "Sockets", line: Line, topic: str | None) -> None:
        """Messages that name no topic are about `topic`."""
        self._sockets = sockets
        self._line = line
        self._topic = topic
        self.outlet = Outlet(line.send, line.send_now, sockets.unsent_bytes_max, sockets.refusals)
        self._publishes = 0
        self._has_room = asyncio.Event()
        self._is_taking = False
        self._running: dict[Id, Running] = {}
        self._memory = sockets.memory.share()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False

    @property
    def subscriptions(self) -> int:
        return len(self._running)

    async def run(self) -> None:
        """Until either side closes."""
        taken = 0
        try:
            while (text := await self._line.receive()) is not None:
                await self._take(text)
                taken += 1
                if taken % TURN_MESSAGES == 0:
                    await asyncio.sleep(0)
        except NotTextError:
            await self._line.close(NO_TEXT, "Messages are JSON text, and this one was bytes.")
        except ClientGoneError:
            pass
        except Exception:
            logger.exception("a WebSocket met something unexpected: it is closed")
            await self._line.close(DEFECT, DEFECT_WORDS)
        finally:
            await self._end()

    async def _end(self) -> None:
        self._is_over = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._memory.close()  # A task that was cancelled before its first step has given nothing back.

    async def say_goodbye(self) -> None:
        await self._line.close(GOING_AWAY, "The node stops: connect again, or to another broker.")

    def take_now(self, text: str) -> bool:
        """Deal with a message where it was read, if nothing has to be waited for; False: nothing was done, it has to
        be taken in its turn. A task's turn for every message would cost as much again."""
        if self._is_taking or self._is_over:
            return False
        try:
            message = message_of(parse_json(text), self._topic, self._sockets.filter_bytes_max)
            if isinstance(message, Publish):
                return self._publish_now(message)
            if isinstance(message, Subscribe):
                return False  # It begins in its turn.
            self._do(message)
        except AnabranchError:
            return False  # It is said in its turn.
        except Exception:
            logger.exception("a WebSocket met something unexpected: it is closed")
            self._start(self._line.close, DEFECT, DEFECT_WORDS)
        return True

    async def _take(self, text: str) -> None:
        own_id: Id | None = None
        self._is_taking = True
        try:
            if len(text) > SMALL_LENGTH_MAX:
                await self._sockets.calls.turns.wait(ROWS_PER_TURN)
            given = parse_json(text)
            own_id = id_of(given)
            message = message_of(given, self._topic, self._sockets.filter_bytes_max)
            del given  # It may take thirty times the memory of its text, and what follows may have to wait.
            if isinstance(message, Publish):
                await self._publish(message)
            else:
                if isinstance(message, Subscribe):
                    await self._sockets.turns.wait(ROWS_PER_SUBSCRIPTION)
                self._do(message)
        except AnabranchError as error:
            await self.outlet.say(error_message(own_id, error))
        finally:
            self._is_taking = False

    def _do(self, message: Subscribe | Credit | Ack | Unsubscribe) -> None:
        match message:
            case Subscribe():
                self._subscribe(message)
            case Credit():
                self._found(message.id).grant(message.records)
            case Ack():
                self._found(message.id).ack(message.partition, message.offset)
            case Unsubscribe():
                self._found(message.id).cancel()

    # --- publishing --------------------------------------------------------------------------------------------

    def _publish_now(self, message: Publish) -> bool:
        if self._publishes >= PUBLISHES_MAX:
            return False
        placed = self._sockets.gather.put_now(*_place_and_parts(message))
        if placed is None:
            return False
        self._follow_up(message.id, placed)
        return True

    async def _publish(self, message: Publish) -> None:
        while self._publishes >= PUBLISHES_MAX:
            self._has_room.clear()
            await self._has_room.wait()
        placed = await self._sockets.gather.put(*_place_and_parts(message))
        self._follow_up(message.id, placed)

    def _follow_up(self, own_id: Id | None, placed: "asyncio.Future[Placed]") -> None:
        self._publishes += 1
        placed.add_done_callback(partial(self._placed, own_id))

    def _answered(self) -> None:
        self._publishes -= 1
        self._has_room.set()

    def _placed(self, own_id: Id | None, placed: "asyncio.Future[Placed]") -> None:
        """Most answers are good and can leave at once; the others take the long way."""
        if self._is_over:
            return
        is_written = not placed.cancelled() and placed.exception() is None
        if is_written and (own_id is None or self.outlet.say_now(published_text(own_id, placed.result()))):
            self._answered()
        else:
            self._start(self._answer, own_id, placed)

    async def _answer(self, own_id: Id | None, placed: "asyncio.Future[Placed]") -> None:
        try:
            written = await placed
            if own_id is not None:
                async with self.outlet.turn:
                    await self.outlet.send(published_text(own_id, written))
        except AnabranchError as error:
            await self.outlet.say(error_message(own_id, error))
        finally:
            self._answered()

    # --- subscriptions -----------------------------------------------------------------------------------------

    def _subscribe(self, message: Subscribe) -> None:
        if message.id in self._running:
            raise InvalidRequestError(
                f"There is a subscription {message.id!r} already: unsubscribe, or take another id."
            )
        if len(self._running) >= SUBSCRIPTIONS_MAX:
            raise InvalidRequestError(
                f"A socket may have {SUBSCRIPTIONS_MAX} subscriptions: unsubscribe one, or open another socket."
            )
        running = Running(self._sockets, self.outlet, message, self._line.host)
        others = sum(each.partition_count for each in self._running.values())
        if others + running.partition_count > PARTITIONS_MAX:
            raise InvalidRequestError(
                f"A socket may follow {PARTITIONS_MAX} partitions: choose partitions, or open another socket."
            )
        self._memory.take(running.size_bytes)
        self._running[message.id] = running
        self._start(self._follow, running)

    async def _follow(self, running: Running) -> None:
        own_id = running.id
        try:
            await running.run()
        except AnabranchError as error:
            await self.outlet.say(error_message(own_id, error))
        finally:
            del self._running[own_id]
            self._memory.give(running.size_bytes)
        await self.outlet.say({"type": "unsubscribed", "id": own_id})

    def _found(self, own_id: Id) -> Running:
        running = self._running.get(own_id)
        if running is None:
            raise InvalidRequestError(f"There is no subscription {own_id!r} on this socket.")
        return running

    def look_for_partitions(self) -> None:
        for running in list(self._running.values()):
            if running.has_new_partitions():
                self._grow(running)

    def _grow(self, running: Running) -> None:
        """A subscription that may not follow the partitions that were added ends: the client would take silence for no
        new records."""
        size_bytes = running.grown_size_bytes
        try:
            self._memory.take(size_bytes - running.size_bytes)
        except AnabranchError as error:
            running.fail(error)
            return
        running.size_bytes = size_bytes
        self._start(running.follow_new_partitions)

    # --- tasks -------------------------------------------------------------------------------------------------

    def _start(self, work: Callable[..., Awaitable[None]], *given: Any) -> None:
        task = asyncio.ensure_future(self._guarded(work, *given))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Callable[..., Awaitable[None]], *given: Any) -> None:
        try:
            await work(*given)
        except ClientGoneError:
            pass  # The session hears of it, too.
        except asyncio.CancelledError:
            # A task keeps the error it ended with, whose frames hold what was to be sent: megabytes until a search for
            # garbage finds them.
            if not self._is_over:
                raise
        except Exception:
            logger.exception("a WebSocket met something unexpected: it is closed")
            await self._line.close(DEFECT, DEFECT_WORDS)


def _place_and_parts(message: Publish) -> tuple[Any, ...]:
    record = message.record
    return message.topic, record.partition, record.key, record.value, record.headers, record.timestamp


def published_text(own_id: Id, placed: "Placed") -> bytes:
    return b'{"type":"published","id":%s,"partition":%d,"offset":"%d","timestamp":%d}' % (
        json.dumps(own_id).encode(),
        placed.partition,
        placed.offset,
        placed.timestamp,
    )


def error_message(own_id: Id | None, error: AnabranchError) -> dict[str, Any]:
    return {"type": "error", "id": own_id, **error_body(error)["error"]}
