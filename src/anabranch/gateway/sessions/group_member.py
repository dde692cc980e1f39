"""GroupMember: one member of a classic consumer group, which speaks to the coordinator as any Kafka consumer does.

    partitions = await member.join()          may take as long as the others need to come back
    await member.beat()                       False: the group gathers anew; join again
    await member.commit({0: 42})              raises BrokerRefusedError if the partition is another's by now
    await member.leave()

The member knows its id and generation and nothing about records. It takes part in the "range" protocol, so that it may
share a group with clients of other kinds, and leads it when it is told to.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from anabranch.errors import ProtocolError, RequestTimedOutError
from anabranch.gateway.calls import refusal
from anabranch.gateway.sessions.assignor import RANGE, range_assignment
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.gateway.calls import Calls

JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, LEAVE_VERSION = 7, 5, 4, 5
COMMIT_VERSION, COMMITTED_VERSION = 8, 7
SUBSCRIPTION_VERSION = 1
PROTOCOL_TYPE = "consumer"
SESSION_MS = 10_000
REBALANCE_MS = 20_000
"""How long others wait for this member in a rebalance; it comes back at once."""
ANSWER_MS = 5000
JOINS_MAX = 100
"""A group that gathers anew more often than this in one go never settles: its member gives up."""

ANEW = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
"""The coordinator has forgotten this member."""
AGAIN = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)


class GroupMember:
    def __init__(self, calls: "Calls", group_id: str, topic: str, host: str) -> None:
        self._calls = calls
        self._group_id = group_id
        self._topic = topic
        self._host = host
        self.member_id = ""
        self.generation = -1
        self._counts: dict[str, int] = {}
        self._is_leader = False

    async def join(self) -> list[int]:
        """The partitions of the topic that are this member's. Raises AnabranchError if it may not be one."""
        for _ in range(JOINS_MAX):
            joined = await self._join_once()
            if joined is not None:
                assigned = await self._sync(joined)
                if assigned is not None:
                    return assigned
        raise refusal(ErrorCode.REBALANCE_IN_PROGRESS, f"Group {self._group_id} does not come to rest.")

    async def _join_once(self) -> dict[str, Any] | None:
        subscription = {"topics": [self._topic], "user_data": None, "owned_partitions": []}
        metadata = encode_subscription(SUBSCRIPTION_VERSION, subscription)
        request = {
            "group_id": self._group_id,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "member_id": self.member_id,
            "group_instance_id": None,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [{"name": RANGE, "metadata": metadata}],
        }
        try:
            answer = await self._ask(
                ApiKey.JOIN_GROUP, JOIN_VERSION, request, REBALANCE_MS + SESSION_MS + ANSWER_MS
            )
        except RequestTimedOutError:
            return None  # Joining again under the same id is the same as once.
        code = answer["error_code"]
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer["member_id"]
            return None
        if self._is_over(code):
            return None
        self.member_id, self.generation = answer["member_id"], answer["generation_id"]
        return answer

    def _is_over(self, code: int) -> bool:
        """Whether to join again. Raises BrokerRefusedError where that would not help."""
        if code in ANEW:
            self.member_id = ""
            return True
        if code in AGAIN:
            return True
        if code:
            raise refusal(code, f"Group {self._group_id} does not take this member: {ErrorCode(code).name}.")
        return False

    async def _sync(self, joined: dict[str, Any]) -> list[int] | None:
        self._is_leader = joined["leader"] == self.member_id
        assignments = self._shared_out(joined["members"]) if self._is_leader else []
        request = {
            "group_id": self._group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": None,
            "protocol_type": joined["protocol_type"],
            "protocol_name": joined["protocol_name"],
            "assignments": assignments,
        }
        try:
            answer = await self._ask(ApiKey.SYNC_GROUP, SYNC_VERSION, request, REBALANCE_MS + ANSWER_MS)
        except RequestTimedOutError:
            return None
        if self._is_over(answer["error_code"]):
            return None
        assigned = decode_assignment(bytes(answer["assignment"])) if answer["assignment"] else {}
        rows = assigned.get("assigned_partitions", ())
        return sorted(index for row in rows if row["topic"] == self._topic for index in row["partitions"])

    def _shared_out(self, members: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        topics = {row["member_id"]: _topics_of(bytes(row["metadata"])) for row in members}
        self._counts = {name: self._count(name) for name in set().union(*topics.values())}
        shares = range_assignment(topics, self._counts)
        return [{"member_id": member, "assignment": _assignment(share)} for member, share in shares.items()]

    def _count(self, topic: str) -> int:
        view = self._calls.known_topic(topic)
        return view.partition_count if view is not None else 0

    async def beat(self) -> bool:
        """Whether the group is as it was. Raises what makes membership impossible."""
        if self._is_leader and any(self._count(topic) != count for topic, count in self._counts.items()):
            return False  # There are partitions nobody has yet, or topics that are gone: share out anew.
        request = {
            "group_id": self._group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": None,
        }
        try:
            answer = await self._ask(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, request, ANSWER_MS)
        except RequestTimedOutError:
            return True  # The next beat will tell.
        return not self._is_over(answer["error_code"])

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """Raises BrokerRefusedError: this is another generation's by now; RequestTimedOutError: nobody knows."""
        rows = [
            {"partition_index": index, "committed_offset": offset, "committed_metadata": ""}
            for index, offset in sorted(offsets.items())
        ]
        request = {
            "group_id": self._group_id,
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.member_id,
            "group_instance_id": None,
            "topics": [{"name": self._topic, "partitions": rows}],
        }
        answer = await self._ask(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, request, ANSWER_MS)
        for row in answer["topics"][0]["partitions"]:
            if row["error_code"]:
                raise refusal(row["error_code"], _not_committed(row["error_code"]))

    async def committed(self, partitions: Iterable[int]) -> dict[int, int]:
        """The committed offset of each partition that has one."""
        topics = [{"name": self._topic, "partition_indexes": list(partitions)}]
        request = {"group_id": self._group_id, "topics": topics, "require_stable": True}
        answer = await self._ask(ApiKey.OFFSET_FETCH, COMMITTED_VERSION, request, ANSWER_MS)
        if answer["error_code"]:
            raise refusal(answer["error_code"], "")
        rows = [row for topic in answer["topics"] for row in topic["partitions"]]
        return {
            row["partition_index"]: row["committed_offset"] for row in rows if row["committed_offset"] >= 0
        }

    async def leave(self) -> None:
        """At once, so that others take over without waiting for the session to run out."""
        if not self.member_id:
            return
        members = [{"member_id": self.member_id, "group_instance_id": None, "reason": "disconnected"}]
        self.member_id = ""
        await self._ask(
            ApiKey.LEAVE_GROUP, LEAVE_VERSION, {"group_id": self._group_id, "members": members}, ANSWER_MS
        )

    async def _ask(
        self, key: ApiKey, version: int, request: dict[str, Any], timeout_ms: int
    ) -> dict[str, Any]:
        return await self._calls.ask_group(
            self._group_id, key, version, request, host=self._host, timeout_ms=timeout_ms
        )


def _topics_of(metadata: bytes) -> list[str]:
    try:
        return list(decode_subscription(metadata)["topics"])
    except ProtocolError:
        return []  # A member whose bytes nobody can read gets nothing; the others go on.


def _assignment(share: Mapping[str, list[int]]) -> bytes:
    rows = [{"topic": topic, "partitions": partitions} for topic, partitions in share.items()]
    return encode_assignment(0, {"assigned_partitions": rows, "user_data": None})


def _not_committed(code: int) -> str:
    if code in (*ANEW, *AGAIN):
        return "The group has been shared out anew meanwhile: what was not acknowledged before is delivered again."
    return f"The group's coordinator answered {ErrorCode(code).name}: acknowledge again."
