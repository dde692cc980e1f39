"""Forwarding: what changes the agreed table is done by the broker that leads the metadata quorum, whichever was asked.

    client > any broker > ForwardRequest > the leader: decoded, handled, encoded > ForwardAnswer > client

While no leader is known, or it loses leadership, the request waits and goes to the next leader, for as long as its
client is willing to. Of a request with several rows only those go there that were not carried out, and the answer is
put together of all tries. What may have been done already is repeated only if doing it twice is the same as once.

After a change this broker waits until it knows of it too, so that a client finds here what it has just made. A node
without peers forwards nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from anabranch.broker.handlers import HANDLERS, Api, Body, handled
from anabranch.broker.peers.messages import ForwardAnswer, ForwardRequest
from anabranch.broker.requests.call import Call, Piece
from anabranch.broker.requests.error_table import CODES
from anabranch.broker.requests.partial_answers import left, merged, rows_in, taken_for_done
from anabranch.errors import (
    AnabranchError,
    NotControllerError,
    PeerRefusedError,
    PeerUnreachableError,
    QuorumBusyError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import decode_request, decode_response, encode_request, encode_response
from anabranch.wire.error_codes import ErrorCode
from anabranch.wire.header import RequestHeader

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

PATIENCE_MS = 10_000
"""How long a request without a timeout of its own waits for a leader."""
PATIENCE_MS_MIN = 1000
PATIENCE_MS_MAX = 60_000
PAUSE_SECONDS = 0.1
CREATE_TOPICS_VERSION = 7
MAKERS = (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS)
UNDONE = ("NotControllerError", "BackPressureError", "UnsupportedVersionError")
"""What another broker says that has not begun with a request."""
LED_TRIES_MAX = 75
LED_PAUSE_SECONDS = 0.02

logger = logging.getLogger(__name__)


class Asked(NamedTuple):
    """One request, as far as its way does not matter."""

    api_key: int
    api_version: int
    client_id: str | None
    host: str
    body: bytes


class _UnknownOutcomeError(NotControllerError):
    """A leader went away over a request that may be repeated."""


class _Attempt:
    """A request and what has been answered of it so far."""

    def __init__(self, asked: Asked, api: Api, request: Body) -> None:
        self.asked = asked
        self.request = request
        """What is left of it."""
        self.is_repeated = False
        """Some of what is left may have been done already."""
        self._api = api
        self._rows = rows_in(api.rows, request)
        codes = {ErrorCode.NOT_CONTROLLER}
        # Whoever lost its leadership over a row does not know whether that was done.
        self._open_codes = codes | {ErrorCode.REQUEST_TIMED_OUT} if api.may_repeat(request) else codes
        self._answers: list[Body] = []
        """Each is about what the one before it left open."""
        self.is_over = False

    def ended_by(self, error: AnabranchError) -> Body:
        """What can be answered if there will be no further try. Raises the error if nothing has been answered yet."""
        if not self._answers:
            raise error
        if self._rows is not None and not isinstance(error, NotControllerError):
            assert self._api.refuse is not None
            refusal = self._api.refuse(self.request, error)
            self._answers.append({self._rows.answered: [], **refusal})
        return self.answer

    @property
    def answer(self) -> Body:
        answer = self._answers[-1]
        for earlier in reversed(self._answers[:-1]):
            assert self._rows is not None
            answer = merged(self._rows, earlier, answer, self._open_codes)
        return answer

    def answered(self, answer: Body) -> None:
        if self.is_repeated:
            answer = self._without_done(answer)
        if self._rows is None:
            # Without rows it is done or not as a whole, and only the last answer counts.
            self._answers = [answer]
            code = answer.get("error_code", ErrorCode.NONE)
            self.is_over = code not in self._open_codes and not _is_refused_as_a_whole(answer)
            self.is_repeated |= code == ErrorCode.REQUEST_TIMED_OUT
            return
        if answer.get("error_code", ErrorCode.NONE) in self._open_codes:
            return  # Refused before its rows were looked at.
        self._answers.append(answer)
        rest = left(self._rows, self.request, answer, self._open_codes)
        self.is_over = rest is None
        if rest is not None:
            self.is_repeated |= left(self._rows, rest, answer, (ErrorCode.REQUEST_TIMED_OUT,)) is not None
            self.request = rest
            key, version = self.asked.api_key, self.asked.api_version
            self.asked = self.asked._replace(body=encode_request(key, version, rest))

    def _without_done(self, answer: Body) -> Body:
        """A repetition finds nothing left to do where the first try was carried out."""
        code = self._api.done_code
        if code is None:
            return answer
        if self._rows is not None:
            return taken_for_done(self._rows, answer, code)
        return (
            {**answer, "error_code": ErrorCode.NONE, "error_message": None}
            if answer["error_code"] == code
            else answer
        )


class FarClient:
    """The client of another broker: known by its host, and answered by that broker."""

    is_far = True

    def __init__(self, host: str, local_address: tuple[str, int]) -> None:
        self.host = host
        self.local_address = local_address

    def answered(self, call: Call, pieces: list[Piece] | None) -> None:
        raise AssertionError("a forwarded request is answered by its result")

    def settled(self) -> None:
        raise AssertionError("a forwarded request is answered by its result")

    def dropped(self, call: Call, reason: str) -> None:
        raise AssertionError("a forwarded request is answered by its result")


class Forwarding:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    # --- the asking broker ---------------------------------------------------------------------------------------

    def carry_out(self, call: Call, api: Api, request: Body) -> Awaitable[Body]:
        """The answer to a client's request, wherever it is carried out."""
        header = call.header
        body = bytes(call.view[call.body : call.end])  # Now: the connection reads on when this returns.
        asked = Asked(header.api_key, header.api_version, header.client_id, call.client.host, body)
        return self._answer(asked, api, request)

    async def _answer(self, asked: Asked, api: Api, request: Body) -> Body:
        try:
            response = await self._somewhere(asked, api, request)
            if asked.api_key in MAKERS:
                await self._led({topic["name"] for topic in request["topics"]})
            return response
        except AnabranchError as error:
            assert api.refuse is not None
            return api.refuse(request, error)

    async def _somewhere(self, asked: Asked, api: Api, request: Body) -> Body:
        """Carry a request out, across changes of the leader: what one leader has not done is left to the next."""
        clock = self._broker.clock
        end_ms = clock.monotonic_ms() + _patience_ms(request)
        attempt = _Attempt(asked, api, request)
        while True:
            now_ms = clock.monotonic_ms()
            try:
                attempt.answered(await self._once(attempt.asked, api, attempt.request, end_ms - now_ms))
                if attempt.is_over:
                    return attempt.answer
                error: AnabranchError = NotControllerError(
                    "The leader of the metadata quorum has just changed."
                )
            except NotControllerError as refusal:
                error = refusal
                attempt.is_repeated |= isinstance(refusal, _UnknownOutcomeError)
            except AnabranchError as failure:
                return attempt.ended_by(failure)
            if clock.monotonic_ms() + PAUSE_SECONDS * 1000 >= end_ms:
                return attempt.ended_by(error)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _once(self, asked: Asked, api: Api, request: Body, left_ms: int) -> Body:
        """Raises NotControllerError: nothing was done. _UnknownOutcomeError: it may have been, and may be repeated."""
        metadata, peers = self._broker.metadata, self._broker.peers
        assert peers is not None
        if metadata.is_leader:
            return await self._here(asked, api, request)
        leader = metadata.leader_id
        if leader is None or leader == self._broker.id or not peers.is_up(leader):
            raise NotControllerError(
                "No leader of the metadata quorum can be reached: try again in a moment."
            )
        try:
            answer = await self._ask(leader, asked, left_ms)
        except PeerUnreachableError as error:
            if api.may_repeat(request):
                raise _UnknownOutcomeError(f"The leader of the metadata quorum went away: {error}") from error
            raise RequestTimedOutError(
                "The leader of the metadata quorum went away; whether it has done this is not known: look, and try "
                "again."
            ) from error
        await self._know_of_it()
        return answer

    async def _ask(self, broker_id: BrokerId, asked: Asked, timeout_ms: int) -> Body:
        peers = self._broker.peers
        assert peers is not None
        try:
            answer = await peers.ask(broker_id, ForwardRequest(*asked), max(1, timeout_ms))
        except PeerRefusedError as error:
            if error.kind in UNDONE:
                raise NotControllerError(str(error)) from error
            raise QuorumBusyError(
                f"Broker {broker_id} has met something unexpected, and may have done this: {error}"
            ) from error
        assert isinstance(answer, ForwardAnswer)
        return decode_response(asked.api_key, asked.api_version, answer.body, 0, len(answer.body))

    async def ask(self, broker_id: BrokerId, key: ApiKey, version: int, body: Body, timeout_ms: int) -> Body:
        """Have a request of our own carried out by that broker. Raises PeerUnreachableError, NotControllerError,
        QuorumBusyError."""
        asked = Asked(key, version, None, "", encode_request(key, version, body))
        return await self._ask(broker_id, asked, timeout_ms)

    async def at_leader(self, key: ApiKey, version: int, request: Body) -> Body:
        """Have a request, or a part of one, carried out by whoever leads the quorum; known here when this returns.
        Raises NotControllerError, QuorumBusyError, RequestTimedOutError."""
        asked = Asked(key, version, None, "", encode_request(key, version, request))
        return await self._somewhere(asked, HANDLERS[key], request)

    async def _know_of_it(self) -> None:
        try:
            await self._broker.metadata.caught_up()
        except QuorumBusyError as error:
            # It is done; the client may have to ask again until this broker knows of it.
            logger.info("a forwarded change is not known here yet: %s", error)
        await self._broker.topics.settled()

    async def _led(self, names: set[str]) -> None:
        """Wait a moment until new partitions have leaders: a client that has just made them wants to use them."""
        for _ in range(LED_TRIES_MAX):
            if all(self._is_led(name) for name in names):
                return
            await asyncio.sleep(LED_PAUSE_SECONDS)

    def _is_led(self, name: str) -> bool:
        state = self._broker.topics.find(name)
        if state is None or state.topic.topic_id not in self._broker.metadata.table.topics_by_id:
            return True  # It was refused, or is gone again.
        topic, of = state.topic, self._broker.leaders.of
        return all(of(topic.topic_id, index).broker_id is not None for index in range(topic.partition_count))

    async def make_topic(self, name: str, partition_count: int, overrides: Mapping[str, str | None]) -> None:
        """A topic on its first use, made by whoever leads. Raises what CreateTopics would answer."""
        configs = [{"name": key, "value": value} for key, value in overrides.items()]
        topic = {
            "name": name,
            "num_partitions": partition_count,
            "replication_factor": -1,
            "assignments": [],
            "configs": configs,
        }
        request = {"topics": [topic], "timeout_ms": PATIENCE_MS // 2, "validate_only": False}
        body = encode_request(ApiKey.CREATE_TOPICS, CREATE_TOPICS_VERSION, request)
        api = HANDLERS[ApiKey.CREATE_TOPICS]
        asked = Asked(ApiKey.CREATE_TOPICS, CREATE_TOPICS_VERSION, None, "", body)
        row = (await self._somewhere(asked, api, request))["topics"][0]
        if row["error_code"] != ErrorCode.NONE:
            raise _error_of(row["error_code"], row["error_message"] or f"Topic {name} could not be made.")
        await self._led({name})

    # --- the broker that does it ---------------------------------------------------------------------------------

    async def asked(self, question: ForwardRequest) -> ForwardAnswer:
        """Raises NotControllerError, and then nothing was done."""
        try:
            api = HANDLERS[ApiKey(question.api_key)]
        except (ValueError, KeyError):
            raise UnsupportedVersionError(f"API key {question.api_key} is not served here.") from None
        if api.refuse is None or question.api_version not in api.versions:
            raise UnsupportedVersionError(
                f"API key {question.api_key} v{question.api_version} is not carried out for other brokers."
            )
        if api.is_of_leader and not self._broker.metadata.is_leader:
            raise NotControllerError("This broker does not lead the metadata quorum.")
        asked = Asked(
            question.api_key,
            question.api_version,
            question.client_id,
            question.host,
            bytes(question.body),
        )
        request = decode_request(asked.api_key, asked.api_version, asked.body, 0, len(asked.body))
        response = await self._here(asked, api, request)
        if _is_refused_as_a_whole(response):
            raise NotControllerError("This broker leads the metadata quorum no more.")
        return ForwardAnswer(encode_response(asked.api_key, asked.api_version, response))

    async def _here(self, asked: Asked, api: Api, request: Body) -> Body:
        client = FarClient(asked.host, self._broker.own_address)
        header = RequestHeader(asked.api_key, asked.api_version, 0, asked.client_id)
        call = Call(client, header, memoryview(asked.body), 0, len(asked.body))
        return await handled(self._broker, call, api, request)


def _error_of(code: int, message: str) -> AnabranchError:
    """The error that another broker has turned into this code."""
    kind = next((kind for kind, each in CODES.items() if each == code), QuorumBusyError)
    return kind(message)


def _patience_ms(request: Body) -> int:
    """Some clients ask not to be waited for at all; a leader needs a moment all the same."""
    wanted = request.get("timeout_ms", PATIENCE_MS)
    return int(min(max(wanted, PATIENCE_MS_MIN), PATIENCE_MS_MAX))


def _is_refused_as_a_whole(response: Body) -> bool:
    """Nothing of it was done, because the broker that was to do it does not lead."""
    rows = set(_codes([value for name, value in response.items() if name != "error_code"]))
    return (rows or {response.get("error_code", ErrorCode.NONE)}) == {ErrorCode.NOT_CONTROLLER}


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for name, each in value.items():
            if name == "error_code":
                yield each
            else:
                yield from _codes(each)
    elif isinstance(value, list):
        for each in value:
            yield from _codes(each)
