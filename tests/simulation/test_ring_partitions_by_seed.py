"""Real partitions of one ring under kills, power cuts, splits, full disks and spoiled pushes, by seed."""

import logging
from random import Random

import pytest

from anabranch.broker.ring.driver import ring_driver
from support.ring_brokers import RingBrokers

SEEDS = 24
STEPS = 120
CALM_MS = 25_000


class Trouble:
    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        flush = self.chance.choice(["always", "os"])
        self.world = RingBrokers(seed, flush=flush, overrides={"segment.bytes": "2048"})
        self.room_bytes = self.world.room_bytes
        self.leaders: dict[int, int] = {}
        self.value = 0

    def run(self) -> None:
        happens = [
            (60, self.produce),
            (4, self.stop_one),
            (9, self.start_all),
            (3, self.split),
            (5, self.world.heal),
            (3, self.spoil),
            (2, self.fill_disk),
            (2, self.narrow_links),
        ]
        weights, deeds = zip(*happens, strict=True)
        for _ in range(STEPS):
            self.world.run(self.chance.choice([5, 30, 200]))
            self.chance.choices(deeds, weights)[0]()
            self.check()

    def produce(self) -> None:
        for leader in self.world.leaders():
            for _ in range(self.chance.randint(1, 3)):
                self.value += 1
                values = [b"%d" % self.value * self.chance.choice([1, 400])]
                self.world.produce(values, at=leader, timeout_ms=2000)

    def stop_one(self) -> None:
        """One at a time. What a power cut takes must not be asked of the next one before it is back."""
        brokers = self.world.brokers.values()
        if all(one.is_alive for one in brokers):
            trusted = all(
                one.mode.replica.kept.is_trusted and not ring_driver(one.partition).is_busy for one in brokers
            )
            lose_power = trusted and self.chance.random() < 0.5
            self.world.stop(self.chance.choice(self.world.ids), lose_power=lose_power)

    def start_all(self) -> None:
        for one in self.world.brokers.values():
            if not one.is_alive:
                one.disk.capacity_bytes = None  # A node that cannot write at all does not start.
                self.world.start(one.id)

    def split(self) -> None:
        self.world.cut_off(self.chance.choice(self.world.ids))

    def spoil(self) -> None:
        pairs = [pair for pair in self.world.links if pair[0] != pair[1]]
        self.world.links[self.chance.choice(pairs)].spoil = _spoil

    def fill_disk(self) -> None:
        """One at a time: with two full nobody may write, and there is nothing to see."""
        disk = self.world.brokers[self.chance.choice(self.world.ids)].disk
        full = [one for one in self.world.brokers.values() if one.disk.capacity_bytes]
        disk.capacity_bytes = None if disk.capacity_bytes or full else 1

    def narrow_links(self) -> None:
        self.world.room_bytes = self.chance.choice([3000, self.room_bytes])

    def check(self) -> None:
        """Nobody publishes what it does not have, and a generation has one leader."""
        for one in self.world.brokers.values():
            if one.is_alive:
                assert one.partition.high_watermark <= one.partition.log.end_offset
            if one.is_alive and one.mode.leads:
                assert self.leaders.setdefault(one.mode.generation, one.id) == one.id, "two leaders"

    def calm(self) -> None:
        world = self.world
        world.room_bytes = self.room_bytes
        world.heal()
        for link in world.links.values():
            link.spoil = None
        for one in world.brokers.values():
            one.disk.capacity_bytes = None
        self.start_all()
        world.run(CALM_MS)
        world.led_by(1)
        world.produced([b"the last"])
        world.run(1500)
        world.check_equal()
        assert len({one.mode.generations for one in world.brokers.values()}) == 1


def _spoil(data: bytearray) -> None:
    data[len(data) // 2] ^= 4


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_acknowledged_is_lost_and_all_partitions_become_equal(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    trouble = Trouble(seed)
    try:
        trouble.run()
        trouble.calm()
        assert len(trouble.world.acknowledged) > 10
    finally:
        trouble.world.close()
