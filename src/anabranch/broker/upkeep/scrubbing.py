"""Scrubbing: re-reads the segments of all logs in turn, at a bounded rate, and counts what has rotted."""

import asyncio
import logging
from typing import TYPE_CHECKING

from anabranch.broker.topics.partition import Partition
from anabranch.broker.workers import in_heavy_worker
from anabranch.log.scrubber import Damage, Scrubber, ScrubPace

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

logger = logging.getLogger(__name__)

STEP_BYTES_MAX = 4 * 2**20
STEPS_MAX = 64
"""Of one turn, however little each of them reads."""
LOOKS_PER_TURN = 200
"""So many partitions are looked at before the loop has its turn."""


class Scrubbing:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._pace = ScrubPace(max(1, broker.settings.scrub_bytes_per_second))
        self._scrubbers: dict[Partition, Scrubber] = {}
        self._turn = 0
        self._reported: set[Damage] = set()
        self.bytes_total = 0

    @property
    def damaged_total(self) -> int:
        """Damaged regions found since the start."""
        return len(self._reported)

    async def scrub(self) -> None:
        """Read on for as long as the pace allows."""
        partitions = [each for each in self._broker.topics.partitions() if each.log.segments]
        self._scrubbers = {each: self._scrubbers.get(each) or Scrubber() for each in partitions}
        steps = 0
        for number in range(len(partitions)):
            now_ms = self._broker.clock.monotonic_ms()
            allowed = min(self._pace.allowed_bytes(now_ms), STEP_BYTES_MAX)
            if allowed <= 0 or steps == STEPS_MAX:
                return
            if number % LOOKS_PER_TURN == LOOKS_PER_TURN - 1:
                await asyncio.sleep(0)
            self._turn += 1
            partition = partitions[self._turn % len(partitions)]
            if partition.is_gone:
                continue
            step = self._scrubbers[partition].next_step(partition.log, allowed, now_ms)
            if step is None:
                continue
            steps += 1
            damages = await in_heavy_worker(self._broker.workers, step.run)
            self._pace.spent(step.size_bytes)
            self.bytes_total += step.size_bytes
            self._report(partition, step.accept(damages))

    async def forget_verified(self) -> None:
        """What was checked a while ago is checked again before it leaves: rot below the page cache changes no file's
        time of change."""
        for number, partition in enumerate(list(self._broker.topics.partitions())):
            if number % LOOKS_PER_TURN == LOOKS_PER_TURN - 1:
                await asyncio.sleep(0)
            for segment in partition.log.segments:
                segment.forget_verified()

    def _report(self, partition: Partition, damages: list[Damage]) -> None:
        for damage in damages:
            if damage not in self._reported:
                self._reported.add(damage)
                logger.error("the scrubber found damage in %s: %s", partition.id, damage.reason)
            if self._broker.peering is not None:
                self._broker.peering.repairs.begin(partition, damage.base_offset)
