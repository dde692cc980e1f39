"""Room for topics in mode branch: who is to be primary of a partition, by how much room its disk has.

Three brokers are asked, by chance, and the one with the most room is taken; those with about as much count as equal,
and the rendezvous hash decides between them. That happens when a partition is made, and when its primary runs short of
room: then the choice is a row of the branch log, and the one who is named ends the reign here.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from anabranch.broker.peers.messages import FreeSpace, Space
from anabranch.cluster.placement import roomiest
from anabranch.cluster.rendezvous import drawn
from anabranch.errors import AnabranchError, PeerError
from anabranch.modes.branch.rows import placed
from anabranch.values import BrokerId

if TYPE_CHECKING:
    from anabranch.broker.branch.partition_role import BranchSeat
    from anabranch.broker.broker import Broker

ASKED = 3
ASK_MS_MAX = 1000
LOOK_MS = 5000

logger = logging.getLogger(__name__)


async def ask_for_room(broker: "Broker", others: Iterable[BrokerId]) -> dict[BrokerId, int]:
    """Free bytes of those that answer, and of this broker if it is among them."""

    async def ask(other: BrokerId) -> int | None:
        if other == broker.id:
            return broker.disk_room()[1]
        assert broker.peers is not None, "there are others"
        try:
            answer = await broker.peers.ask(other, FreeSpace(), ASK_MS_MAX)
        except PeerError:
            return None
        return answer.free_bytes if isinstance(answer, Space) else None

    asked = list(others)
    answers = await asyncio.gather(*map(ask, asked))
    return {other: free for other, free in zip(asked, answers, strict=True) if free is not None}


def some_of(brokers: Collection[BrokerId], chance: Callable[[int], int]) -> list[BrokerId]:
    """Three of them, by chance."""
    left = sorted(brokers)
    chosen: list[BrokerId] = []
    while left and len(chosen) < ASKED:
        chosen.append(left.pop(chance(len(left))))
    return chosen


async def first_primaries(
    broker: "Broker", topic_id: UUID, partitions: Iterable[int], brokers: Collection[BrokerId]
) -> tuple[BrokerId, ...]:
    """Who is to be the first primary of each of these partitions."""
    room = await ask_for_room(broker, brokers) if len(brokers) > 1 else dict.fromkeys(brokers, 0)
    known: Mapping[BrokerId, int] = room or dict.fromkeys(brokers, 0)
    return tuple(
        roomiest(
            {each: known[each] for each in some_of(known, broker.chance)},
            partial(drawn, topic_id, index),
        )
        for index in partitions
    )


class BranchRoom:
    """Whether this broker is short of room, and what follows from it."""

    def __init__(self, broker: "Broker", seats: Callable[[], "Iterable[BranchSeat]"]) -> None:
        self._broker = broker
        self._seats = seats
        self._looked_ms = -LOOK_MS
        self._handing_over: asyncio.Task[None] | None = None
        self.is_short = False

    def pulse(self, view: Collection[BrokerId], now_ms: int) -> None:
        least = self._broker.settings.branch_disk_free_min_bytes
        if not least or now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        free = self._broker.disk_room()[1]
        if self.is_short != (free < (2 * least if self.is_short else least)):
            self.is_short = not self.is_short
            logger.warning(
                "the disk has %d bytes free: %s", free, "let others write" if self.is_short else "enough"
            )
        reigning = [seat for seat in self._seats() if seat.partition.reign is not None]
        if self.is_short and view and reigning and (self._handing_over is None or self._handing_over.done()):
            self._handing_over = asyncio.get_running_loop().create_task(self._hand_over(reigning, view))

    async def _hand_over(self, seats: "list[BranchSeat]", view: Collection[BrokerId]) -> None:
        """Name others that have more room, each partition its own; they do the rest."""
        room = await ask_for_room(self._broker, view)
        table, now_ms = self._broker.metadata.table, self._broker.clock.wall_ms()
        own = self._broker.disk_room()[1]
        rows = []
        for seat in seats:
            asked = {each: room[each] for each in some_of(room, self._broker.chance)}
            if not asked:
                return
            best = roomiest(asked, partial(drawn, *seat.key))
            row = table.brokers.get(best)
            slot = table.slots.get(row.directory_id) if row is not None else None
            if slot is not None and room[best] > own and seat.partition.branches.placed_slot != slot:
                rows.append(placed(seat.key, seat.partition.tip, slot, now_ms))
        try:
            await seats[0].partition.tube.add(rows)
        except AnabranchError as error:
            logger.warning("others cannot be named in the place of this broker: %s", error)

    async def stop(self) -> None:
        if self._handing_over is not None:
            self._handing_over.cancel()
            await asyncio.gather(self._handing_over, return_exceptions=True)
