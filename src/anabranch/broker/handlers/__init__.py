"""Every Kafka API this node serves: one line each, and what ApiVersions answers.

`dispatch` takes one call to its handler. A handler takes (broker, call, request) with the request as a dict of
its table, and returns the response as a dict, or is a coroutine that does; Produce and Fetch (`raw`) read and
answer the bytes themselves. A handler turns refusals into error codes where the protocol has room for them; what
it lets escape closes the connection. What is not in the table is not advertised, and asking for it closes the
connection, as Kafka does.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from anabranch.broker.call import Call
from anabranch.broker.handlers import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
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
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)
from anabranch.errors import AnabranchError, UnsupportedVersionError
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import decode_request, encode_response
from anabranch.wire.header import response_header

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

logger = logging.getLogger(__name__)

Body = dict[str, Any]
Handle = Callable[["Broker", Call, Body], Body | Awaitable[Body]]
RawHandle = Callable[["Broker", Call], None]


class Api(NamedTuple):
    """One API: who handles it, and the versions it is served in. `advertised_from` may lie below them."""

    versions: range
    handle: Handle | None = None
    raw: RawHandle | None = None
    advertised_from: int | None = None


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
    ApiKey.API_VERSIONS: Api(range(0, 5), api_versions.handle),
    ApiKey.CREATE_TOPICS: Api(range(2, 8), create_topics.handle),
    ApiKey.DELETE_TOPICS: Api(range(1, 7), delete_topics.handle),
    ApiKey.DELETE_RECORDS: Api(range(0, 3), delete_records.handle),
    ApiKey.INIT_PRODUCER_ID: Api(range(0, 6), init_producer_id.handle),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Api(range(2, 5), offset_for_leader_epoch.handle),
    ApiKey.DESCRIBE_CONFIGS: Api(range(1, 5), describe_configs.handle),
    ApiKey.ALTER_CONFIGS: Api(range(0, 3), alter_configs.handle),
    ApiKey.DESCRIBE_LOG_DIRS: Api(range(1, 6), describe_log_dirs.handle),
    ApiKey.CREATE_PARTITIONS: Api(range(0, 4), create_partitions.handle),
    ApiKey.DELETE_GROUPS: Api(range(0, 3), delete_groups.handle),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(range(0, 2), incremental_alter_configs.handle),
    ApiKey.OFFSET_DELETE: Api(range(0, 1), offset_delete.handle),
    ApiKey.DESCRIBE_CLUSTER: Api(range(0, 3), describe_cluster.handle),
    ApiKey.DESCRIBE_PRODUCERS: Api(range(0, 1), describe_producers.handle),
    ApiKey.LIST_CONFIG_RESOURCES: Api(range(0, 2), list_config_resources.handle),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Api(range(0, 1), describe_topic_partitions.handle),
}


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
    if api.raw is not None:
        api.raw(broker, call)
        return
    assert api.handle is not None
    request = decode_request(header.api_key, header.api_version, call.view, call.body, call.end)
    response = api.handle(broker, call, request)
    if isinstance(response, dict):
        _answer(call, response)
    else:
        task = asyncio.ensure_future(response)
        broker.core.tasks_open += 1
        task.add_done_callback(lambda done: _finish(broker, call, done))


def _finish(broker: "Broker", call: Call, task: "asyncio.Future[Body]") -> None:
    broker.core.tasks_open -= 1
    if task.cancelled():
        call.close("the node stops")
        return
    try:
        _answer(call, task.result())
    except AnabranchError as error:
        logger.info("closing %s: %s", call.client.host, error)
        call.close(str(error))
    except Exception as error:  # A defect of ours costs this connection, and nobody else anything.
        logger.exception("a handler failed: this is a defect")
        call.close(f"{type(error).__name__}: {error}")


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
