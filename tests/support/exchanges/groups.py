"""Classic groups: join, sync, heartbeat, leave, describe, list."""

from typing import Any

from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.exchanges.world import Body, World, only
from support.raw_client import RawClient


def _join(client: RawClient, version: int, group: str, member: str, **more: Any) -> Body:
    body = {
        "group_id": group,
        "session_timeout_ms": 6000,
        "rebalance_timeout_ms": 6000,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"meta"}],
        "reason": "test",
    }
    return client.ask(ApiKey.JOIN_GROUP, version, {**body, **more})


def _joined(client: RawClient, version: int, group: str) -> Body:
    answer = _join(client, version, group, "")
    if version >= 4:
        assert answer["error_code"] == E.MEMBER_ID_REQUIRED
        answer = _join(client, version, group, answer["member_id"])
    return answer


def _sync(client: RawClient, version: int, group: str, joined: Body, **more: Any) -> Body:
    member = joined["member_id"]
    body = {
        "group_id": group,
        "generation_id": joined["generation_id"],
        "member_id": member,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member, "assignment": b"yours"}],
    }
    return client.ask(ApiKey.SYNC_GROUP, version, {**body, **more})


def stable(client: RawClient, world: World) -> tuple[str, Body]:
    """A group with one member that has its assignment."""
    group = world.fresh("group")
    joined = _joined(client, 5, group)
    assert _sync(client, 3, group, joined)["error_code"] == 0
    return group, joined


def join_group(client: RawClient, version: int, world: World) -> None:
    answer = _joined(client, version, world.fresh("group"))
    assert (answer["error_code"], answer["generation_id"], answer["protocol_name"]) == (0, 1, "range")
    assert answer["leader"] == answer["member_id"] == only(answer["members"])["member_id"]
    assert answer["members"][0]["metadata"] == b"meta"
    if version >= 7:
        assert answer["protocol_type"] == "consumer"


def join_group_refused(client: RawClient, version: int, world: World) -> None:
    assert _join(client, version, "", "")["error_code"] == E.INVALID_GROUP_ID
    group = world.fresh("group")
    assert _join(client, version, group, "", session_timeout_ms=1)["error_code"] == E.INVALID_SESSION_TIMEOUT
    answer = _join(client, version, group, "nobody")
    assert answer["error_code"] == E.UNKNOWN_MEMBER_ID
    assert answer["members"] == []


def sync_group(client: RawClient, version: int, world: World) -> None:
    group = world.fresh("group")
    answer = _sync(client, version, group, _joined(client, 5, group))
    assert (answer["error_code"], answer["assignment"]) == (0, b"yours")
    if version >= 5:
        assert (answer["protocol_type"], answer["protocol_name"]) == ("consumer", "range")


def sync_group_refused(client: RawClient, version: int, world: World) -> None:
    group, joined = stable(client, world)
    answer = _sync(client, version, group, {**joined, "member_id": "nobody"})
    assert (answer["error_code"], answer["assignment"]) == (E.UNKNOWN_MEMBER_ID, b"")
    assert _sync(client, version, group, {**joined, "generation_id": 9})["error_code"] == E.ILLEGAL_GENERATION
    if version >= 5:
        answer = _sync(client, version, group, joined, protocol_name="sticky")
        assert answer["error_code"] == E.INCONSISTENT_GROUP_PROTOCOL


def _heartbeat(client: RawClient, version: int, group: str, member: str, generation: int) -> int:
    body = {"group_id": group, "member_id": member, "generation_id": generation}
    code: int = client.ask(ApiKey.HEARTBEAT, version, body)["error_code"]
    return code


def heartbeat(client: RawClient, version: int, world: World) -> None:
    group, joined = stable(client, world)
    assert _heartbeat(client, version, group, joined["member_id"], joined["generation_id"]) == 0


def heartbeat_refused(client: RawClient, version: int, world: World) -> None:
    group, joined = stable(client, world)
    assert _heartbeat(client, version, group, "nobody", 1) == E.UNKNOWN_MEMBER_ID
    assert _heartbeat(client, version, group, joined["member_id"], 9) == E.ILLEGAL_GENERATION
    assert _heartbeat(client, version, world.fresh("group"), "m", 1) == E.UNKNOWN_MEMBER_ID


def _standing(client: RawClient, version: int, group: str, member: str) -> dict[str, Any]:
    body = {"group_id": group, "member_id": member}
    return client.ask(ApiKey.DESCRIBE_MEMBER, version, body)


def describe_member(client: RawClient, version: int, world: World) -> None:
    group, joined = stable(client, world)
    answer = _standing(client, version, group, joined["member_id"])
    assert (answer["error_code"], answer["generation_id"]) == (0, joined["generation_id"])
    assert (answer["is_stable"], answer["is_leader"]) == (True, True)
    assert (answer["protocol_name"], answer["assignment"]) == ("range", b"yours")


def describe_member_refused(client: RawClient, version: int, world: World) -> None:
    group, _ = stable(client, world)
    assert _standing(client, version, group, "nobody")["error_code"] == E.UNKNOWN_MEMBER_ID
    assert _standing(client, version, world.fresh("group"), "m")["error_code"] == E.UNKNOWN_MEMBER_ID
    assert _standing(client, version, "", "m")["error_code"] == E.INVALID_GROUP_ID


def _leave(client: RawClient, version: int, group: str, member: str) -> int:
    body = {"group_id": group, "member_id": member, "members": [{"member_id": member, "reason": "bye"}]}
    answer = client.ask(ApiKey.LEAVE_GROUP, version, body)
    if version < 3:
        return int(answer["error_code"])
    assert answer["error_code"] == 0
    return int(only(answer["members"])["error_code"])


def leave_group(client: RawClient, version: int, world: World) -> None:
    group, joined = stable(client, world)
    assert _leave(client, version, group, joined["member_id"]) == 0
    assert _heartbeat(client, 0, group, joined["member_id"], 1) == E.UNKNOWN_MEMBER_ID


def leave_group_refused(client: RawClient, version: int, world: World) -> None:
    group, _ = stable(client, world)
    assert _leave(client, version, group, "nobody") == E.UNKNOWN_MEMBER_ID


def describe_groups(client: RawClient, version: int, world: World) -> None:
    group, joined = stable(client, world)
    body = {"groups": [group], "include_authorized_operations": True}
    row = only(client.ask(ApiKey.DESCRIBE_GROUPS, version, body)["groups"])
    assert (row["group_id"], row["error_code"], row["group_state"]) == (group, 0, "Stable")
    assert (row["protocol_type"], row["protocol_data"]) == ("consumer", "range")
    member = only(row["members"])
    assert (member["member_id"], member["client_id"]) == (joined["member_id"], "raw")
    assert (member["member_metadata"], member["member_assignment"]) == (b"meta", b"yours")
    assert (row["authorized_operations"] > 0) == (version >= 3)


def describe_groups_refused(client: RawClient, version: int, world: World) -> None:
    row = only(client.ask(ApiKey.DESCRIBE_GROUPS, version, {"groups": [world.fresh("no")]})["groups"])
    assert row["error_code"] == (E.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    assert (row["group_state"], row["members"]) == ("Dead", [])
    assert bool(row["error_message"]) == (version >= 6)


def list_groups(client: RawClient, version: int, world: World) -> None:
    group, _ = stable(client, world)
    answer = client.ask(ApiKey.LIST_GROUPS, version, {})
    assert answer["error_code"] == 0
    row = only([row for row in answer["groups"] if row["group_id"] == group])
    assert row["protocol_type"] == "consumer"
    assert row["group_state"] == ("Stable" if version >= 4 else "")
    assert row["group_type"] == ("classic" if version >= 5 else "")


def list_groups_refused(client: RawClient, version: int, world: World) -> None:
    if version >= 4:
        assert client.ask(ApiKey.LIST_GROUPS, version, {"states_filter": ["Nonsense"]})["groups"] == []
    if version >= 5:
        assert client.ask(ApiKey.LIST_GROUPS, version, {"types_filter": ["share"]})["groups"] == []
