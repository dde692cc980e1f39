"""ListOffsets, versions 1 to 11: first, last, by time, of the largest timestamp; both isolation levels.

Without tiered storage the earliest local offset is the earliest, and the last tiered and the earliest pending upload
are none (-1). A lookup by time has batches read and unpacked by workers. Only a partition's leader answers, and a new
one tells where it ends once it knows how far records are safe. For what is in the object store any broker answers
(`object_offsets.py`).
"""

from collections.abc import Awaitable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.broker.requests.turns import Rows, Turns
from anabranch.broker.requests.unpacking import unpacked
from anabranch.broker.topics.partition import Partition
from anabranch.errors import (
    AnabranchError,
    InvalidRequestError,
    OffsetNotAvailableError,
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
WALKED_BYTES_PER_ROW = 1024
WALKED_ROWS_MAX = WALKED_BYTES_MAX // WALKED_BYTES_PER_ROW
"""Of batches that a lookup by time passes; the smallest legal ones have 68 bytes."""


Offsets = tuple[int, int, int]
"""Offset, timestamp, generation."""
Found = dict[tuple[str, int], Offsets | AnabranchError]


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> Rows | Awaitable[dict[str, Any]]:
    objects = [topic for topic in request["topics"] if _is_in_store(broker, topic["name"])]
    by_time = [
        (topic["name"], asked["partition_index"], asked["timestamp"])
        for topic in request["topics"]
        for asked in topic["partitions"]
        if asked["timestamp"] >= 0 or asked["timestamp"] == Special.MAX_TIMESTAMP
    ]
    if objects or by_time:
        return _look_first(broker, call, request, objects, by_time)
    return _answer(broker, call, request, {})


def _is_in_store(broker: "Broker", name: str) -> bool:
    """Some of its records are, or were, in the object store."""
    state = broker.topics.find_readable(name)
    if state is None:
        return False
    topic = state.topic
    return topic.is_object or bool(topic.forms) or any(placement.floor for placement in topic.placements)


async def _look_first(
    broker: "Broker",
    call: Call,
    request: dict[str, Any],
    objects: list[dict[str, Any]],
    by_time: list[tuple[str, int, int]],
) -> dict[str, Any]:
    """Find what has to be waited for: what is in the object store, and records by their time, for which batches are
    read and unpacked."""
    found: Found = {}
    if objects:
        from anabranch.broker.handlers.object_offsets import look_up

        found = await look_up(broker, objects)
    pace = broker.turns.pace()
    for name, index, timestamp in by_time:
        await pace.row()
        if (name, index) not in found:
            await _look_up(broker, name, index, timestamp, found)
    return await broker.turns.driven(_answer(broker, call, request, found))


async def _look_up(broker: "Broker", name: str, index: int, timestamp: int, found: Found) -> None:
    """Enter the record of one partition of which this broker keeps the files."""
    try:
        partition = broker.topics.readable_partition(name, index)
        if partition.is_object:
            return
        partition.check_leader()
        is_newest = timestamp == Special.MAX_TIMESTAMP
        log = partition.log
        moment = await searched(broker, log.max_timestamp() if is_newest else log.offset_for_time(timestamp))
    except AnabranchError as error:
        found[name, index] = detached(error)
        return
    found[name, index] = NOTHING if moment is None or moment.offset >= partition.high_watermark else moment


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
        broker.check_generation(partition, asked["current_leader_epoch"])
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
    if not partition.is_settled and timestamp not in (Special.EARLIEST, Special.EARLIEST_LOCAL):
        raise OffsetNotAvailableError(f"{partition.id} has a new leader that does not know yet what is safe.")


def _offset(partition: Partition, timestamp: int) -> Offsets:
    match timestamp:
        case Special.LATEST:
            return partition.readable_end, -1, partition.generation
        case Special.EARLIEST | Special.EARLIEST_LOCAL:
            return partition.start_offset, -1, partition.generation
    return NOTHING
