"""What a session by HTTP keeps, and where: nothing in the broker that serves it.

    in the group      the member's subscription: topics, and in its user data where to begin without a commit
                      its assignment; in the user data how many partitions each topic had, so that the leader notices
                      when there are more
    in the client     the session id (group member id), and a cursor: how far it was sent records

A cursor is opaque to clients and believed by nobody: what it names is read only if the group has assigned it. Pure.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from anabranch.errors import InvalidRequestError, ProtocolError
from anabranch.gateway.http.texts import is_text
from anabranch.values import Offset, TopicPartition
from anabranch.wire.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

SUBSCRIPTION_VERSION = 1
ASSIGNMENT_VERSION = 1
EARLIEST, LATEST = "earliest", "latest"
CURSOR_LENGTH_MAX = 64 * 1024
OFFSET_MAX = 2**63 - 1
PARTITION_MAX = 2**31 - 1

Positions = dict[TopicPartition, Offset]
"""Where to read on, by partition."""
TagOf = Callable[[str], str | None]
"""By which a topic is told from another of its name; None: nobody knows of it here."""


class Wish(NamedTuple):
    """What a session has asked for."""

    topics: tuple[str, ...]
    start: str
    """EARLIEST or LATEST: where to begin in a partition of which the group has committed nothing."""


class Share(NamedTuple):
    """What the group's leader has given to one member."""

    partitions: frozenset[TopicPartition]
    partition_counts: Mapping[str, int] | None
    """Of each topic of the group when it was dealt out; None if the leader was not one of ours."""


def encode_wish(wish: Wish) -> bytes:
    note = json.dumps({"from": wish.start}).encode()
    body = {"topics": list(wish.topics), "user_data": note, "owned_partitions": []}
    return encode_subscription(SUBSCRIPTION_VERSION, body)


def decode_wish(metadata: bytes) -> Wish | None:
    """None: this member is not a session."""
    try:
        body = decode_subscription(metadata)
    except ProtocolError:
        return None
    start = _note(body["user_data"]).get("from")
    return Wish(tuple(body["topics"]), start) if start in (EARLIEST, LATEST) else None


def topics_of(metadata: bytes) -> list[str]:
    """What any member has subscribed to; nothing if it says so in no way that we know."""
    try:
        return list(decode_subscription(metadata)["topics"])
    except ProtocolError:
        return []


def encode_share(partitions: Mapping[str, Sequence[int]], partition_counts: Mapping[str, int]) -> bytes:
    note = json.dumps({"partitions": dict(partition_counts)}).encode()
    rows = [{"topic": topic, "partitions": list(numbers)} for topic, numbers in partitions.items()]
    return encode_assignment(ASSIGNMENT_VERSION, {"assigned_partitions": rows, "user_data": note})


def decode_share(assignment: bytes) -> Share:
    if not assignment:
        return Share(frozenset(), None)
    try:
        body = decode_assignment(assignment)
    except ProtocolError:
        return Share(frozenset(), None)
    given = frozenset(
        TopicPartition(row["topic"], number)
        for row in body["assigned_partitions"]
        for number in row["partitions"]
    )
    counts = _note(body["user_data"]).get("partitions")
    return Share(given, counts if isinstance(counts, dict) else None)


def _note(user_data: bytes | None) -> dict[str, Any]:
    """Ours, or nothing: the other members of a group may write there what they like."""
    try:
        note = json.loads(user_data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def no_tag(topic: str) -> None:
    return None


def encode_cursor(positions: Mapping[TopicPartition, Offset], tag_of: TagOf = no_tag) -> str:
    topics: dict[str, list[Any]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        if topic not in topics:
            tag = tag_of(topic)
            topics[topic] = [] if tag is None else [tag]
        topics[topic].append([partition, offset])
    text = json.dumps(topics, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def decode_cursor(cursor: str, tag_of: TagOf = no_tag) -> Positions:
    """Without the topics that were deleted meanwhile, though there be others of their names. Raises
    InvalidRequestError: a cursor is what a poll has answered, unchanged."""
    if len(cursor) > CURSOR_LENGTH_MAX:
        raise _bad_cursor(f"it has {len(cursor)} characters, and {CURSOR_LENGTH_MAX} is the most there is")
    try:
        text = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        topics = json.loads(text)
    except (binascii.Error, ValueError, RecursionError):
        raise _bad_cursor("it cannot be read") from None
    if not isinstance(topics, dict) or not all(map(is_text, topics)):
        raise _bad_cursor("it holds no topics")
    return {
        TopicPartition(topic, _partition(pair)): _offset(pair)
        for topic, pairs in topics.items()
        for pair in _pairs_of(topic, pairs, tag_of)
    }


def _pairs_of(topic: str, pairs: object, tag_of: TagOf) -> Sequence[list[Any]]:
    if not isinstance(pairs, list) or not pairs or not isinstance(pairs[0], str):
        return _pairs(pairs)
    found, tag = _pairs(pairs[1:]), tag_of(topic)
    return found if tag in (None, pairs[0]) else []


def _pairs(pairs: object) -> Sequence[list[Any]]:
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise _bad_cursor("a topic in it has no partitions")
    return pairs


def _partition(pair: list[Any]) -> int:
    return _number(pair[0], PARTITION_MAX, "partition")


def _offset(pair: list[Any]) -> Offset:
    return Offset(_number(pair[1], OFFSET_MAX, "offset"))


def _number(value: object, most: int, what: str) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise _bad_cursor(f"{str(value)[:40]} is no {what}")
    return value


def _bad_cursor(why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"This cursor is not one that a poll has answered: {why}. Send the last one unchanged, or none to begin at "
        "what was committed."
    )
