"""Asking: one request of Kafka's, carried out in this process or, over the peer link, by another broker.

What is under way to one broker is limited by kind, so that neither many readers nor many members of groups can use up
what brokers ask each other.
"""

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from anabranch.broker.peers.messages import ForwardAnswer, ForwardRequest
from anabranch.broker.requests.local_dispatch import carry_out
from anabranch.errors import NotOwnerError, PeerRefusedError, PeerUnreachableError, RequestTimedOutError
from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import decode_response, encode_request

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

Body = dict[str, Any]
CLIENT_ID = "anabranch-gateway"
PATIENCE_MS = 10_000
"""How long a request may take, unless it says otherwise."""
UNDONE = ("BackPressureError", "UnsupportedVersionError", "NotOwnerError")
"""What another broker says that has not begun with a request."""

WRITE, READ, WAIT, FIND, GROUP = "write", "read", "wait", "find", "group"
KINDS = {ApiKey.PRODUCE: WRITE, ApiKey.FETCH: READ, ApiKey.LIST_OFFSETS: FIND}
UNDER_WAY_MAX = {WRITE: 16, READ: 32, WAIT: 512, FIND: 32, GROUP: 512}
"""Requests to one broker, of one kind, at once; the rest waits its turn."""


class Asking:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._turns: dict[tuple[BrokerId, str], asyncio.Semaphore] = {}
        self.asked_total: defaultdict[str, int] = defaultdict(int)
        """Requests by "here" or "there"."""

    @property
    def broker_id(self) -> BrokerId:
        return BrokerId(self._broker.id)

    async def ask(
        self,
        api_key: ApiKey,
        version: int,
        body: Body,
        *,
        at: BrokerId | None = None,
        client_id: str = CLIENT_ID,
        host: str = "",
        timeout_ms: int = PATIENCE_MS,
    ) -> Body:
        """The answer of this broker, or of the one named; error codes in it are the caller's to read.

        Raises NotOwnerError if that broker cannot be reached and nothing was done, RequestTimedOutError if nobody
        knows."""
        return await self.ask_as(api_key, version, body, at, client_id, host, timeout_ms)

    async def ask_as(
        self,
        api_key: ApiKey,
        version: int,
        body: Body,
        at: BrokerId | None,
        client_id: str,
        host: str,
        timeout_ms: int,
        kind: str | None = None,
    ) -> Body:
        """The same as one of that kind, of which so many may be under way."""
        question = ForwardRequest(api_key, version, client_id, host, encode_request(api_key, version, body))
        if at is None or at == self._broker.id:
            self.asked_total["here"] += 1
            answer = await self._here(question, timeout_ms)
        else:
            self.asked_total["there"] += 1
            turn = self._turn(at, kind or KINDS.get(api_key, GROUP))
            answer = await self._there(at, question, timeout_ms, turn)
        return decode_response(api_key, version, answer, 0, len(answer)) if answer else {}

    async def _here(self, question: ForwardRequest, timeout_ms: int) -> memoryview:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await carry_out(self._broker, question, is_far=False)
        except TimeoutError:
            raise RequestTimedOutError(
                f"This broker did not answer within {timeout_ms} ms; whether it has done this is not known."
            ) from None

    async def _there(
        self, at: BrokerId, question: ForwardRequest, timeout_ms: int, turn: asyncio.Semaphore
    ) -> memoryview:
        peers, clock = self._broker.peers, self._broker.clock
        end_ms = clock.monotonic_ms() + timeout_ms
        async with turn:
            left_ms = end_ms - clock.monotonic_ms()
            if peers is None or left_ms <= 0 or not peers.is_up(at):
                raise NotOwnerError(f"Broker {at} cannot be reached from here now.")
            try:
                answer = await peers.ask(at, question, left_ms)
            except PeerUnreachableError as error:
                raise RequestTimedOutError(
                    f"Broker {at} did not answer; whether it has done this is not known: {error}."
                ) from error
            except PeerRefusedError as error:
                kind = NotOwnerError if error.kind in UNDONE else RequestTimedOutError
                raise kind(f"Broker {at} did not do this: {error}") from error
        assert isinstance(answer, ForwardAnswer)
        return memoryview(answer.body)

    def _turn(self, at: BrokerId, kind: str) -> asyncio.Semaphore:
        turn = self._turns.get((at, kind))
        if turn is None:
            turn = self._turns[at, kind] = asyncio.Semaphore(UNDER_WAY_MAX[kind])
        return turn

    def is_crowded(self, at: BrokerId, kind: str) -> bool:
        """Whether others wait for their turn."""
        return self._turn(at, kind).locked()
