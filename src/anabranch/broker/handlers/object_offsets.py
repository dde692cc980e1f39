"""Offsets of what is in the object store, for ListOffsets. Any broker answers, once it has applied all that was agreed
on before it was asked; to find a time, or the newest one, it may have to read from the store.

Where the quorum cannot be asked, nobody knows where a partition ends now: OFFSET_NOT_AVAILABLE, and clients ask again.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.list_offsets import NOTHING, Found, Offsets, Special, searched
from anabranch.broker.object.partition import ObjectPartition
from anabranch.broker.topics.partition import Partition
from anabranch.errors import AnabranchError, OffsetNotAvailableError, QuorumBusyError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.object.archived_prefix import Past

STARTS = (Special.EARLIEST, Special.EARLIEST_LOCAL)


async def look_up(broker: "Broker", topics: list[dict[str, Any]]) -> Found:
    """Of every partition that is there and can be served; the others are refused by whoever asked."""
    asked = dict.fromkeys(
        (topic["name"], each["partition_index"], each["timestamp"])
        for topic in topics
        for each in topic["partitions"]
    )
    behind = None
    if broker.peers is not None and any(_needs_quorum(broker, *each) for each in asked):
        behind = await _catch_up(broker)
    found: Found = {}
    lookups = []
    for name, index, timestamp in asked:
        partition = _partition(broker, name, index)
        if partition is not None and not partition.is_object:
            if partition.past is not None and (timestamp >= 0 or timestamp == Special.MAX_TIMESTAMP):
                lookups.append(_look_up_kept(broker, found, partition, partition.past, timestamp))
            continue
        if not isinstance(partition, ObjectPartition) or not partition.is_served:
            continue
        if behind is not None and timestamp not in STARTS:
            found[name, index] = behind
        else:
            lookups.append(_look_up_one(found, partition, timestamp))
    await asyncio.gather(*lookups)  # They wait for the store side by side.
    return found


def _partition(broker: "Broker", name: str, index: int) -> Partition | None:
    state = broker.topics.find_readable(name)
    return state.partitions[index] if state is not None and 0 <= index < len(state.partitions) else None


def _needs_quorum(broker: "Broker", name: str, index: int, timestamp: int) -> bool:
    """What only the quorum knows is where something ends that anybody may write to. Whoever leads a partition knows it
    by itself, also where the quorum cannot be asked."""
    partition = _partition(broker, name, index)
    return timestamp not in STARTS and (partition is None or partition.is_object)


async def _look_up_one(found: Found, partition: ObjectPartition, timestamp: int) -> None:
    try:
        found[partition.id] = await _offset(partition, timestamp)
    except AnabranchError as error:
        found[partition.id] = error


async def _look_up_kept(
    broker: "Broker", found: Found, partition: Partition, past: "Past", timestamp: int
) -> None:
    """Of one that came from the store: by time, what lies there comes first."""
    try:
        if partition.log.start_offset > past.floor:
            return  # Nothing of it counts any more.
        if timestamp == Special.MAX_TIMESTAMP:
            moments = [await past.max_timestamp(), await searched(broker, partition.log.max_timestamp())]
            newest = max((each for each in moments if each is not None), key=_time_of, default=None)
        else:
            newest = await past.offset_for_time(timestamp)
            if newest is None:
                newest = await searched(broker, partition.log.offset_for_time(timestamp))
    except AnabranchError as error:
        found[partition.id] = error
        return
    is_seen = newest is not None and newest[0] < partition.high_watermark
    found[partition.id] = (*newest, partition.generation)[:3] if newest is not None and is_seen else NOTHING


def _time_of(moment: tuple[int, ...]) -> tuple[int, int]:
    """The newest, and of several the first."""
    return moment[1], -moment[0]


async def _catch_up(broker: "Broker") -> AnabranchError | None:
    try:
        await broker.metadata.caught_up()
    except QuorumBusyError as error:
        return OffsetNotAvailableError(f"Nobody knows now what was agreed on last: {error}")
    return None


async def _offset(partition: ObjectPartition, timestamp: int) -> Offsets:
    generation = partition.generation
    match timestamp:
        case Special.LATEST:
            return partition.readable_end, -1, generation
        case Special.EARLIEST | Special.EARLIEST_LOCAL:
            return partition.log.start_offset, -1, generation
        case Special.MAX_TIMESTAMP:
            found = await partition.coordinates.max_timestamp()
        case _ if timestamp < 0:
            return NOTHING
        case _:
            found = await partition.coordinates.offset_for_time(timestamp)
    return NOTHING if found is None else (*found, generation)
