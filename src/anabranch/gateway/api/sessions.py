"""Consumer sessions by HTTP: register, poll, commit, goodbye; each request may go to any broker of the cluster.

    POST   /v1/groups/{group}/sessions               {"topics": ["orders"], "from": "earliest", "timeout_ms": 30000}
    POST   /v1/groups/{group}/sessions/{id}/records  ?cursor=...&commit=true&max_records=500&max_bytes=...&wait_ms=5000
    POST   /v1/groups/{group}/sessions/{id}/commit   {"cursor": ...} or {"offsets": [{"topic", "partition", "offset"}]}
    DELETE /v1/groups/{group}/sessions/{id}

A session is a member of a classic consumer group, next to members that speak Kafka's protocol or WebSocket. A poll
answers records and a cursor. Sent back with the next poll it reads on from there, and with `commit=true` it commits
what it covers first. What was not committed is read again by whoever has the partition next. A poll is a POST, because
it changes the group: it is a heartbeat, joins, and commits. A GET, which any page can have a browser send, changes
nothing.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from anabranch.broker.workers import in_heavy_worker
from anabranch.errors import BrokerRefusedError, GatewayError, InvalidRequestError
from anabranch.gateway.http.deadline import extend_deadline
from anabranch.gateway.http.responses import HeldAnswer
from anabranch.gateway.http.texts import is_text, json_text
from anabranch.gateway.record_json import record_json
from anabranch.gateway.sessions.group_session import GroupSessions, Seat
from anabranch.gateway.sessions.reading import Found, Place, SessionReader
from anabranch.gateway.sessions.requests import (
    INT32_MAX,
    Asked,
    asked_by,
    check_fields,
    group_of,
    json_object,
    offsets_of,
    session_of,
)
from anabranch.gateway.sessions.state import (
    EARLIEST,
    LATEST,
    Positions,
    Wish,
    decode_cursor,
    encode_cursor,
)
from anabranch.values import TopicPartition
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.gateway.gateway import Gateway

TOPICS_MAX = 100
TIMEOUT_MS_DEFAULT = 30_000
REGISTER_WAIT_MS = 3000
"""How long a new session waits for the rest of its group; after that it gets its seat with a poll."""
SLICE_MS = 2000
"""How often a poll that waits asks where its member stands: its heartbeat, and how it hears of a new round."""
TAG_LENGTH = 8
"""Of a topic's id, in a cursor."""
AT_ONCE_RECORDS_MAX = 100
"""More are written as JSON by a worker."""
STARTS = {"earliest": EARLIEST, "latest": LATEST, "new": LATEST}


class SessionsApi:
    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._sessions = GroupSessions(gateway.calls, gateway.clock)
        self._reader = SessionReader(gateway, self._sessions)

    def routes(self) -> list[Route]:
        one = "/v1/groups/{group}/sessions/{session}"
        return [
            Route("/v1/groups/{group}/sessions", self.register, methods=["POST"]),
            Route(f"{one}/records", self.poll, methods=["POST"]),
            Route(f"{one}/commit", self.commit, methods=["POST"]),
            Route(one, self.goodbye, methods=["DELETE"]),
        ]

    # --- register ------------------------------------------------------------------------------------------------

    async def register(self, request: Request) -> Response:
        group_id = group_of(request)
        given = await json_object(self._gateway, request)
        check_fields(given, {"topics", "from", "timeout_ms"})
        wish = await self._wish(given)
        timeout_ms = given.get("timeout_ms", TIMEOUT_MS_DEFAULT)
        if type(timeout_ms) is not int or not 0 < timeout_ms <= INT32_MAX:
            raise InvalidRequestError("timeout_ms is not a number of milliseconds.")
        host = request.client.host if request.client is not None else ""
        member_id, seat = await self._sessions.register(
            group_id, wish, timeout_ms=timeout_ms, wait_ms=REGISTER_WAIT_MS, host=host
        )
        if seat is not None:
            await self._take_places(seat)
        path = f"/v1/groups/{quote(group_id, safe='')}/sessions/{quote(member_id, safe='')}"
        body = {"session": member_id, "group": group_id, "timeout_ms": timeout_ms, **_standing(seat)}
        return _json({**body, "records": f"{path}/records"}, 201, {"Location": path})

    async def _wish(self, given: dict[str, Any]) -> Wish:
        topics = given.get("topics")
        if not isinstance(topics, list) or not 0 < len(topics) <= TOPICS_MAX:
            raise InvalidRequestError(f"topics is not a list of 1 to {TOPICS_MAX} names of topics.")
        for topic in topics:
            if not is_text(topic):
                raise InvalidRequestError("topics holds something that is not the name of a topic.")
            await self._gateway.calls.topic(topic)
        start = given.get("from", "latest")
        if not isinstance(start, str) or start not in STARTS:
            raise InvalidRequestError(f"from is none of {', '.join(STARTS)}.")
        return Wish(tuple(sorted(set(topics))), STARTS[start])

    async def _take_places(self, seat: Seat) -> None:
        """Where the session begins is kept from now on; if the group moves on meanwhile, the next poll does it."""
        try:
            await self._reader.positions(seat, {})
        except BrokerRefusedError as error:
            if error.code != ErrorCode.REBALANCE_IN_PROGRESS:
                raise

    # --- poll ----------------------------------------------------------------------------------------------------

    async def poll(self, request: Request) -> Response:
        group_id, member_id = group_of(request), session_of(request)
        asked = asked_by(request, self._gateway.poll_ms_max, self._tag)
        extend_deadline(asked.wait_ms)
        lost = await self._commit_first(group_id, member_id, asked.cursor) if asked.commits else []
        found, seat, cursor = await self._read(group_id, member_id, asked)
        body = {
            "session": member_id,
            **_standing(seat),
            "cursor": cursor,
            **({"lost": _rows({each: asked.cursor[each] for each in lost})} if lost else {}),
        }
        if len(found.places) <= AT_ONCE_RECORDS_MAX:
            text = _with_records(body, found.places)
        else:
            text = await self._in_worker(partial(_with_records, body, found.places), found.reserved)
        give = partial(self._gateway.bodies.give, found.reserved)
        return HeldAnswer(text, "application/json", {"cache-control": "no-store"}, give)

    async def _in_worker(self, task: Callable[[], bytes], reserved: int) -> bytes:
        """Many records take a while to write: nobody else should wait meanwhile."""
        try:
            return await in_heavy_worker(self._gateway.broker.workers, task)
        except BaseException:
            self._gateway.bodies.give(reserved)
            raise

    async def _commit_first(self, group_id: str, member_id: str, cursor: Positions) -> list[TopicPartition]:
        """What could not be committed, because the group has moved on: no reason not to poll, on the contrary."""
        seat = await self._sessions.standing_seat(group_id, member_id)
        try:
            return await self._commit(seat, cursor)
        except BrokerRefusedError as error:
            if error.code != ErrorCode.REBALANCE_IN_PROGRESS:
                raise
            return sorted(cursor)

    async def _read(self, group_id: str, member_id: str, asked: Asked) -> tuple[Found, Seat | None, str]:
        """Records as soon as there are some, and the cursor behind them. Every slice of the wait is a heartbeat, and
        may bring another seat, or another topic of an old name."""
        clock, cursor = self._gateway.clock, asked.cursor
        end_ms = clock.monotonic_ms() + asked.wait_ms
        while True:
            left_ms = max(0, end_ms - clock.monotonic_ms())
            seat = await self._sessions.seat(group_id, member_id, wait_ms=min(left_ms, SLICE_MS))
            wanted = cursor.keys() if seat is None else seat.partitions | cursor.keys()
            tags = {topic: self._tag(topic) for topic in {each.topic for each in wanted}}
            found = Found([], cursor)
            if seat is not None:
                found = await self._read_slice(seat, cursor, asked, min(left_ms, SLICE_MS))
            text = encode_cursor(found.positions, tags.get)
            if found.places or left_ms == 0 or self._gateway.is_abandoned:
                return found, seat, text
            cursor = decode_cursor(text, self._tag)

    def _tag(self, topic: str) -> str | None:
        view = self._gateway.calls.known_topic(topic)
        return None if view is None else view.topic_id.hex[:TAG_LENGTH]

    async def _read_slice(self, seat: Seat, cursor: Positions, asked: Asked, wait_ms: int) -> Found:
        try:
            positions = await self._reader.positions(seat, cursor)
        except BrokerRefusedError as error:
            if error.code != ErrorCode.REBALANCE_IN_PROGRESS:
                raise
            return Found([], cursor)  # The group has moved on; the next look at the seat shows where to.
        return await self._reader.read(
            positions, records_max=asked.records_max, bytes_max=asked.bytes_max, wait_ms=wait_ms
        )

    # --- commit and goodbye --------------------------------------------------------------------------------------

    async def commit(self, request: Request) -> Response:
        group_id, member_id = group_of(request), session_of(request)
        given = await json_object(self._gateway, request)
        offsets = offsets_of(given, self._tag)
        seat = await self._sessions.standing_seat(group_id, member_id)
        lost = await self._commit(seat, offsets)
        if len(lost) == len(offsets) > 0:
            raise _all_lost(lost[0])
        taken = {each: offset for each, offset in offsets.items() if each not in lost}
        return _json({"committed": _rows(taken), "lost": _rows({each: offsets[each] for each in lost})})

    async def _commit(self, seat: Seat, offsets: Positions) -> list[TopicPartition]:
        """Those of the offsets that are the seat's; which are not."""
        kept = {each: offset for each, offset in offsets.items() if each in seat.partitions}
        await self._sessions.commit(seat, kept)
        return sorted(offsets.keys() - kept.keys())

    async def goodbye(self, request: Request) -> Response:
        await self._sessions.leave(group_of(request), session_of(request))
        return Response(status_code=204)


# --- what they are answered --------------------------------------------------------------------------------------


def _all_lost(first: TopicPartition) -> GatewayError:
    return GatewayError(
        f"This session does not have {first.topic}-{first.partition} now: the group has given it to another member, "
        "which reads on from what was committed before. Poll again.",
        "PARTITION_LOST",
        409,
    )


def _standing(seat: Seat | None) -> dict[str, Any]:
    if seat is None:
        return {"state": "joining", "partitions": []}
    rows = [{"topic": topic, "partition": partition} for topic, partition in sorted(seat.partitions)]
    return {"state": "joined", "partitions": rows}


def _rows(offsets: Positions) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "partition": partition, "offset": str(offset)}
        for (topic, partition), offset in sorted(offsets.items())
    ]


def _with_records(body: dict[str, Any], places: list[Place]) -> bytes:
    return b'%s,"records":[%s]}\n' % (json_text(body)[:-1], b",".join(map(_located, places)))


def _located(place: Place) -> bytes:
    """A record as JSON, with where it is."""
    topic, partition = place.partition
    return b'{"topic":"%s",%s' % (topic.encode(), record_json(place.record, partition)[1:])


def _json(body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return _answer(json_text(body), status, headers)


def _answer(text: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(text + b"\n", status, headers, "application/json")


def routes(gateway: "Gateway") -> list[Route]:
    return SessionsApi(gateway).routes()
