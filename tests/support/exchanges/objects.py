"""Our own APIs about an object store, asked of a node that has none: each answers with a sentence."""

from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.exchanges.world import STRANGE_ID, Body, World
from support.raw_client import RawClient


def _describe(client: RawClient, version: int, topic_id: object, partition: int) -> Body:
    asked = {
        "topic_id": topic_id,
        "partition_index": partition,
        "start_offset": 0,
        "end_offset": 3,
        "rows_max": 7,
    }
    return client.ask(ApiKey.DESCRIBE_OBJECTS, version, asked)


def describe_objects(client: RawClient, version: int, world: World) -> None:
    answer = _describe(client, version, world.topic_id, 0)
    assert answer["error_code"] == E.INVALID_REQUEST
    assert "not in an object store" in answer["error_message"]


def describe_objects_refused(client: RawClient, version: int, world: World) -> None:
    assert _describe(client, version, STRANGE_ID, 0)["error_code"] == E.UNKNOWN_TOPIC_ID
    assert _describe(client, version, world.topic_id, 9)["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION


def name_objects(client: RawClient, version: int, world: World) -> None:
    answer = client.ask(ApiKey.NAME_OBJECTS, version, {"count": 3})
    assert (answer["error_code"], answer["names"]) == (E.INVALID_REQUEST, [])
    assert "has no object store" in answer["error_message"]


def name_objects_refused(client: RawClient, version: int, world: World) -> None:
    assert client.ask(ApiKey.NAME_OBJECTS, version, {"count": -1})["error_code"] == E.INVALID_REQUEST


def replace_objects(client: RawClient, version: int, world: World) -> None:
    row = {
        "topic_id": world.topic_id,
        "partition_index": 0,
        "old_rows": bytes(62),
        "new_rows": b"",
    }
    answer = client.ask(ApiKey.REPLACE_OBJECTS, version, {"partitions": [row]})
    assert (answer["error_code"], answer["partitions"]) == (E.INVALID_REQUEST, [])
    assert "has no object store" in answer["error_message"]


def replace_objects_refused(client: RawClient, version: int, world: World) -> None:
    row = {"topic_id": STRANGE_ID, "partition_index": 0, "old_rows": b"x", "new_rows": b"y"}
    answer = client.ask(ApiKey.REPLACE_OBJECTS, version, {"partitions": [row]})
    assert answer["error_code"] == E.INVALID_REQUEST
