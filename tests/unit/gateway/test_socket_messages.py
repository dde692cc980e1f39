"""What clients say on a WebSocket: read, or refused with the field that is wrong."""

import json

import pytest

from anabranch.errors import AnabranchError, GatewayError, InvalidRequestError
from anabranch.gateway.record_json import NewRecord
from anabranch.gateway.websocket.fields import Start, id_of
from anabranch.gateway.websocket.messages import (
    CREDIT_DEFAULT,
    Ack,
    Credit,
    Message,
    Publish,
    Subscribe,
    Unsubscribe,
    message_of,
    parse_json,
)


def read(given: object, topic: str | None = None) -> Message:
    return message_of(parse_json(json.dumps(given)), topic)


def subscribed(**fields: object) -> Subscribe:
    message = read({"type": "subscribe", "id": "s", "topic": "t", **fields})
    assert isinstance(message, Subscribe)
    return message


def test_publish_has_its_record() -> None:
    given = {"type": "publish", "id": 7, "topic": "t", "key": "k", "value": {"a": 1}, "headers": {"h": "v"}}
    assert read(given) == Publish(7, "t", NewRecord(b"k", b'{"a":1}', (("h", b"v"),)))


def test_publish_without_id_wants_no_answer() -> None:
    given = {"type": "publish", "value": 1, "partition": 3}
    assert read(given, "t") == Publish(None, "t", NewRecord(None, b"1", partition=3))


def test_subscribe_begins_with_what_is_new_and_some_credit() -> None:
    assert subscribed() == Subscribe("s", "t", None, Start("new"), None, None, CREDIT_DEFAULT)


def test_short_messages() -> None:
    assert read({"type": "credit", "id": "s", "records": 5}) == Credit("s", 5)
    assert read({"type": "ack", "id": "s", "partition": 1, "offset": "41"}) == Ack("s", 1, 41)
    assert read({"type": "unsubscribe", "id": 1}) == Unsubscribe(1)


@pytest.mark.parametrize(
    ("given", "start", "partitions"),
    [
        ("earliest", Start("earliest"), None),
        ({"offset": "9223372036854775807"}, Start("offset", offset=2**63 - 1), None),
        ({"offset": 17}, Start("offset", offset=17), None),
        ({"offset": {"3": "5", "0": 17}}, Start("offset", offsets={3: 5, 0: 17}), (0, 3)),
        (
            {"offset": {"0": "17"}, "others": "earliest"},
            Start("offset", offsets={0: 17}, others="earliest"),
            None,
        ),
        ({"time": 1000}, Start("time", time_ms=1000), None),
        ({"time": "1970-01-01T00:00:01Z"}, Start("time", time_ms=1000), None),
        ({"time": "1970-01-01T01:00:01+01:00"}, Start("time", time_ms=1000), None),
    ],
)
def test_subscribe_says_where_to_begin(given: object, start: Start, partitions: object) -> None:
    message = subscribed(**{"from": given})
    assert (message.start, message.partitions) == (start, partitions)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "type is none of"),
        ({"type": ["publish"]}, "type is none of"),
        ({"type": "publish"}, "topic is not"),
        ({"type": "publish", "topic": "t", "valeu": 1}, "no field 'valeu'"),
        ({"type": "publish", "topic": "t", "partition": -1}, "partition"),
        ({"type": "publish", "topic": "t", "partition": True}, "partition"),
        ({"type": "publish", "topic": "t", "id": 1.5}, "id is neither"),
        ({"type": "publish", "topic": "t", "id": "x" * 200}, "id is neither"),
        ({"type": "subscribe", "topic": "t"}, "id is neither"),
        ({"type": "subscribe", "id": "s", "topic": 5}, "topic is not"),
        ({"type": "credit", "id": "s"}, "records is not"),
        ({"type": "credit", "id": "s", "records": 0}, "records is not"),
        ({"type": "credit", "id": "s", "records": 2**31}, "records is not"),
        ({"type": "ack", "id": "s", "partition": 0, "offset": "-1"}, "offset is not"),
        ({"type": "ack", "id": "s", "partition": 0, "offset": "9223372036854775808"}, "offset is not"),
        ({"type": "ack", "id": "s", "partition": 0, "offset": "٣"}, "offset is not"),
        ({"type": "ack", "id": "s", "partition": 0}, "offset is not"),
    ],
)
def test_wrong_messages_are_refused_by_their_field(given: object, field: str) -> None:
    with pytest.raises((InvalidRequestError, GatewayError), match=field):
        read(given)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"from": "latest"}, "from is none"),
        ({"from": {"offset": "1", "time": 1}}, "from is none"),
        ({"from": {"offset": -1}}, "from.offset"),
        ({"from": {"offset": {"0": "1"}, "others": "some"}}, "from.others"),
        ({"from": {"offset": {}}}, "from.offset"),
        ({"from": {"offset": {"00": "1"}}}, "from.offset"),
        ({"from": {"offset": {"x": "1"}}}, "from.offset"),
        ({"from": {"offset": {"9" * 5000: "1"}}}, "from.offset"),
        ({"from": {"offset": {"0": "x"}}}, "from.offset.0"),
        ({"from": {"time": "yesterday"}}, "from.time"),
        ({"from": {"time": "2026-05-01T12:00:00"}}, "zone"),
        ({"partitions": []}, "partitions"),
        ({"partitions": [0, 0]}, "twice"),
        ({"partitions": ["0"]}, "partitions"),
        ({"partitions": [0], "from": {"offset": {"1": "5"}}}, "same partitions"),
        ({"partitions": [0], "group": "g"}, "share them out"),
        ({"group": ""}, "group is not"),
        ({"group": "g", "from": {"offset": "5"}}, "in a group"),
        ({"credit": -1}, "credit is not"),
        ({"filter": {"header": "h"}}, "exactly one test"),
    ],
)
def test_wrong_subscriptions_are_refused_by_their_field(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequestError, match=field):
        subscribed(**fields)


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "NaN", '{"a": NaN}', "[" * 100_000, "1" * 5000])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(AnabranchError):
        parse_json(text)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"id": "a"}, "a"),
        ({"id": 5}, 5),
        ({"id": True}, None),
        ({"id": "x" * 200}, None),
        ({"id": 10**4000}, None),
    ],
)
def test_errors_carry_the_id_if_it_is_one(given: dict[str, object], found: object) -> None:
    assert id_of(given) == found
