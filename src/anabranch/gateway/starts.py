"""Where a subscription begins, as offsets."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from anabranch.gateway.calls import EARLIEST, LATEST
from anabranch.gateway.socket_fields import Start

if TYPE_CHECKING:
    from anabranch.gateway.calls import Calls


async def start_offsets(
    calls: "Calls", topic: str, partitions: Iterable[int], start: Start
) -> dict[int, int]:
    """By partition. A time after the last record is where the next one will be. Raises BrokerRefusedError."""
    asked = tuple(partitions)
    found = await asyncio.gather(*(_offset(calls, topic, index, start) for index in asked))
    return dict(zip(asked, found, strict=True))


async def _offset(calls: "Calls", topic: str, partition: int, start: Start) -> int:
    match start.kind:
        case "offset":
            return await _given(calls, topic, partition, start)
        case "earliest":
            return (await calls.list_offsets(topic, partition, EARLIEST))[0]
        case "time":
            offset, _ = await calls.list_offsets(topic, partition, start.time_ms)
            if offset >= 0:
                return offset
    return (await calls.list_offsets(topic, partition, LATEST))[0]


async def _given(calls: "Calls", topic: str, partition: int, start: Start) -> int:
    if start.offsets is None:
        return start.offset
    if partition in start.offsets:
        return start.offsets[partition]
    assert start.others is not None, "partitions that have no offset are not followed"
    return await _offset(calls, topic, partition, Start(start.others))
