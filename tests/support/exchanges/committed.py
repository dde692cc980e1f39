"""Committed offsets, and the groups that have nothing else: commit, fetch, delete."""

import uuid
from typing import Any

from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.exchanges.groups import stable
from support.exchanges.world import STRANGE_ID, Body, World, only
from support.raw_client import RawClient


def _commit(client: RawClient, version: int, group: str, key: tuple[str, uuid.UUID], **more: Any) -> int:
    index = more.pop("index", 0)
    asked = {"partition_index": index, "committed_offset": 2, "committed_metadata": "note"}
    topics = [{"name": key[0], "topic_id": key[1], "partitions": [asked]}]
    answer = client.ask(ApiKey.OFFSET_COMMIT, version, {"group_id": group, "topics": topics, **more})
    topic_row = only(answer["topics"])
    assert (topic_row["topic_id"] if version >= 10 else topic_row["name"]) == key[version >= 10]
    row = only(topic_row["partitions"])
    assert row["partition_index"] == index
    return int(row["error_code"])


def _committed(client: RawClient, world: World) -> str:
    """A group without members that has committed offset 2 of the first partition."""
    group = world.fresh("group")
    assert _commit(client, 8, group, world[:2]) == 0
    return group


def offset_commit(client: RawClient, version: int, world: World) -> None:
    assert _commit(client, version, world.fresh("group"), world[:2]) == 0
    group, joined = stable(client, world)
    member = {"member_id": joined["member_id"], "generation_id_or_member_epoch": joined["generation_id"]}
    assert _commit(client, version, group, world[:2], **member) == 0


def offset_commit_refused(client: RawClient, version: int, world: World) -> None:
    group, joined = stable(client, world)
    unknown = {"member_id": "nobody", "generation_id_or_member_epoch": 1}
    assert _commit(client, version, group, world[:2], **unknown) == E.UNKNOWN_MEMBER_ID
    stale = {"member_id": joined["member_id"], "generation_id_or_member_epoch": 9}
    assert _commit(client, version, group, world[:2], **stale) == E.ILLEGAL_GENERATION
    for index in (-1, 2):
        code = _commit(client, version, world.fresh("group"), world[:2], index=index)
        assert code == E.UNKNOWN_TOPIC_OR_PARTITION
    code = _commit(client, version, world.fresh("group"), (world.missing, STRANGE_ID))
    assert code == (E.UNKNOWN_TOPIC_ID if version >= 10 else E.UNKNOWN_TOPIC_OR_PARTITION)


def _fetch_offsets(client: RawClient, version: int, group: str, topics: list[Body] | None) -> Body:
    asked = {"group_id": group, "topics": topics}
    if version >= 8:
        row = only(client.ask(ApiKey.OFFSET_FETCH, version, {"groups": [asked]})["groups"])
        assert row["group_id"] == group
        return row
    return client.ask(ApiKey.OFFSET_FETCH, version, {**asked, "require_stable": version >= 7})


def offset_fetch(client: RawClient, version: int, world: World) -> None:
    group = _committed(client, world)
    topic = {"topic_id": world.topic_id} if version >= 10 else {"name": world.topic}
    answer = _fetch_offsets(client, version, group, [{**topic, "partition_indexes": [0, 1, -1]}])
    assert answer["error_code"] == 0
    topic_row = only(answer["topics"])
    assert topic_row.items() >= topic.items()
    rows = [
        (row["partition_index"], row["committed_offset"], row["error_code"])
        for row in topic_row["partitions"]
    ]
    assert rows == [(0, 2, 0), (1, -1, 0), (-1, -1, 0)]
    assert topic_row["partitions"][0]["metadata"] == "note"
    if version >= 2:
        everything = only(_fetch_offsets(client, version, group, None)["topics"])
        assert everything.items() >= topic.items()
        assert only(everything["partitions"])["committed_offset"] == 2


def offset_fetch_refused(client: RawClient, version: int, world: World) -> None:
    topic = {"topic_id": STRANGE_ID} if version >= 10 else {"name": world.missing}
    answer = _fetch_offsets(client, version, world.fresh("no"), [{**topic, "partition_indexes": [0]}])
    row = only(only(answer["topics"])["partitions"])
    assert row["committed_offset"] == -1
    assert row["error_code"] == (E.UNKNOWN_TOPIC_ID if version >= 10 else 0)


def _delete_offsets(client: RawClient, version: int, group: str, topic: str, index: int) -> Body:
    topics = [{"name": topic, "partitions": [{"partition_index": index}]}]
    return client.ask(ApiKey.OFFSET_DELETE, version, {"group_id": group, "topics": topics})


def offset_delete(client: RawClient, version: int, world: World) -> None:
    group = _committed(client, world)
    answer = _delete_offsets(client, version, group, world.topic, 0)
    assert answer["error_code"] == 0
    assert only(only(answer["topics"])["partitions"])["error_code"] == 0
    topics = _fetch_offsets(client, 2, group, None)["topics"]
    assert topics == []


def offset_delete_refused(client: RawClient, version: int, world: World) -> None:
    assert (
        _delete_offsets(client, version, world.fresh("no"), world.topic, 0)["error_code"]
        == E.GROUP_ID_NOT_FOUND
    )
    group = _committed(client, world)
    for index in (-1, 2):
        answer = _delete_offsets(client, version, group, world.topic, index)
        row = only(only(answer["topics"])["partitions"])
        assert row["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION


def delete_groups(client: RawClient, version: int, world: World) -> None:
    group = _committed(client, world)
    row = only(client.ask(ApiKey.DELETE_GROUPS, version, {"groups_names": [group]})["results"])
    assert (row["group_id"], row["error_code"]) == (group, 0)


def delete_groups_refused(client: RawClient, version: int, world: World) -> None:
    busy, _ = stable(client, world)
    for group, code in ((busy, E.NON_EMPTY_GROUP), (world.fresh("no"), E.GROUP_ID_NOT_FOUND)):
        row = only(client.ask(ApiKey.DELETE_GROUPS, version, {"groups_names": [group]})["results"])
        assert (row["group_id"], row["error_code"]) == (group, code)
