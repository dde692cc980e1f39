"""Topics go into the object store and out of it, by seed, while brokers die and come back: no record is lost or
doubled, and the mode that was asked for last comes about."""

from collections.abc import Iterator
from random import Random

import pytest

from support.broker_cluster import close_all
from support.form_cluster import FormCluster

SEEDS = 24
FORMS = {"object": "stored", "ring": "kept", "solo": "kept"}


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


class FaultyCluster(FormCluster):
    """One broker at a time dies, or is cut off from another, whenever time passes."""

    def __init__(self, mode: str, seed: int) -> None:
        self.chance = Random(f"faults {seed}")
        self.is_faulty = False
        self.dead: tuple[int, int] | None = None
        super().__init__(mode, 2, seed)

    def run(self, milliseconds: int) -> None:
        super().run(milliseconds)
        if not self.is_faulty:
            return
        now_ms = self.clock.monotonic_ms()
        if self.dead is None and self.chance.random() < 0.02:
            broker_id = self.chance.choice(sorted(self.lives))
            self.kill(broker_id)
            self.dead = broker_id, now_ms + self.chance.choice([200, 2000, 8000])
        elif self.dead is not None and now_ms >= self.dead[1]:
            self.revive()

    def revive(self) -> None:
        if self.dead is not None:
            (broker_id, _), self.dead = self.dead, None
            self.start(broker_id)

    def settle_down(self) -> None:
        self.is_faulty = False
        self.revive()
        self.settle()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_or_doubled(seed: int) -> None:
    chance = Random(f"plan {seed}")
    mode = chance.choice(sorted(FORMS))
    cluster = FaultyCluster(mode, seed)
    for index in (0, 1) * 5:
        cluster.produce(index)
    cluster.is_faulty = True
    for _ in range(chance.randrange(2, 5)):
        mode = chance.choice([each for each in sorted(FORMS) if each != mode])
        while not cluster.lives or cluster.leader_id is None or cluster.alter(mode)["error_code"]:
            cluster.run(100)
        for _ in range(chance.choice([3, 20, 100])):  # The next wish may come before this one is fulfilled.
            cluster.produce(chance.randrange(2))
            cluster.run(chance.choice([5, 50, 200]))
    cluster.settle_down()
    for index in (0, 1):
        cluster.produce(index, repeat=True)
    cluster.until(lambda: cluster.is_done(FORMS[mode]), 60_000)
    for index in (0, 1):
        cluster.produce(index, repeat=True)
        cluster.produce(index)
        cluster.check(index)
    if mode != "solo":  # A broker that was away while copies became fewer keeps its own.
        cluster.until(lambda: len(cluster.folders()) == (0 if mode == "object" else 6), 60_000)
        cluster.check(0)
