"""Offers: compacted segments that a job has laid beside a log, looked for, checked, and taken in or refused.

A job on Spark writes into `<partition folder>/offered` and goes away, or waits for the answer that is left there. The
broker looks at each turn of the cleaner. All checking is in a worker and believes nothing
(`log.external_compaction`); the segments then go in through the cleaner's own door. A wrong or outdated offer is
removed, with the reason in the log and in the answer: the log itself is then as it was. What a job that never came
back has left without a manifest goes after an hour in which it did not change.
"""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from anabranch.broker.topics.partition import Partition
from anabranch.broker.workers import in_heavy_worker
from anabranch.errors import (
    AnabranchError,
    CorruptDataError,
    OfferRefusedError,
    StorageError,
    WorkStoppedError,
)
from anabranch.log import external_compaction as offered
from anabranch.log.cleaner import CleanPlan, KeysMapped
from anabranch.log.disk.files import Files
from anabranch.record.compaction.check import OFFER_MS_MAX
from anabranch.record.compaction.offer_format import Offer, Outcome

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.upkeep.cleaning import Cleaning

logger = logging.getLogger(__name__)

UNREADABLE = "?"
"""The name of an offer that does not say its own."""
LeftOver = frozenset[tuple[str, int]]


class Offers:
    def __init__(self, broker: "Broker", cleaning: "Cleaning") -> None:
        self._broker = broker
        self._cleaning = cleaning
        self._unfinished: dict[Partition, tuple[LeftOver, int]] = {}
        """What lies there without a manifest, and since when it has been so."""
        self.taken_total = 0
        self.refused_total = 0

    async def take_all(self) -> None:
        """Look at every compacted log once. One that cannot be dealt with does not hold up the others."""
        compacted = [each for each in self._broker.topics.partitions() if each.settings.is_compacted]
        for partition, left in await self._look(compacted):
            if self._broker.housekeeping.is_stopping:
                return
            try:
                if left is None:
                    await self._settle(partition)
                else:
                    await self._note_unfinished(partition, left)
            except (StorageError, OSError) as error:
                logger.warning("what was offered for %s cannot be dealt with now: %s", partition.id, error)

    async def _look(self, partitions: list[Partition]) -> list[tuple[Partition, LeftOver | None]]:
        """Where something lies; None instead of its names if it is a whole offer."""
        files = self._broker.files
        return (
            await in_heavy_worker(self._broker.workers, lambda: _look_at(files, partitions))
            if partitions
            else []
        )

    async def _note_unfinished(self, partition: Partition, left: LeftOver) -> None:
        now_ms = self._broker.clock.wall_ms()
        before, since_ms = self._unfinished.get(partition, (None, now_ms))
        self._unfinished = {each: what for each, what in self._unfinished.items() if not each.is_gone}
        if before != left:
            self._unfinished[partition] = left, now_ms
        elif now_ms - since_ms >= OFFER_MS_MAX:
            logger.warning(
                "a job began to compact %s and never came back: what it left is removed", partition.id
            )
            await self._answer(partition, None)
            del self._unfinished[partition]

    # --- one offer -----------------------------------------------------------------------------------------------

    async def _settle(self, partition: Partition) -> None:
        name, bytes_before = UNREADABLE, partition.log.size_bytes
        self._unfinished.pop(partition, None)
        try:
            offer = await self._read(partition)
            if offer is None:
                await self._answer(partition, None)
                return
            name = offer.id
            await self._take(partition, offer)
        except WorkStoppedError:
            return  # The next start finds the offer as it is.
        except AnabranchError as error:
            if isinstance(error, CorruptDataError):
                self._cleaning.note_damaged(partition, error)
            self.refused_total += 1
            logger.warning("what was offered for %s is refused: %s", partition.id, error)
            await self._answer(partition, Outcome(name, False, str(error)))
            return
        freed = bytes_before - partition.log.size_bytes
        self.taken_total += 1
        logger.info("%s takes in what a job compacted: %d bytes less", partition.id, freed)
        await self._answer(partition, Outcome(name, True, "", freed))

    async def _read(self, partition: Partition) -> Offer | None:
        files, folder = self._broker.files, partition.log.folder
        return await in_heavy_worker(self._broker.workers, lambda: offered.read_offer(files, folder))

    async def _take(self, partition: Partition, offer: Offer) -> None:
        bytes_before = partition.log.size_bytes
        plan = self._cleaning.plan_of(partition)
        if plan is None:
            raise OfferRefusedError("There is nothing in this log that may be compacted now.")
        mapped = await self._match(partition, offer, plan)
        for group in mapped.groups:
            if not await self._cleaning.replace(partition, mapped, group, offered.take):
                if self._broker.housekeeping.is_stopping:
                    raise WorkStoppedError(f"The node stops while {partition.id} takes in an offer.")
                raise OfferRefusedError("Segments it was made of are gone meanwhile.")
        await self._cleaning.note_run(partition, mapped.upto, bytes_before - partition.log.size_bytes)

    async def _match(self, partition: Partition, offer: Offer, plan: CleanPlan) -> KeysMapped:
        keys_max, last_offsets = self._cleaning.keys_max, partition.producers.last_offsets()
        return await in_heavy_worker(
            self._broker.workers, lambda: offered.matched(offer, plan, keys_max, last_offsets)
        )

    async def _answer(self, partition: Partition, outcome: Outcome | None) -> None:
        files, folder = self._broker.files, partition.log.folder
        async with partition.upkeep:
            if not partition.is_gone:
                await in_heavy_worker(self._broker.workers, lambda: offered.answer(files, folder, outcome))


def _look_at(files: Files, partitions: Iterable[Partition]) -> list[tuple[Partition, LeftOver | None]]:
    found: list[tuple[Partition, LeftOver | None]] = []
    for each in partitions:
        try:
            if offered.is_offered(files, each.log.folder):
                found.append((each, None))
            elif left := offered.left_over(files, each.log.folder):
                found.append((each, left))
        except OSError as error:
            logger.warning("what may be offered for %s cannot be seen: %s", each.id, error)
    return found
