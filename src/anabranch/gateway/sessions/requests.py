"""What clients of sessions send: queries and bodies in, checked values out; every refusal names the field."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import Request

from anabranch.broker.requests.turns import ROWS_PER_TURN
from anabranch.errors import InvalidRequestError
from anabranch.gateway.http.bodies import body_of
from anabranch.gateway.http.queries import check_known, one_of, whole_or
from anabranch.gateway.http.texts import is_text
from anabranch.gateway.record_json import parse_json
from anabranch.gateway.sessions.state import OFFSET_MAX, Positions, TagOf, decode_cursor
from anabranch.values import Offset, TopicPartition

if TYPE_CHECKING:
    from anabranch.gateway.gateway import Gateway

RECORDS_DEFAULT, RECORDS_MAX = 500, 10_000
BYTES_DEFAULT, BYTES_MAX = 2**20, 8 * 2**20
ID_LENGTH_MAX = 400
GROUP_LENGTH_MAX = 249
INT32_MAX = 2**31 - 1


class Asked(NamedTuple):
    cursor: Positions
    commits: bool
    records_max: int
    bytes_max: int
    wait_ms: int


def asked_by(request: Request, wait_ms_max: int, tag_of: TagOf) -> Asked:
    check_known(request, ("cursor", "commit", "max_records", "max_bytes", "wait_ms"))
    query = request.query_params
    return Asked(
        decode_cursor(query["cursor"], tag_of) if "cursor" in query else {},
        one_of(request, "commit", ("false", "true")) == "true",
        _within(request, "max_records", RECORDS_DEFAULT, RECORDS_MAX),
        _within(request, "max_bytes", BYTES_DEFAULT, BYTES_MAX),
        min(whole_or(request, "wait_ms", 0), wait_ms_max),
    )


def _within(request: Request, name: str, default: int, most: int) -> int:
    return max(1, min(whole_or(request, name, default), most))


def group_of(request: Request) -> str:
    group_id: str = request.path_params["group"]
    if len(group_id) > GROUP_LENGTH_MAX:
        raise InvalidRequestError(f"A group's name has at most {GROUP_LENGTH_MAX} characters.")
    return group_id


def session_of(request: Request) -> str:
    session: str = request.path_params["session"]
    return session[:ID_LENGTH_MAX]  # A longer one is nobody's either.


async def json_object(gateway: "Gateway", request: Request) -> dict[str, Any]:
    """The body, which is one object. Raises GatewayError."""
    async with body_of(gateway, request) as body:
        await gateway.calls.turns.wait(ROWS_PER_TURN)
        given = parse_json(body, "The body")
    if not isinstance(given, dict):
        raise InvalidRequestError("The body is not a JSON object.")
    return given


def check_fields(given: Iterable[str], known: set[str]) -> None:
    unknown = set(given) - known
    if unknown:
        raise InvalidRequestError(
            f"There is no field {min(unknown)[:40]!r} here: there are {', '.join(sorted(known))}."
        )


def offsets_of(given: dict[str, Any], tag_of: TagOf) -> Positions:
    check_fields(given, {"cursor", "offsets"})
    if len(given) != 1:
        raise InvalidRequestError("Send either a cursor or offsets.")
    if "cursor" in given:
        if not isinstance(given["cursor"], str):
            raise InvalidRequestError("cursor is not a text.")
        return decode_cursor(given["cursor"], tag_of)
    rows = given["offsets"]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InvalidRequestError("offsets is not a list of objects.")
    return dict(_offset(row) for row in rows)


def _offset(row: dict[str, Any]) -> tuple[TopicPartition, Offset]:
    check_fields(row, {"topic", "partition", "offset"})
    topic, partition, offset = row.get("topic"), row.get("partition"), row.get("offset")
    if not is_text(topic):
        raise InvalidRequestError("topic in offsets is not a name.")
    if type(partition) is not int or not 0 <= partition <= INT32_MAX:
        raise InvalidRequestError("partition in offsets is not the number of a partition.")
    if isinstance(offset, str) and offset.isascii() and offset.isdigit() and len(offset) < 20:
        offset = int(offset)
    if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
        raise InvalidRequestError(
            'offset in offsets is not an offset such as "17": that of the next record to read.'
        )
    return TopicPartition(topic, partition), Offset(offset)
