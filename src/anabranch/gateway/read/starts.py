"""Where a subscription begins, as offsets."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from anabranch.errors import AnabranchError
from anabranch.gateway.calls import EARLIEST, LATEST
from anabranch.gateway.websocket.fields import Start

if TYPE_CHECKING:
    from anabranch.gateway.calls import Calls


async def start_offsets(
    calls: "Calls", topic: str, partitions: Iterable[int], start: Start
) -> dict[int, int]:
    """By partition. A time after the last record is where the next one will be. Raises BrokerRefusedError."""
    asked = tuple(partitions)
    match start.kind:
        case "offset":
            found = await _given(calls, topic, asked, start)
        case "earliest":
            found = await _listed(calls, topic, asked, EARLIEST)
        case "time":
            found = await _listed(calls, topic, asked, start.time_ms)
            late = [index for index, offset in found.items() if offset < 0]
            found |= await _listed(calls, topic, late, LATEST)
        case _:
            found = await _listed(calls, topic, asked, LATEST)
    return {index: found[index] for index in asked}


async def _given(calls: "Calls", topic: str, partitions: tuple[int, ...], start: Start) -> dict[int, int]:
    if start.offsets is None:
        return dict.fromkeys(partitions, start.offset)
    found = {index: start.offsets[index] for index in partitions if index in start.offsets}
    others = [index for index in partitions if index not in found]
    if others:
        assert start.others is not None, "partitions that have no offset are not followed"
        found |= await start_offsets(calls, topic, others, Start(start.others))
    return found


async def _listed(calls: "Calls", topic: str, partitions: Iterable[int], timestamp: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for index, place in (await calls.list_offsets_of(topic, partitions, timestamp)).items():
        if isinstance(place, AnabranchError):
            raise place
        found[index] = place[0]
    return found
