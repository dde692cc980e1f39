"""ListOffsets, versions 1 to 11: first, last, by time, of the largest timestamp; both isolation levels.

Without tiered storage the earliest local offset is the earliest, and the last tiered and the earliest pending upload
are none (-1). A lookup by time has batches read and unpacked by workers. Only a partition's leader answers, and a new
one tells where it ends once it knows how far records are safe. Where any broker may write, any broker answers, once it
knows all that was agreed on before it was asked; if the quorum cannot be asked, nobody knows where such a partition
ends now: OFFSET_NOT_AVAILABLE, and clients ask again.
"""

import asyncio
from collections.abc import Awaitable
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.broker.requests.turns import Rows, Turns
from anabranch.broker.requests.unpacking import unpacked
from anabranch.broker.topics.partition import OffsetAt, Partition
from anabranch.errors import (
    AnabranchError,
    InvalidRequestError,
    OffsetNotAvailableError,
    QuorumBusyError,
    UnsupportedVersionError,
    detached,
)
from anabranch.log.segment.timestamps import WALKED_BYTES_MAX
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.log.segment.timestamps import Lookup, Moment


class Special(IntEnum):
    """Timestamps that are none."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


SPECIAL_SINCE = {
    int(Special.LATEST): 0,
    int(Special.EARLIEST): 0,
    int(Special.MAX_TIMESTAMP): 7,
    int(Special.EARLIEST_LOCAL): 8,
    int(Special.LATEST_TIERED): 9,
    int(Special.EARLIEST_PENDING_UPLOAD): 11,
}
"""The version of the API that brought each of them."""

NEVER = 2**15
NOT_AVAILABLE_SINCE = 5
"""Older clients are told to look for the leader again."""
NOTHING = (-1, -1, -1)
STARTS = (Special.EARLIEST, Special.EARLIEST_LOCAL)
WALKED_BYTES_PER_ROW = 1024
WALKED_ROWS_MAX = WALKED_BYTES_MAX // WALKED_BYTES_PER_ROW
"""Of batches that a lookup by time passes; the smallest legal ones have 68 bytes."""


Found = dict[tuple[str, int], OffsetAt | AnabranchError]

LOOKUPS_AT_ONCE = 32
"""Of one request: those that wait for an object store do so side by side."""


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> Rows | Awaitable[dict[str, Any]]:
    if any(_must_look(broker, topic) for topic in request["topics"]):
        return _look_first(broker, call, request)
    return _answer(broker, call, request, {})


def _must_look(broker: "Broker", topic: dict[str, Any]) -> bool:
    return _ends_by_quorum(broker, topic["name"]) or any(
        _is_lookup(each["timestamp"]) for each in topic["partitions"]
    )


def _ends_by_quorum(broker: "Broker", name: str) -> bool:
    """Whether any broker may write to some of its partitions, so that only the quorum knows where they end."""
    state = broker.topics.find_readable(name)
    if state is None or (state.topic.is_placed and not state.topic.forms):
        return False
    return any(each is None or each.ends_by_quorum for each in state.partitions)


def _is_lookup(timestamp: int) -> bool:
    return timestamp >= 0 or timestamp == Special.MAX_TIMESTAMP


def _partition(broker: "Broker", name: str, index: int) -> Partition | None:
    state = broker.topics.find_readable(name)
    return state.partitions[index] if state is not None and 0 <= index < len(state.partitions) else None


async def _look_first(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    """Find what has to be waited for: where something ends that anybody may write to, and records by their time."""
    pace = broker.turns.pace()
    asked: dict[tuple[str, int], int] = {}
    needs_quorum = False
    for topic in request["topics"]:
        name, ends_by_quorum = topic["name"], _ends_by_quorum(broker, topic["name"])
        for each in topic["partitions"]:
            await pace.row()
            index, timestamp = each["partition_index"], each["timestamp"]
            asked.setdefault((name, index), timestamp)
            if ends_by_quorum and timestamp not in STARTS:
                partition = _partition(broker, name, index)
                needs_quorum = needs_quorum or partition is None or partition.ends_by_quorum
    behind = await _catch_up(broker) if needs_quorum else None
    found: Found = {}
    lookups = []
    for (name, index), timestamp in asked.items():
        await pace.row()
        partition = _partition(broker, name, index)
        if partition is None:
            continue
        if behind is not None and partition.ends_by_quorum and timestamp not in STARTS:
            found[name, index] = behind
        elif _is_lookup(timestamp):
            lookups.append((partition, timestamp))
        if len(lookups) == LOOKUPS_AT_ONCE:
            await _look_up(broker, lookups, found)
            lookups = []
    await _look_up(broker, lookups, found)
    return await broker.turns.driven(_answer(broker, call, request, found))


async def _catch_up(broker: "Broker") -> AnabranchError | None:
    """Know all that was agreed on before this request. The answer is why that cannot be."""
    if broker.is_alone:
        return None
    try:
        await broker.metadata.caught_up()
    except QuorumBusyError as error:
        return OffsetNotAvailableError(f"Nobody knows now what was agreed on last: {error}")
    return None


async def _look_up(broker: "Broker", lookups: list[tuple[Partition, int]], found: Found) -> None:
    """Enter records by their time."""
    search = partial(searched, broker)

    async def look_up(partition: Partition, timestamp: int) -> None:
        try:
            partition.check_leader()
            if timestamp == Special.MAX_TIMESTAMP:
                record = await partition.max_timestamp(search)
            else:
                record = await partition.offset_for_time(timestamp, search)
        except AnabranchError as error:
            found[partition.id] = detached(error)
        else:
            found[partition.id] = record or NOTHING

    await asyncio.gather(*(look_up(*each) for each in lookups))


async def searched(broker: "Broker", lookup: "Lookup") -> "Moment | None":
    """What a lookup by time finds. Each batch is read and unpacked by a worker; the way there is walked in turns."""
    turns = broker.turns
    try:
        await _room(turns)
        search = next(lookup)
        while True:
            turns.spend((search.position - search.walked_from) // WALKED_BYTES_PER_ROW)
            try:
                moment = await unpacked(broker, [search.header], search.run)
            except (OSError, AnabranchError) as error:
                search = lookup.throw(error)
            else:
                await _room(turns)
                search = lookup.send(moment)
    except StopIteration as ended:
        found: Moment | None = ended.value
        return found


async def _room(turns: Turns) -> None:
    if not turns.has_room:
        await turns.wait(WALKED_ROWS_MAX)


def _answer(broker: "Broker", call: Call, request: dict[str, Any], found: Found) -> Rows:
    """`found`: what was looked up before."""
    seen: set[tuple[str, int]] = set()
    topics = []
    for topic in request["topics"]:
        rows = []
        for asked in topic["partitions"]:
            rows.append(_row(broker, topic["name"], asked, seen, call.header.api_version, found))
            yield
        topics.append({"name": topic["name"], "partitions": rows})
    return {"topics": topics}


def _row(
    broker: "Broker",
    name: str,
    asked: dict[str, Any],
    seen: set[tuple[str, int]],
    version: int,
    found: Found,
) -> dict[str, Any]:
    index = asked["partition_index"]
    try:
        if (name, index) in seen:
            raise InvalidRequestError(f"Partition {name}-{index} appears twice in one request.")
        seen.add((name, index))
        partition = broker.topics.readable_partition(name, index)
        partition.check_leader()
        partition.check_generation(asked["current_leader_epoch"])
        _check_special(asked["timestamp"], version)
        _check_settled(partition, asked["timestamp"])
        known = found.get((name, index))
        if isinstance(known, AnabranchError):
            raise known
        offset, timestamp, generation = known or _offset(partition, asked["timestamp"])
    except OffsetNotAvailableError as error:
        code = code_of(error) if version >= NOT_AVAILABLE_SINCE else ErrorCode.LEADER_NOT_AVAILABLE
        return {"partition_index": index, "error_code": code}
    except AnabranchError as error:
        return {"partition_index": index, "error_code": code_of(error)}
    return {
        "partition_index": index,
        "error_code": 0,
        "offset": offset,
        "timestamp": timestamp,
        "leader_epoch": generation,
    }


def _check_special(timestamp: int, version: int) -> None:
    if timestamp < 0 and version < SPECIAL_SINCE.get(timestamp, NEVER):
        raise UnsupportedVersionError(f"ListOffsets v{version} knows no special offset {timestamp}.")


def _check_settled(partition: Partition, timestamp: int) -> None:
    """The start is where it is; anything else depends on how far readers may see."""
    if not partition.is_settled and timestamp not in STARTS:
        raise OffsetNotAvailableError(f"{partition.id} has a new leader that does not know yet what is safe.")


def _offset(partition: Partition, timestamp: int) -> OffsetAt:
    match timestamp:
        case Special.LATEST:
            return partition.readable_end, -1, partition.generation
        case Special.EARLIEST | Special.EARLIEST_LOCAL:
            return partition.start_offset, -1, partition.generation
    return NOTHING
