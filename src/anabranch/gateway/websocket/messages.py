"""What clients say on a WebSocket: JSON text in, a checked message out. Pure; errors name the field.

    {"type": "publish", "id": 1, "topic": "t", "key": "k", "value": {"a": 1}, "headers": {"h": "v"}, "partition": 0}
    {"type": "subscribe", "id": "s", "topic": "t", "from": "new", "credit": 100, "filter": {...}, "group": "g"}
    {"type": "credit", "id": "s", "records": 100}
    {"type": "ack", "id": "s", "partition": 0, "offset": "41"}
    {"type": "unsubscribe", "id": "s"}

`from` is "new", "earliest", {"offset": "17"}, {"offset": {"0": "17", "3": "5"}}, which follows these partitions alone,
or with "others": "new" or "earliest" the rest, too, or {"time": ...}, in milliseconds or ISO 8601. Offsets are texts,
because a number in JSON is exact only up to 2^53; whole numbers are taken too. An id is a short text or a whole number
of the client's own; what is answered about it carries it unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.errors import GatewayError, InvalidRequestError
from anabranch.gateway.http.json_reading import read_json
from anabranch.gateway.read.header_filter import BYTES_MAX, HeaderFilter, header_filter
from anabranch.gateway.record_json import NewRecord, new_record
from anabranch.gateway.websocket.fields import (
    PARTITION_MAX,
    Id,
    Start,
    group_field,
    offset_field,
    own_id,
    partitions_field,
    start_field,
    topic_field,
    whole_field,
)

CREDIT_DEFAULT = 1000
CREDIT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Publish:
    """Without an id nobody waits for the answer."""

    id: Id | None
    topic: str
    record: NewRecord


@dataclass(frozen=True, slots=True)
class Subscribe:
    id: Id
    topic: str
    partitions: tuple[int, ...] | None
    start: Start
    group: str | None
    filter: HeaderFilter | None
    credit: int


@dataclass(frozen=True, slots=True)
class Credit:
    id: Id
    records: int


@dataclass(frozen=True, slots=True)
class Ack:
    """Every record of the partition up to this offset is done with."""

    id: Id
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    id: Id


Message = Publish | Subscribe | Credit | Ack | Unsubscribe

_RECORD = ("key", "key_base64", "value", "value_base64", "headers", "timestamp", "partition")
_FIELDS = {
    "publish": frozenset(("type", "id", "topic", *_RECORD)),
    "subscribe": frozenset(
        ("type", "id", "topic", "partitions", "from", "group", "filter", "credit"),
    ),
    "credit": frozenset(("type", "id", "records")),
    "ack": frozenset(("type", "id", "partition", "offset")),
    "unsubscribe": frozenset(("type", "id")),
}


def parse_json(text: str) -> dict[str, Any]:
    """The object in a message. Raises GatewayError or InvalidRequestError."""
    try:
        given = read_json(text)
    except RecursionError:
        raise GatewayError("The message is nested too deeply.", "MALFORMED_JSON") from None
    except ValueError as error:
        raise GatewayError(f"The message is not JSON: {error}.", "MALFORMED_JSON") from None
    if not isinstance(given, dict):
        raise InvalidRequestError('A message is a JSON object with a "type".')
    return given


def message_of(
    given: Mapping[str, Any], topic: str | None = None, filter_bytes_max: int = BYTES_MAX
) -> Message:
    """The message; one that names no topic is about `topic`. Raises GatewayError or InvalidRequestError."""
    kind = given.get("type")
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise InvalidRequestError(f"type is none of {', '.join(_FIELDS)}.")
    if not given.keys() <= fields:
        unknown = given.keys() - fields
        raise InvalidRequestError(
            f"A {kind} message has no field {min(unknown)[:40]!r}: it has {', '.join(sorted(fields - {'type'}))}."
        )
    match kind:
        case "publish":
            return _publish(given, topic)
        case "subscribe":
            return _subscribe(given, topic, filter_bytes_max)
        case "credit":
            return Credit(own_id(given), whole_field(given, "records", 1, CREDIT_MAX))
        case "ack":
            return Ack(
                own_id(given),
                whole_field(given, "partition", 0, PARTITION_MAX),
                offset_field(given.get("offset"), "offset"),
            )
        case _:
            return Unsubscribe(own_id(given))


def _publish(given: Mapping[str, Any], topic: str | None) -> Publish:
    record = {name: given[name] for name in _RECORD if name in given}
    own = own_id(given) if "id" in given else None
    return Publish(own, topic_field(given, topic), new_record(record, ""))


def _subscribe(given: Mapping[str, Any], topic: str | None, filter_bytes_max: int) -> Subscribe:
    group = group_field(given.get("group"))
    partitions = partitions_field(given.get("partitions"))
    if group is not None and partitions is not None:
        raise InvalidRequestError("partitions cannot be chosen in a group: its members share them out.")
    start = start_field(given.get("from", "new"))
    if group is not None and start.kind == "offset":
        raise InvalidRequestError(
            'from cannot be an offset in a group: it goes on where it was; "new" or "earliest"'
            " say where a group begins that has committed nothing."
        )
    if partitions is not None and start.offsets is not None and set(partitions) != set(start.offsets):
        raise InvalidRequestError("from.offset does not name the same partitions as partitions does.")
    return Subscribe(
        own_id(given),
        topic_field(given, topic),
        partitions if partitions is not None else _named_in(start),
        start,
        group,
        header_filter(given["filter"], filter_bytes_max) if given.get("filter") is not None else None,
        whole_field(given, "credit", 0, CREDIT_MAX) if given.get("credit") is not None else CREDIT_DEFAULT,
    )


def _named_in(start: Start) -> tuple[int, ...] | None:
    return tuple(sorted(start.offsets)) if start.offsets is not None and start.others is None else None
