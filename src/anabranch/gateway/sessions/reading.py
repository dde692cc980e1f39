"""SessionReader: what a session reads next, out of all partitions that its group has given it.

    positions = await reader.positions(seat, cursor)
    found = await reader.read(positions, records_max=500, bytes_max=2**20, wait_ms=2000)
    found.places, found.positions

Reading begins at what the group has committed, or further on where the client's cursor says that it has got to. Where
the group has committed nothing the session's wish decides, once: the place is committed, so that "latest" means new
since then and not since the last poll. Records that retention has taken are passed over; beyond the end there is
nothing, never something else.
"""

import asyncio
import heapq
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from anabranch.broker.requests.turns import ROWS_PER_TURN
from anabranch.errors import AnabranchError, BrokerRefusedError
from anabranch.gateway import calls as call_values
from anabranch.gateway.calls import code_of_error
from anabranch.gateway.read.reading import Read, read_records
from anabranch.gateway.sessions.group_session import GroupSessions, Seat
from anabranch.gateway.sessions.state import EARLIEST, Positions, encode_cursor
from anabranch.record.records import Record
from anabranch.values import Offset, TopicPartition
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.gateway.gateway import Gateway

PARTITION_BYTES_MIN = 16 * 1024
"""What is fetched of one partition at least, however many share a poll."""
JSON_GROWS_BY = 3
"""What an answer costs for each byte of its records, roughly."""
READS_MAX = 8
"""Partitions that are read at once, each of at least one batch: what one poll may hold is bounded by it."""


class Place(NamedTuple):
    """A record, and which partition it is in."""

    partition: TopicPartition
    record: Record


class Found(NamedTuple):
    places: list[Place]
    positions: Positions
    """Where to read on after them."""
    reserved: int = 0
    """Bytes of the gateway's memory that this holds, until `bodies.give`."""


class SessionReader:
    def __init__(self, gateway: "Gateway", sessions: GroupSessions) -> None:
        self._gateway = gateway
        self._calls = gateway.calls
        self._sessions = sessions

    # --- where to begin ------------------------------------------------------------------------------------------

    async def positions(self, seat: Seat, cursor: Mapping[TopicPartition, Offset]) -> Positions:
        """Of every partition of the seat. A cursor never leads back behind what the group has committed since."""
        known = await self._sessions.committed(seat)
        missing = [each for each in seat.partitions if each not in known]
        if missing:
            begun = await self._begin(seat, missing)
            await self._sessions.commit(seat, begun)
            known.update(begun)
        return {each: max(offset, cursor.get(each, offset)) for each, offset in known.items()}

    async def _begin(self, seat: Seat, partitions: Iterable[TopicPartition]) -> Positions:
        at = call_values.EARLIEST if seat.wish.start == EARLIEST else call_values.LATEST
        by_topic: dict[str, list[int]] = {}
        for topic, index in sorted(partitions):
            by_topic.setdefault(topic, []).append(index)
        begun: Positions = {}
        for topic, indexes in by_topic.items():
            try:
                found = await self._calls.list_offsets_of(topic, indexes, at)
            except BrokerRefusedError as error:
                found = dict.fromkeys(indexes, error)
            for index, place in found.items():
                if not isinstance(place, AnabranchError):
                    begun[TopicPartition(topic, index)] = Offset(place[0])
                elif code_of_error(place) != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise place  # A topic that is gone is none of ours soon: the group's leader notices.
        return begun

    async def _offset(self, partition: TopicPartition, at: int) -> Offset:
        offset, _ = await self._calls.list_offsets(*partition, at)
        return Offset(offset)

    # --- reading -------------------------------------------------------------------------------------------------

    async def read(self, positions: Positions, *, records_max: int, bytes_max: int, wait_ms: int) -> Found:
        """What is there; if nothing is, what comes first within that time."""
        found = await self._read_once(positions, records_max, bytes_max)
        if found.places or wait_ms <= 0:
            return found
        await self._gateway.poll(self._wait(found.positions, wait_ms))
        return await self._read_once(found.positions, records_max, bytes_max)

    async def _read_once(self, positions: Positions, records_max: int, bytes_max: int) -> Found:
        """What is there. Room in memory is kept before it is fetched, and given back if there is nothing."""
        reserved = bytes_max * JSON_GROWS_BY
        await self._gateway.hold(reserved)
        found = Found([], positions)
        try:
            found = await self._read_in_turns(positions, records_max, bytes_max)
        finally:
            if not found.places:
                self._gateway.bodies.give(reserved)
        return found._replace(reserved=reserved) if found.places else found

    async def _read_in_turns(self, positions: Positions, records_max: int, bytes_max: int) -> Found:
        """Some partitions after the others, until there is enough for an answer; who is first changes each time."""
        each_max = max(PARTITION_BYTES_MIN, bytes_max // max(1, len(positions)))
        read = {each: Read([], offset) for each, offset in positions.items()}
        partitions = sorted(positions)
        first = crc32(encode_cursor(positions).encode()) % max(1, len(partitions))
        turns = partitions[first:] + partitions[:first]
        count = size = 0
        for start in range(0, len(turns), READS_MAX):
            some = turns[start : start + READS_MAX]
            await self._calls.turns.wait(ROWS_PER_TURN)
            found = await asyncio.gather(
                *(self._read_partition(each, positions[each], records_max, each_max) for each in some)
            )
            read.update(zip(some, found, strict=True))
            count += sum(len(each.records) for each in found)
            size += sum(sum(each.sizes) for each in found)
            if count >= records_max or size >= bytes_max:
                break
        return merged(read, records_max, bytes_max)

    async def _read_partition(
        self, partition: TopicPartition, offset: Offset, records_max: int, bytes_max: int
    ) -> Read:
        """Its next records, and where to read on after all of them."""
        try:
            fetched = await self._calls.fetch(*partition, offset, bytes_max=bytes_max)
        except BrokerRefusedError as error:
            moved = await self._after(error, partition, offset)
            if moved == offset:
                return Read([], offset)
            return await self._read_partition(partition, moved, records_max, bytes_max)
        decode = partial(
            read_records,
            fetched.batches,
            offset,
            records_max=records_max,
            bytes_max=bytes_max,
            unpacked_bytes_max=self._gateway.settings.batch_decompressed_bytes_max,
        )
        return await self._calls.decoded(fetched.batches, decode)

    async def _after(self, error: BrokerRefusedError, partition: TopicPartition, offset: Offset) -> Offset:
        """Where to go on after a refusal, never further back; raises it again if that would not help."""
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return offset  # Deleted: the group's leader notices, and deals out anew.
        if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
            raise error
        return max(offset, await self._offset(partition, call_values.EARLIEST))

    async def _wait(self, positions: Positions, wait_ms: int) -> None:
        """Until there may be something to read anywhere, or that time is over."""
        if not positions:
            await asyncio.sleep(wait_ms / 1000)
            return
        tasks: list[asyncio.Task[None]] = []
        try:
            for number, (each, offset) in enumerate(sorted(positions.items())):
                if number % READS_MAX == 0:
                    await self._calls.turns.wait(ROWS_PER_TURN)
                tasks.append(asyncio.ensure_future(self._wait_for(each, offset, wait_ms)))
            await asyncio.wait(tasks, timeout=wait_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_for(self, partition: TopicPartition, offset: Offset, wait_ms: int) -> None:
        try:
            fetched = await self._calls.fetch(*partition, offset, bytes_max=1, wait_ms=wait_ms)
        except BrokerRefusedError:
            await asyncio.sleep(wait_ms / 1000)  # This one has nothing to say; the others may.
            return
        if not fetched.batches:
            await asyncio.sleep(wait_ms / 1000)


def merged(read: Mapping[TopicPartition, Read], records_max: int, bytes_max: int) -> Found:
    """As many as one answer may hold. The oldest come first, so that no partition waits for another's backlog; in each
    of them offsets decide."""
    places: list[Place] = []
    positions: Positions = {}
    heads = []
    for partition, (records, next_offset, _) in read.items():
        positions[partition] = records[0].offset if records else Offset(next_offset)
        if records:
            heads.append((records[0].timestamp, partition, 0))
    heapq.heapify(heads)
    size = 0
    while heads and len(places) < records_max:
        _, partition, index = heads[0]
        records, next_offset, sizes = read[partition]
        record = records[index]
        size += sizes[index]
        if places and size > bytes_max:
            break
        places.append(Place(partition, record))
        is_last = index + 1 == len(records)
        positions[partition] = Offset(next_offset) if is_last else records[index + 1].offset
        if is_last:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (records[index + 1].timestamp, partition, index + 1))
    return Found(places, positions)
