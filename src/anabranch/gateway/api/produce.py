"""`POST /v1/topics/{topic}/records`: write records.

    application/json          one record, a list of them, or {"records": [...]}; answered with partition and offset
    application/x-ndjson      one record a line, for as long as one likes; answered line by line, in order
    application/octet-stream  the body is the value; ?key=, and X-Anabranch-Header-NAME for headers

A record is safe when it is answered. Of several each has its own outcome: the status is 200 if all were written, 207 if
some were, else that of the first that was not.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from anabranch.broker.requests.turns import ROWS_PER_TURN
from anabranch.errors import AnabranchError, BrokerRefusedError, GatewayError
from anabranch.gateway.http.bodies import body_of, check_encoding, lines_of
from anabranch.gateway.http.deadline import WRITE_GRACE_MS, extend_deadline, lift_deadline
from anabranch.gateway.http.errors import DEFECT_CODE, code_word, error_body, headers_of, status_of
from anabranch.gateway.http.queries import LONG_MAX, check_known, one_of, whole_or_none
from anabranch.gateway.http.responses import JsonAnswer, StreamedAnswer
from anabranch.gateway.http.texts import json_text
from anabranch.gateway.produce.pending_batch import Placed
from anabranch.gateway.record_json import NAME_SHOWN_MAX, NewRecord, from_base64, new_record, parse_json
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.gateway.gateway import Gateway

JSON = "application/json"
NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")
BINARY = ("application/octet-stream", "text/plain")
HEADER_PREFIX = "x-anabranch-header-"
LIST_RECORDS_MAX = 10_000
UNDER_WAY_MAX = 1000
"""Lines of one stream that are not answered yet."""
SMALL_BYTES_MAX = 16 * 1024
"""A body so short is read as JSON at once; a longer one in its turn."""
ENTERING_MAX = 4
"""Bodies above that which are read as JSON and become records at the same time."""
TURN_RECORDS = 500
TURN_BYTES = 32 * 1024
"""After so many of one request, or of its bytes, others have their turn."""
ANSWER_BYTES = 16 * 1024
"""Answers of a stream leave together, up to so many bytes, or when no more are there."""
EACH, ERRORS = "each", "errors"

logger = logging.getLogger(__name__)

Outcome = asyncio.Future[Placed] | AnabranchError


def routes(gateway: "Gateway") -> list[BaseRoute]:
    writing = Writing(gateway)
    return [Route("/v1/topics/{topic}/records", writing.post, methods=["POST"])]


class Writing:
    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._streams: set[asyncio.Task[None]] = set()
        self._entrance = asyncio.Semaphore(ENTERING_MAX)
        gateway.on_close.append(self._end_streams)

    async def _end_streams(self) -> None:
        """The node stops: what was read is written and answered, the rest is for another broker."""
        for stream in self._streams:
            stream.cancel()

    async def post(self, request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == JSON or kind.endswith("+json"):
            return await self._post_json(request)
        if kind in NDJSON:
            return await self._post_lines(request)
        if kind in BINARY:
            return await self._post_value(request)
        raise GatewayError(
            f"Bodies of type {kind or 'none'} are not taken: send Content-Type: application/json, "
            "application/x-ndjson, or application/octet-stream for one value as it is.",
            "UNSUPPORTED_MEDIA_TYPE",
            415,
        )

    async def _put(self, topic: str, record: NewRecord, partition: int | None) -> Outcome:
        try:
            return await self._gateway.gather.put(
                topic,
                record.partition if record.partition is not None else partition,
                record.key,
                record.value,
                record.headers,
                record.timestamp,
            )
        except AnabranchError as error:
            return error

    # --- JSON ------------------------------------------------------------------------------------------------

    async def _post_json(self, request: Request) -> Response:
        check_known(request, ("partition",))
        topic, partition = request.path_params["topic"], whole_or_none(request, "partition")
        async with body_of(self._gateway, request) as body:
            extend_deadline(WRITE_GRACE_MS)
            if len(body) <= SMALL_BYTES_MAX:
                outcomes = await self._put_json(topic, body, partition)
            else:
                async with self._entering():
                    outcomes = await self._put_json(topic, body, partition)
            if not isinstance(outcomes, list):
                return _answer_one(await _settled(outcomes))
            lift_deadline()  # Each record has one of its own.
            settled = [await _settled(outcome) for outcome in outcomes]
            self._gateway.refusals.update(
                code_word(each) for each in settled if isinstance(each, AnabranchError)
            )
            if len(settled) > TURN_RECORDS:
                await self._gateway.calls.turns.wait(ROWS_PER_TURN)
            return _answer_many(settled)

    @contextlib.asynccontextmanager
    async def _entering(self) -> AsyncIterator[None]:
        """Few long bodies become records at once: those that came first are done first, and not all of them late."""
        try:
            async with asyncio.timeout(self._gateway.settings.gateway_request_timeout_ms / 1000):
                await self._entrance.acquire()
        except TimeoutError:
            raise GatewayError(
                "Nothing of this was written: the gateway is busy with what came before. Try again in a moment, or at "
                "another broker.",
                "BUSY",
                503,
            ) from None
        try:
            await self._gateway.calls.turns.wait(ROWS_PER_TURN)
            yield
        finally:
            self._entrance.release()

    async def _put_json(self, topic: str, body: bytes, partition: int | None) -> Outcome | list[Outcome]:
        """What becomes of the record, or of each of the list."""
        given = parse_json(body, "The body")
        if isinstance(given, dict) and "records" in given:
            given = _list_in(given)
        if not isinstance(given, list):
            record = new_record(given, "")
            del given  # It may take thirty times the memory of its text.
            return await self._put(topic, record, partition)
        if len(given) > LIST_RECORDS_MAX:
            raise GatewayError(
                f"A list of {len(given)} records is too long: send {LIST_RECORDS_MAX} at once, or lines of "
                "application/x-ndjson.",
                "REQUEST_TOO_LARGE",
                413,
            )
        records = []
        slice_records = min(TURN_RECORDS, TURN_BYTES * len(given) // len(body) + 1)
        for number, each in enumerate(given, 1):
            records.append(new_record(each, f"records[{number - 1}]"))
            if number % slice_records == 0:
                await self._gateway.calls.turns.wait(ROWS_PER_TURN)
        del given
        await self._gateway.gather.topic(topic)
        return await self._put_all(topic, records, partition)

    async def _put_all(self, topic: str, records: list[NewRecord], partition: int | None) -> list[Outcome]:
        """Those behind one that finds no room in time find none either, and are not kept waiting for it."""
        outcomes: list[Outcome] = []
        for number, record in enumerate(records, 1):
            outcome = await self._put(topic, record, partition)
            outcomes.append(outcome)
            if _is_no_room(outcome):
                return outcomes + [outcome] * (len(records) - number)
            if number % TURN_RECORDS == 0:
                await self._gateway.calls.turns.wait(ROWS_PER_TURN)
        return outcomes

    # --- one value as it is ----------------------------------------------------------------------------------

    async def _post_value(self, request: Request) -> Response:
        check_known(request, ("partition", "key", "key_base64", "timestamp"))
        query = request.query_params
        key = query["key"].encode() if "key" in query else None
        if "key_base64" in query:
            key = from_base64(query["key_base64"].replace(" ", "+"), "key_base64")
        headers = [
            (name[len(HEADER_PREFIX) :], held.encode("latin-1"))
            for name, held in request.headers.items()
            if name.startswith(HEADER_PREFIX)
        ]
        timestamp = whole_or_none(request, "timestamp", LONG_MAX)
        async with body_of(self._gateway, request) as body:
            extend_deadline(WRITE_GRACE_MS)
            record = NewRecord(key, body, tuple(headers), timestamp, whole_or_none(request, "partition"))
            return _answer_one(await _settled(await self._put(request.path_params["topic"], record, None)))

    # --- a stream of lines -----------------------------------------------------------------------------------

    async def _post_lines(self, request: Request) -> Response:
        check_known(request, ("partition", "answers"))
        check_encoding(request)
        topic = request.path_params["topic"]
        partition, answers = whole_or_none(request, "partition"), one_of(request, "answers", (EACH, ERRORS))
        await self._gateway.calls.topic(topic, may_create=True)
        return StreamedAnswer(
            self._answers(request, topic, partition, is_each=answers == EACH), "application/x-ndjson"
        )

    async def _answers(
        self, request: Request, topic: str, partition: int | None, *, is_each: bool
    ) -> AsyncIterator[bytes]:
        """One line for each record; at the end, if only errors are wanted, how many were written. Before all that an
        empty piece, once the body is being read."""
        under_way: asyncio.Queue[Outcome | None] = asyncio.Queue(UNDER_WAY_MAX)
        reading = asyncio.ensure_future(self._read_lines(request, topic, partition, under_way))
        self._streams.add(reading)
        reading.add_done_callback(self._streams.discard)
        written, failed, number = 0, 0, 0
        ready = bytearray()
        try:
            await asyncio.sleep(0)
            yield b""
            while (outcome := await under_way.get()) is not None:
                settled = await _settled(outcome)
                if isinstance(settled, Placed):
                    written += 1
                else:
                    failed += 1
                    self._gateway.refusals[code_word(settled)] += 1
                if is_each:
                    ready += _line(_outcome_json(settled))
                elif not isinstance(settled, Placed):
                    ready += _line({"line": number, **_outcome_json(settled)})
                number += 1
                if ready and (under_way.empty() or len(ready) >= ANSWER_BYTES):
                    yield bytes(ready)
                    ready.clear()
            if not is_each:
                ready += _line({"written": written, "failed": failed})
            yield bytes(ready)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_lines(
        self,
        request: Request,
        topic: str,
        partition: int | None,
        under_way: "asyncio.Queue[Outcome | None]",
    ) -> None:
        number = 0
        try:
            async with contextlib.aclosing(lines_of(self._gateway, request)) as lines:
                async for line in lines:
                    try:
                        record = new_record(parse_json(line, f"Line {number}"), "")
                    except GatewayError as error:
                        await under_way.put(error)
                    else:
                        await under_way.put(await self._put(topic, record, partition))
                    number += 1
                    if number % TURN_RECORDS == 0:
                        await self._gateway.calls.turns.wait(ROWS_PER_TURN)
        except GatewayError as error:
            await under_way.put(error)  # The stream cannot be followed any further.
        except asyncio.CancelledError:
            if not self._gateway.is_closing:
                raise
            await under_way.put(GatewayError("The node stops: go on at another broker.", "NODE_STOPS", 503))
        except ClientDisconnect:
            logger.debug("a stream of records for %s broke off after %d", topic, number)
        except Exception as error:
            logger.exception("a stream of records could not be read: this is a defect")
            await under_way.put(GatewayError(f"A defect: {type(error).__name__}.", DEFECT_CODE, 500))
        await under_way.put(None)


def _list_in(given: dict[str, Any]) -> list[Any]:
    unknown = next((name for name in given if name != "records"), None)
    if unknown is not None:
        raise GatewayError(
            f'{unknown[:NAME_SHOWN_MAX]} does not belong beside "records": write it into each of them.'
        )
    if not isinstance(given["records"], list):
        raise GatewayError("records is no list: write [...], or one record without it.", "INVALID_RECORD")
    return given["records"]


async def _settled(outcome: Outcome) -> Placed | AnabranchError:
    if isinstance(outcome, AnabranchError):
        return outcome
    try:
        return await outcome
    except AnabranchError as error:
        return error


def _is_no_room(outcome: Outcome) -> bool:
    return isinstance(outcome, BrokerRefusedError) and outcome.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED


def _outcome_json(outcome: Placed | AnabranchError) -> dict[str, Any]:
    if isinstance(outcome, AnabranchError):
        return error_body(outcome)
    return {
        "partition": outcome.partition,
        "offset": str(outcome.offset),
        "timestamp": outcome.timestamp,
    }


def _line(found: dict[str, Any]) -> bytes:
    return json_text(found) + b"\n"


def _answer_one(outcome: Placed | AnabranchError) -> Response:
    if isinstance(outcome, AnabranchError):
        raise outcome
    return JsonAnswer(_outcome_json(outcome))


def _answer_many(outcomes: Sequence[Placed | AnabranchError]) -> Response:
    errors = [outcome for outcome in outcomes if isinstance(outcome, AnabranchError)]
    found = {"records": [_outcome_json(outcome) for outcome in outcomes]}
    if not errors:
        return JsonAnswer(found)
    if len(errors) < len(outcomes):
        return JsonAnswer(found, 207)
    return JsonAnswer(found, status_of(errors[0]), headers_of(errors[0]))
