"""GroupSessions: members of classic groups that speak by HTTP, through whichever broker they happen to ask.

    member_id, seat = await sessions.register("workers", wish, timeout_ms=30_000, wait_ms=3000)
    seat = await sessions.seat("workers", member_id, wait_ms=5000)      # None: the others are still gathering
    await sessions.commit(seat, {...})
    await sessions.leave("workers", member_id)

No broker remembers a session. Each request asks the group's coordinator where the member stands, which is its heartbeat
too, and joins on its behalf when the group gathers. One that does not ask within its timeout is dropped by the
coordinator like any other member; its later requests are told that the session is over.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from anabranch.clock import Clock
from anabranch.errors import BrokerRefusedError, GatewayError, RequestTimedOutError
from anabranch.gateway.asking import PATIENCE_MS
from anabranch.gateway.calls import Calls, refusal
from anabranch.gateway.sessions.assignor import RANGE, range_assignment
from anabranch.gateway.sessions.state import (
    Share,
    Wish,
    decode_share,
    decode_wish,
    encode_share,
    encode_wish,
    topics_of,
)
from anabranch.values import Offset, TopicPartition
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode

JOIN_VERSION, SYNC_VERSION, LEAVE_VERSION, COMMIT_VERSION, FETCH_OFFSETS_VERSION, STANDING_VERSION = (
    7,
    5,
    5,
    8,
    8,
    0,
)
PROTOCOL_TYPE = "consumer"
NO_GENERATION = -1
JOIN_MS_MIN = 500
"""So long a poll waits for its group even if it would not wait for records: else a hasty client never gets a seat."""
CLIENT_ID = "http"
AGAIN = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
"""The group has moved on while we asked: what it is now is asked anew."""

Body = dict[str, Any]


class Seat(NamedTuple):
    """A member's place in one generation of its group."""

    group_id: str
    member_id: str
    generation: int
    wish: Wish
    share: Share
    timeout_ms: int

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return self.share.partitions


class _Standing(NamedTuple):
    seat: Seat
    is_stable: bool
    is_leader: bool
    metadata: bytes


class GroupSessions:
    def __init__(self, calls: Calls, clock: Clock) -> None:
        self._calls = calls
        self._clock = clock

    # --- coming and going ----------------------------------------------------------------------------------------

    async def register(
        self, group_id: str, wish: Wish, *, timeout_ms: int, wait_ms: int, host: str = ""
    ) -> tuple[str, Seat | None]:
        """A new member's id, and its seat if the group was complete within that time. Raises BrokerRefusedError."""
        metadata = encode_wish(wish)
        body = _join_body(group_id, "", metadata, timeout_ms)
        answer = await self._ask(group_id, ApiKey.JOIN_GROUP, JOIN_VERSION, body, host=host)
        if answer["error_code"] != ErrorCode.MEMBER_ID_REQUIRED:
            raise refusal(answer["error_code"], _words(answer["error_code"], group_id))
        # An id is only a promise until somebody has joined with it.
        member_id = str(answer["member_id"])
        seat = Seat(group_id, member_id, NO_GENERATION, wish, decode_share(b""), timeout_ms)
        standing = _Standing(seat, is_stable=False, is_leader=False, metadata=metadata)
        return member_id, await self._join(standing, wait_ms, host)

    async def leave(self, group_id: str, member_id: str) -> None:
        """Its partitions go to the others at once."""
        body = {"group_id": group_id, "members": [{"member_id": member_id, "reason": "goodbye"}]}
        answer = await self._ask(group_id, ApiKey.LEAVE_GROUP, LEAVE_VERSION, body)
        codes = [answer["error_code"], *(row["error_code"] for row in answer["members"])]
        _check(next((code for code in codes if code), 0), group_id)

    # --- the seat ------------------------------------------------------------------------------------------------

    async def seat(self, group_id: str, member_id: str, *, wait_ms: int) -> Seat | None:
        """Where the member sits now; None if the group was not complete within that time. Raises GatewayError if the
        session is over."""
        end_ms = self._clock.monotonic_ms() + wait_ms
        while True:
            standing = await self._standing(group_id, member_id)
            if standing.is_stable and not (standing.is_leader and self._is_outdated(standing.seat.share)):
                return standing.seat
            left_ms = end_ms - self._clock.monotonic_ms()
            seat = await self._join(standing, max(JOIN_MS_MIN, left_ms))
            if seat is not None or left_ms <= 0:
                return seat

    async def standing_seat(self, group_id: str, member_id: str) -> Seat:
        """The seat as it is, also while the others gather for a new round. Raises the same."""
        return (await self._standing(group_id, member_id)).seat

    async def _standing(self, group_id: str, member_id: str) -> _Standing:
        body = {"group_id": group_id, "member_id": member_id}
        answer = await self._ask(group_id, ApiKey.DESCRIBE_MEMBER, STANDING_VERSION, body)
        _check(answer["error_code"], group_id)
        wish = decode_wish(answer["metadata"])
        if wish is None:
            raise _over(group_id)  # A member of another kind, whose life is none of ours.
        seat = Seat(
            group_id,
            member_id,
            answer["generation_id"],
            wish,
            decode_share(answer["assignment"]),
            answer["session_timeout_ms"],
        )
        return _Standing(seat, answer["is_stable"], answer["is_leader"], answer["metadata"])

    def _is_outdated(self, share: Share) -> bool:
        """A topic has come, gone or grown since the partitions were dealt out: the leader asks for a new round."""
        counts = share.partition_counts
        return counts is not None and dict(counts) != self._counts(counts)

    def _counts(self, topics: Mapping[str, object]) -> dict[str, int]:
        views = {topic: self._calls.known_topic(topic) for topic in topics}
        return {topic: 0 if view is None else view.partition_count for topic, view in views.items()}

    async def _join(self, standing: _Standing, wait_ms: int, host: str = "") -> Seat | None:
        seat = standing.seat
        body = _join_body(seat.group_id, seat.member_id, standing.metadata, seat.timeout_ms)
        end_ms = self._clock.monotonic_ms() + wait_ms
        try:
            joined = await self._ask(
                seat.group_id, ApiKey.JOIN_GROUP, JOIN_VERSION, body, host=host, timeout_ms=wait_ms
            )
            if joined["error_code"] in AGAIN:
                return None
            _check(joined["error_code"], seat.group_id)
            left_ms = max(1, end_ms - self._clock.monotonic_ms())
            synced = await self._ask(
                seat.group_id,
                ApiKey.SYNC_GROUP,
                SYNC_VERSION,
                self._sync_body(seat, joined),
                timeout_ms=left_ms,
            )
        except RequestTimedOutError:
            return (
                None  # The coordinator keeps our place; whoever asks next for this member goes on from there.
            )
        if synced["error_code"] in AGAIN:
            return None
        _check(synced["error_code"], seat.group_id)
        return seat._replace(generation=joined["generation_id"], share=decode_share(synced["assignment"]))

    def _sync_body(self, seat: Seat, joined: Body) -> Body:
        return {
            "group_id": seat.group_id,
            "generation_id": joined["generation_id"],
            "member_id": seat.member_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocol_name": joined["protocol_name"],
            "assignments": self._dealt_out(joined) if joined["leader"] == seat.member_id else [],
        }

    def _dealt_out(self, joined: Body) -> list[Body]:
        subscriptions = {row["member_id"]: topics_of(row["metadata"]) for row in joined["members"]}
        topics = {topic: None for wanted in subscriptions.values() for topic in wanted}
        counts = self._counts(topics)
        return [
            {"member_id": member_id, "assignment": encode_share(partitions, counts)}
            for member_id, partitions in range_assignment(subscriptions, counts).items()
        ]

    # --- offsets -------------------------------------------------------------------------------------------------

    async def committed(self, seat: Seat) -> dict[TopicPartition, Offset]:
        """What the group has committed of the seat's partitions; nothing of those where it has not."""
        topics = _by_topic(seat.partitions)
        group = {
            "group_id": seat.group_id,
            "topics": [
                {"name": topic, "partition_indexes": numbers} for topic, numbers in sorted(topics.items())
            ],
        }
        body = {"groups": [group], "require_stable": False}
        answer = await self._ask(seat.group_id, ApiKey.OFFSET_FETCH, FETCH_OFFSETS_VERSION, body)
        found = answer["groups"][0]
        _check(found["error_code"], seat.group_id)
        return {
            TopicPartition(topic["name"], row["partition_index"]): Offset(row["committed_offset"])
            for topic in found["topics"]
            for row in topic["partitions"]
            if row["error_code"] == ErrorCode.NONE and row["committed_offset"] >= 0
        }

    async def commit(self, seat: Seat, offsets: Mapping[TopicPartition, Offset]) -> None:
        """All of them, or it says why not. Raises GatewayError if the session is over, BrokerRefusedError."""
        if not offsets:
            return
        topics: dict[str, list[Body]] = {}
        for (topic, partition), offset in sorted(offsets.items()):
            row = {"partition_index": partition, "committed_offset": offset, "committed_metadata": ""}
            topics.setdefault(topic, []).append(row)
        body = {
            "group_id": seat.group_id,
            "generation_id_or_member_epoch": seat.generation,
            "member_id": seat.member_id,
            "topics": [{"name": topic, "partitions": rows} for topic, rows in topics.items()],
        }
        answer = await self._ask(seat.group_id, ApiKey.OFFSET_COMMIT, COMMIT_VERSION, body)
        for topic in answer["topics"]:
            for row in topic["partitions"]:
                _check(row["error_code"], seat.group_id)

    async def _ask(
        self,
        group_id: str,
        api_key: ApiKey,
        version: int,
        body: Body,
        *,
        host: str = "",
        timeout_ms: int = PATIENCE_MS,
    ) -> Body:
        return await self._calls.ask_group(
            group_id, api_key, version, body, client_id=CLIENT_ID, host=host, timeout_ms=timeout_ms
        )


def _join_body(group_id: str, member_id: str, metadata: bytes, timeout_ms: int) -> Body:
    return {
        "group_id": group_id,
        "session_timeout_ms": timeout_ms,
        "rebalance_timeout_ms": timeout_ms,
        "member_id": member_id,
        "protocol_type": PROTOCOL_TYPE,
        "protocols": [{"name": RANGE, "metadata": metadata}],
    }


def _by_topic(partitions: frozenset[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics


def _check(code: int, group_id: str) -> None:
    if code == ErrorCode.UNKNOWN_MEMBER_ID:
        raise _over(group_id)
    if code in AGAIN:
        raise BrokerRefusedError(
            f"Group {group_id} deals out its partitions anew: poll, and try again.",
            ErrorCode.REBALANCE_IN_PROGRESS,
        )
    if code:
        raise refusal(code, _words(code, group_id))


def _words(code: int, group_id: str) -> str:
    """What to do about it, where the code alone does not say."""
    return {
        ErrorCode.INVALID_SESSION_TIMEOUT: "timeout_ms is not one that the cluster takes: see its settings "
        "group.min.session.timeout.ms and group.max.session.timeout.ms.",
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL: f"Group {group_id} has members that do not know the assignor range, "
        "which sessions use: take another group, or have them offer it, too.",
        ErrorCode.GROUP_MAX_SIZE_REACHED: f"Group {group_id} has all the members it may have (group.max.size): try "
        "again when one has left.",
    }.get(ErrorCode(code), "")


def _over(group_id: str) -> GatewayError:
    return GatewayError(
        f"Group {group_id} has no such session: it said goodbye, or did not poll within its timeout. Register a new "
        f"one with POST /v1/groups/{group_id}/sessions; it goes on from what was committed.",
        "SESSION_OVER",
        410,
    )
