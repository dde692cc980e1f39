"""DescribeBranches, ours, asked of a node without topics in mode branch."""

from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.exchanges.world import World
from support.raw_client import RawClient


def describe_branches(client: RawClient, version: int, world: World) -> None:
    answer = client.ask(ApiKey.DESCRIBE_BRANCHES, version, {"topics": None})
    assert answer["topics"] == []


def describe_branches_refused(client: RawClient, version: int, world: World) -> None:
    asked = [{"name": world.topic, "partitions": None}, {"name": "nowhere", "partitions": [0]}]
    answer = client.ask(ApiKey.DESCRIBE_BRANCHES, version, {"topics": asked, "include_rows": False})
    one, other = answer["topics"]
    assert one["error_code"] == E.INVALID_REQUEST
    assert "not in mode branch" in one["error_message"]
    assert other["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION
