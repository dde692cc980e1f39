"""Every Kafka API this node serves: one line each, and what ApiVersions answers.

`dispatch` takes one call to its handler. A handler takes (broker, call, request) with the request as a dict of its
table, and returns the response as a dict, or is a coroutine that does, or a generator that yields after each row;
Produce and Fetch (`raw`) read and answer the bytes themselves. No handler does more than a few rows of work without
asking `broker.requests.turns`: a generator need not, the dispatcher does it for it. A handler turns refusals into
error codes where the protocol has room for them; what it lets escape closes the connection. What is not in the table
is not advertised, and asking for it closes the connection, as Kafka does.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from inspect import isgeneratorfunction
from typing import TYPE_CHECKING, Any, NamedTuple

from anabranch.broker.handlers import (
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
    config_resources,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_branches,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_member,
    describe_objects,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    metadata,
    name_objects,
    not_served,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    replace_objects,
    sync_group,
    unregister_broker,
)
from anabranch.broker.handlers.answers import refused
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.network import network_of
from anabranch.broker.requests.partial_answers import (
    ADDED_PARTITIONS,
    CONFIGS,
    CREATED_TOPICS,
    DELETED_TOPICS,
    REASSIGNMENTS,
    RowFields,
)
from anabranch.broker.requests.turns import (
    BYTES_PER_ROW,
    BYTES_PER_ROW_BY_HAND,
    LONG_BYTES_MIN,
    SHORT_BYTES_MAX,
    Lease,
    Rows,
)
from anabranch.errors import AnabranchError, TooManyElementsError, UnsupportedVersionError
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import decode_request, encode_response, response_fields
from anabranch.wire.error_codes import ErrorCode
from anabranch.wire.header import response_header

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

logger = logging.getLogger(__name__)

Body = dict[str, Any]
Handle = Callable[["Broker", Call, Body], Body | Rows | Awaitable[Body]]
RawHandle = Callable[["Broker", Call], "asyncio.Future[Any] | None"]
"""Returns what has to end before another long request is decoded, if it goes on in later turns."""
Refuse = Callable[[Body, AnabranchError], Body]


class Api(NamedTuple):
    """One API: who handles it, and the versions it is served in. `advertised_from` may lie below them.

    One with `refuse` may be carried out by another broker than the one that was asked: if `is_of_leader`, by the leader
    of the metadata quorum, else by whomever its handler asks. `refuse` answers for a request that could not be;
    `is_repeatable`: twice is as good as once (some requests of an API may be so, and others not). `done_code` then says
    that there was nothing left to do. `rows`: where the parts of a request are that succeed and fail by themselves.
    """

    versions: range
    handle: Handle | None = None
    raw: RawHandle | None = None
    advertised_from: int | None = None
    refuse: Refuse | None = None
    is_of_leader: bool = True
    is_repeatable: bool | Callable[[Body], bool] = True
    done_code: ErrorCode | None = None
    rows: tuple[RowFields, ...] = ()

    def may_repeat(self, request: Body) -> bool:
        return self.is_repeatable if isinstance(self.is_repeatable, bool) else self.is_repeatable(request)


HANDLERS: dict[ApiKey, Api] = {
    # Advertised from 0, because librdkafka before 2.6 takes a higher start for a broker without compression.
    ApiKey.PRODUCE: Api(range(3, 14), raw=produce.handle, advertised_from=0),
    ApiKey.FETCH: Api(range(4, 19), raw=fetch.handle),
    ApiKey.LIST_OFFSETS: Api(range(1, 12), list_offsets.handle),
    ApiKey.METADATA: Api(range(0, 14), metadata.handle),
    ApiKey.OFFSET_COMMIT: Api(range(2, 11), offset_commit.handle),
    ApiKey.OFFSET_FETCH: Api(range(1, 11), offset_fetch.handle),
    ApiKey.FIND_COORDINATOR: Api(range(0, 7), find_coordinator.handle),
    ApiKey.JOIN_GROUP: Api(range(0, 10), join_group.handle),
    ApiKey.HEARTBEAT: Api(range(0, 5), heartbeat.handle),
    ApiKey.LEAVE_GROUP: Api(range(0, 6), leave_group.handle),
    ApiKey.SYNC_GROUP: Api(range(0, 6), sync_group.handle),
    ApiKey.DESCRIBE_GROUPS: Api(range(0, 7), describe_groups.handle),
    ApiKey.LIST_GROUPS: Api(range(0, 6), list_groups.handle),
    ApiKey.SASL_HANDSHAKE: Api(range(0, 2), not_served.sasl_handshake),
    ApiKey.API_VERSIONS: Api(range(0, 5), api_versions.handle),
    ApiKey.CREATE_TOPICS: Api(
        range(2, 8),
        create_topics.handle,
        refuse=create_topics.refuse,
        is_repeatable=False,
        rows=CREATED_TOPICS,
    ),
    ApiKey.DELETE_TOPICS: Api(
        range(1, 7),
        delete_topics.handle,
        refuse=delete_topics.refuse,
        is_repeatable=False,
        rows=DELETED_TOPICS,
    ),
    ApiKey.DELETE_RECORDS: Api(
        range(0, 3), delete_records.handle, refuse=delete_records.refuse, is_of_leader=False
    ),
    ApiKey.INIT_PRODUCER_ID: Api(range(0, 6), init_producer_id.handle),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Api(range(2, 5), offset_for_leader_epoch.handle),
    ApiKey.DESCRIBE_CONFIGS: Api(range(1, 5), describe_configs.handle),
    ApiKey.ALTER_CONFIGS: Api(
        range(0, 3), alter_configs.handle, refuse=config_resources.refuse, rows=CONFIGS
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Api(range(1, 3), alter_replica_log_dirs.handle),
    ApiKey.DESCRIBE_LOG_DIRS: Api(range(1, 6), describe_log_dirs.handle),
    ApiKey.SASL_AUTHENTICATE: Api(range(0, 3), not_served.sasl_authenticate),
    ApiKey.CREATE_PARTITIONS: Api(
        range(0, 4),
        create_partitions.handle,
        refuse=create_partitions.refuse,
        is_repeatable=False,
        rows=ADDED_PARTITIONS,
    ),
    ApiKey.DELETE_GROUPS: Api(range(0, 3), delete_groups.handle),
    ApiKey.ELECT_LEADERS: Api(
        range(0, 3), elect_leaders.handle, refuse=elect_leaders.refuse, is_of_leader=False
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(
        range(0, 2),
        incremental_alter_configs.handle,
        refuse=config_resources.refuse,
        is_repeatable=incremental_alter_configs.is_repeatable,
        rows=CONFIGS,
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Api(
        range(0, 2),
        alter_partition_reassignments.handle,
        refuse=alter_partition_reassignments.refuse,
        done_code=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        rows=REASSIGNMENTS,
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Api(range(0, 1), list_partition_reassignments.handle),
    ApiKey.OFFSET_DELETE: Api(range(0, 1), offset_delete.handle),
    ApiKey.DESCRIBE_QUORUM: Api(range(0, 3), describe_quorum.handle, refuse=describe_quorum.refuse),
    ApiKey.DESCRIBE_CLUSTER: Api(range(0, 3), describe_cluster.handle),
    ApiKey.DESCRIBE_PRODUCERS: Api(range(0, 1), describe_producers.handle),
    ApiKey.UNREGISTER_BROKER: Api(
        range(0, 1),
        unregister_broker.handle,
        refuse=unregister_broker.refuse,
        done_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Api(range(0, 2), not_served.consumer_group_heartbeat),
    ApiKey.LIST_CONFIG_RESOURCES: Api(range(0, 2), list_config_resources.handle),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Api(range(0, 1), describe_topic_partitions.handle),
    ApiKey.SHARE_GROUP_HEARTBEAT: Api(range(1, 2), not_served.share_group_heartbeat),
    ApiKey.DESCRIBE_OBJECTS: Api(range(0, 1), describe_objects.handle),
    ApiKey.NAME_OBJECTS: Api(range(0, 1), name_objects.handle),
    ApiKey.REPLACE_OBJECTS: Api(range(0, 1), replace_objects.handle),
    ApiKey.DESCRIBE_BRANCHES: Api(range(0, 1), describe_branches.handle),
    ApiKey.DESCRIBE_MEMBER: Api(range(0, 1), describe_member.handle),
}


WAIT_FOR_CLIENTS = {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}
"""Answered when other clients have sent theirs."""


def dispatch(broker: "Broker", call: Call) -> None:
    """Take a call to its handler. Raises what closes the connection."""
    header = call.header
    api = HANDLERS.get(header.api_key)  # type: ignore[call-overload]  # An IntEnum key is found by its number.
    if api is None:
        raise UnsupportedVersionError(f"API key {header.api_key} is not served here.")
    if header.api_version not in api.versions:
        if header.api_key == ApiKey.API_VERSIONS:
            call.answer([_framed(header.api_key, 0, header.correlation_id, api_versions.unsupported())])
            return
        raise UnsupportedVersionError(
            f"{ApiKey(header.api_key).name} v{header.api_version} is not served here."
        )
    size = call.end - call.body
    # What a produce request costs to read does not depend on its bytes, which are records; its handler counts.
    is_quick = size <= SHORT_BYTES_MAX or header.api_key == ApiKey.PRODUCE
    rows = size // (BYTES_PER_ROW if api.raw is None else BYTES_PER_ROW_BY_HAND)
    may_begin = size < LONG_BYTES_MIN or api.raw is not None
    if is_quick or (may_begin and broker.turns.take(rows)):
        _begin(broker, call, api)
    else:
        call.keeps_bytes = True
        task = broker.core.carry_on(_in_turn(broker, call, api, rows), call, partial(_answer_with, call))
        call.on_close = lambda: _drop(task)


def _drop(task: "asyncio.Future[Any]") -> None:
    """Nobody waits for the answer any more."""
    task.cancel()


def _begin(broker: "Broker", call: Call, api: Api) -> None:
    if api.raw is not None:
        api.raw(broker, call)
        return
    response = _driven(broker, _start(broker, call, api))
    if isinstance(response, dict):
        _answer(call, response)
    else:
        broker.core.carry_on(response, call, partial(_answer, call))


async def _in_turn(broker: "Broker", call: Call, api: Api, rows: int) -> Body | None:
    """Decode a long request when its turn has come, and carry it out. None: its handler answers."""
    turns, api_key = broker.turns, call.header.api_key
    lease: Lease | None = None
    try:
        async with turns.slots(api_key).held(network_of(call.client.host)):
            if api.raw is None and api_key not in WAIT_FOR_CLIENTS and not isgeneratorfunction(api.handle):
                lease = await turns.lease()
            await turns.wait(rows)
            call.on_close = None
            call.keeps_bytes = False  # It is decoded now, or says itself that it goes on reading.
            if api.raw is not None:
                if (work := api.raw(broker, call)) is not None:
                    await asyncio.wait([work])  # Whoever carries it on sees to what goes wrong.
                return None
            response = _start(broker, call, api)
            if isinstance(response, Generator):
                response = await turns.driven(response)
        # A coroutine may wait for a disk, the quorum, a store or other clients: that must not keep others from their
        # slot.
        answer = response if isinstance(response, dict) else await response
        await turns.wait(rows)  # To encode it: of those that end together, one in each turn.
        return answer
    finally:
        if lease is not None:
            lease.end()


def _start(broker: "Broker", call: Call, api: Api) -> Body | Rows | Awaitable[Body]:
    assert api.handle is not None
    header = call.header
    elements_max = broker.settings.request_elements_max
    try:
        request = decode_request(
            header.api_key, header.api_version, call.view, call.body, call.end, elements_max
        )
    except TooManyElementsError as error:
        return _refusal(call, error)
    if api.refuse is not None and api.is_of_leader and broker.forwarding is not None:
        return broker.forwarding.carry_out(call, api, request)
    return api.handle(broker, call, request)


def _refusal(call: Call, error: TooManyElementsError) -> Body:
    """The answer to a request that is too long to be read. Raises the error, which closes the connection, where the
    response has no error code for the whole of it."""
    told = response_fields(call.header.api_key, call.header.api_version)
    if "error_code" not in told:
        raise error
    logger.info("refused a request of %s: %s", call.client.host, error)
    return {name: value for name, value in refused(error).items() if name in told}


def _driven(broker: "Broker", response: Body | Rows | Awaitable[Body]) -> Body | Awaitable[Body]:
    return broker.turns.drive(response) if isinstance(response, Generator) else response


async def handled(broker: "Broker", call: Call, api: Api, request: Body) -> Body:
    """What this broker's own handler answers."""
    assert api.handle is not None
    response = _driven(broker, api.handle(broker, call, request))
    return response if isinstance(response, dict) else await response


def _answer_with(call: Call, response: Body | None) -> None:
    """None: its handler answers."""
    if response is not None:
        _answer(call, response)


def _answer(call: Call, body: Body) -> None:
    header = call.header
    call.answer([_framed(header.api_key, header.api_version, header.correlation_id, body)])


def _framed(api_key: int, version: int, correlation_id: int, body: Body) -> bytes:
    encoded = response_header(api_key, version, correlation_id) + encode_response(api_key, version, body)
    return len(encoded).to_bytes(4, "big") + encoded


def advertised() -> list[tuple[int, int, int]]:
    """(api key, first version, last version) of everything served."""
    return [
        (key, api.versions[0] if api.advertised_from is None else api.advertised_from, api.versions[-1])
        for key, api in HANDLERS.items()
    ]
