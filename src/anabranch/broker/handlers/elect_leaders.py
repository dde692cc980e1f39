"""ElectLeaders, versions 0 to 2: the preferred leader (the first replica) takes its partition back now.

A ring elects nobody: its first replica retakes as soon as it may, and this only asks it not to wait. An unclean
election (type 1) lets a ring go on that cannot get a leader by its own rules any more; what is lost by it is told in
the message of each partition. Our own type 100 only tells.
"""

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import accepted, message_of, refused
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.errors import (
    AnabranchError,
    ElectionNotNeededError,
    InvalidRequestError,
    NotControllerError,
    PeerUnreachableError,
    PreferredLeaderNotAvailableError,
    QuorumBusyError,
)
from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.cluster.metadata.rows import Topic

PREFERRED, UNCLEAN = 0, 1
LOOK = 100
"""What would be done and lost by an unclean election. Kafka has no such type, and none near."""
PAUSE_SECONDS = 0.05
WAIT_MS_MAX = 10_000

Row = dict[str, Any]
Key = tuple[str, int]


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    if request["election_type"] in (UNCLEAN, LOOK):
        return await _unclean(broker, call, request)
    if request["election_type"] != PREFERRED:
        return refuse(
            request,
            InvalidRequestError(
                f"{request['election_type']} is no type of election: take 0 (the preferred leader) or 1 (unclean)."
            ),
        )
    everything = request["topic_partitions"] is None
    rows = await _elected(broker, call, _named(broker, request), request["timeout_ms"])
    if everything:  # As Kafka: of all partitions, only those are told of for which something was to do.
        rows = {key: row for key, row in rows.items() if row["error_code"] != ErrorCode.ELECTION_NOT_NEEDED}
    return {"error_code": ErrorCode.NONE, "replica_election_results": _by_topic(rows)}


# --- unclean -------------------------------------------------------------------------------------------------------


async def _unclean(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    """Done by the leader of the metadata quorum, whoever is asked."""
    if request["topic_partitions"] is None:
        return refuse(
            request, InvalidRequestError("Name the partitions: an unclean election may lose records of each.")
        )
    if broker.forwarding is not None and not getattr(call.client, "is_far", False):
        from anabranch.broker.handlers import HANDLERS  # The table of all handlers, which knows this one.

        answer = await broker.forwarding.carry_out(call, HANDLERS[ApiKey.ELECT_LEADERS], request)
        return dict(answer)
    if not broker.metadata.is_leader:
        raise NotControllerError("This broker does not lead the metadata quorum.")
    named = _named(broker, request)
    is_meant = request["election_type"] == UNCLEAN
    pace, rows = broker.turns.pace(), {}
    for key in named:
        await pace.row()
        rows[key] = await _recovered(broker, key, request["timeout_ms"], is_meant=is_meant)
    return {"error_code": ErrorCode.NONE, "replica_election_results": _by_topic(rows)}


async def _recovered(broker: "Broker", key: Key, timeout_ms: int, *, is_meant: bool) -> Row:
    try:
        _check_may_be_led(broker.topics.check_index(*key), key[1])
        if broker.peering is None:
            raise ElectionNotNeededError("A node without peers leads all its partitions.")
        message = await broker.peering.recovery.recover_or_tell(
            *key, _patience_ms(timeout_ms), is_meant=is_meant
        )
    except AnabranchError as error:
        return {"partition_id": key[1], **refused(error)}
    return {"partition_id": key[1], **accepted(), "error_message": message}


def _patience_ms(timeout_ms: int) -> int:
    return min(max(0, timeout_ms), WAIT_MS_MAX)


# --- the preferred leader ------------------------------------------------------------------------------------------


def _named(broker: "Broker", request: dict[str, Any]) -> list[Key]:
    if request["topic_partitions"] is None:
        topics = [state.topic for state in broker.topics]
        return [(topic.name, index) for topic in topics for index in range(topic.partition_count)]
    named = [(each["topic"], index) for each in request["topic_partitions"] for index in each["partitions"]]
    return list(dict.fromkeys(named))


async def _elected(broker: "Broker", call: Call, named: list[Key], timeout_ms: int) -> dict[Key, Row]:
    rows: dict[Key, Row] = {}
    by_broker: dict[BrokerId, list[Key]] = defaultdict(list)
    pace = broker.turns.pace()
    for key in named:
        await pace.row()
        try:
            by_broker[_to_be_asked(broker, *key)].append(key)
        except AnabranchError as error:
            rows[key] = {"partition_id": key[1], **refused(error)}
    is_far = getattr(call.client, "is_far", False)
    asked = [
        _here(broker, keys, timeout_ms)
        if broker_id == broker.id
        else _there(broker, broker_id, keys, timeout_ms, is_far=is_far)
        for broker_id, keys in by_broker.items()
    ]
    for some in await asyncio.gather(*asked):
        rows.update(some)
    return {key: rows[key] for key in named}


def _to_be_asked(broker: "Broker", name: str, index: int) -> BrokerId:
    """The preferred leader, if it has to do something and can."""
    topic = broker.topics.check_index(name, index)
    _check_may_be_led(topic, index)
    preferred = _preferred(broker, topic, index)
    if broker.leaders.of(topic.topic_id, index).broker_id == preferred:
        raise ElectionNotNeededError(f"Broker {preferred} leads {name}-{index} already.")
    if not broker.orchestrator.is_available(preferred):
        raise PreferredLeaderNotAvailableError(
            f"Broker {preferred}, which should lead {name}-{index}, is away."
        )
    return preferred


def _check_may_be_led(topic: "Topic", index: int) -> None:
    if topic.is_stored(index):
        raise ElectionNotNeededError(
            f"Topic {topic.name} is in the object store: every broker serves it, and none leads it."
        )


def _preferred(broker: "Broker", topic: "Topic", index: int) -> BrokerId:
    replicas = broker.metadata.table.placement(topic, index).replicas
    return replicas[0] if replicas else BrokerId(broker.id)


async def _here(broker: "Broker", keys: list[Key], timeout_ms: int) -> dict[Key, Row]:
    """Ask our own replicas, and wait until they lead."""
    wanted = {key: broker.topics.known(key[0]).topic for key in keys}
    assert broker.replicas is not None, "a node without peers leads everything"
    for (_, index), topic in wanted.items():
        broker.replicas.prefer(topic.topic_id, index)
    end_ms = broker.clock.monotonic_ms() + _patience_ms(timeout_ms)
    waiting = set(keys)
    while True:
        waiting = {
            key for key in waiting if broker.leaders.of(wanted[key].topic_id, key[1]).broker_id != broker.id
        }
        if not waiting or broker.clock.monotonic_ms() >= end_ms:
            break
        await asyncio.sleep(PAUSE_SECONDS)
    late = PreferredLeaderNotAvailableError(
        "The preferred leader has not caught up yet: it takes over when it has."
    )
    return {
        key: {"partition_id": key[1], **(refused(late) if key in waiting else accepted())} for key in keys
    }


async def _there(
    broker: "Broker", broker_id: BrokerId, keys: list[Key], timeout_ms: int, *, is_far: bool
) -> dict[Key, Row]:
    try:
        if is_far:
            raise NotControllerError("The brokers do not agree yet who the preferred leader is: try again.")
        return await _asked(broker, broker_id, keys, timeout_ms)
    except (PeerUnreachableError, NotControllerError, QuorumBusyError) as error:
        away = PreferredLeaderNotAvailableError(f"Broker {broker_id} cannot be asked: {error}")
        return {key: {"partition_id": key[1], **refused(away)} for key in keys}


async def _asked(broker: "Broker", broker_id: BrokerId, keys: list[Key], timeout_ms: int) -> dict[Key, Row]:
    topics: dict[str, list[int]] = defaultdict(list)
    for name, index in keys:
        topics[name].append(index)
    body = {
        "election_type": PREFERRED,
        "topic_partitions": [{"topic": name, "partitions": indexes} for name, indexes in topics.items()],
        "timeout_ms": timeout_ms,
    }
    patience_ms = _patience_ms(timeout_ms) + 1000
    assert broker.forwarding is not None, "a node without peers leads everything itself"
    answer = await broker.forwarding.ask(broker_id, ApiKey.ELECT_LEADERS, 2, body, patience_ms)
    return {
        (topic["topic"], row["partition_id"]): row
        for topic in answer["replica_election_results"]
        for row in topic["partition_result"]
    }


def _by_topic(rows: dict[Key, Row]) -> list[Row]:
    topics: dict[str, list[Row]] = defaultdict(list)
    for (name, _), row in rows.items():
        topics[name].append(row)
    return [{"topic": name, "partition_result": each} for name, each in topics.items()]


def refuse(request: dict[str, Any], error: AnabranchError) -> dict[str, Any]:
    """Version 0 has no code for the whole: every partition gets it."""
    code, message = code_of(error), message_of(error)
    return {
        "error_code": code,
        "replica_election_results": [
            {
                "topic": each["topic"],
                "partition_result": [
                    {"partition_id": index, "error_code": code, "error_message": message}
                    for index in each["partitions"]
                ],
            }
            for each in request["topic_partitions"] or ()
        ],
    }
